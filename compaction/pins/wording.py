"""The words by which users make a request a rule for all that follows, and by which they ask for one to be forgotten.

All patterns are in small letters, and so is what they are held against. Each has cues, of which one is in whatever the
pattern matches.
"""

from __future__ import annotations

import re
from typing import Final

from compaction.pins.cues import Cues

LASTING: Final = re.compile(
    r"\b(?:from (?:now|here|this point) on(?:wards?)?|from this point forward|going forward|henceforth|at all times|"
    r"no matter what|under no circumstances|(?:do not|don['\u2019]t) ever|until (?:i|we) (?:say|tell you) otherwise|"
    r"(?:for|throughout) the rest of (?:this|the|our) (?:conversation|chat|session|project|thread)|"
    r"(?:new|standing|permanent|house|ground|hard) rule|"
    # German
    r"ab (?:jetzt|sofort)|von nun an|k\u00fcnftig|auf keinen fall|unter keinen umst\u00e4nden|"
    # French
    r"d\u00e9sormais|dor\u00e9navant|\u00e0 partir de maintenant|en aucun cas|"
    # Spanish, Portuguese, Italian
    r"a partir de (?:ahora|agora)|de ahora en adelante|de agora em diante|bajo ninguna circunstancia|"
    r"em nenhuma circunst\u00e2ncia|d['\u2019]ora in poi|in nessun caso|"
    # Dutch, Russian
    r"vanaf nu|in geen geval|\u0441 \u044d\u0442\u043e\u0433\u043e \u043c\u043e\u043c\u0435\u043d\u0442\u0430|"
    r"\u043e\u0442\u043d\u044b\u043d\u0435|"
    # Polish, Swedish
    r"od (?:teraz|tej pory|tej chwili|dzisiaj|dzi\u015b)|odt\u0105d|pod \u017cadnym pozorem|"
    r"w \u017cadnym (?:wypadku|razie)|"
    r"fr\u00e5n (?:och med )?(?:nu|idag|i dag)|h\u00e4danefter|fram\u00f6ver|i forts\u00e4ttningen|"
    r"under inga omst\u00e4ndigheter)\b|"
    # Chinese, Japanese, Korean
    "\u4ece\u73b0\u5728\u8d77|\u4eca\u540e|\u6c38\u8fdc\u4e0d|\u7edd\u5bf9\u4e0d|\u4eca\u5f8c|"
    "[\u4ece\u5f9e]\u4eca(?:\u4ee5\u540e|\u4ee5\u5f8c|\u5f80\u540e|\u5f80\u5f8c)|[\u4ece\u5f9e]\u6b64|"
    "\u5f9e\u73fe\u5728|\u4ece\u73b0\u5728\u5f00\u59cb|\u6c38\u9060\u4e0d|\u7d55\u5c0d\u4e0d|\u7edd\u4e0d|\u7d55\u4e0d|"
    "(?:\u4ee5\u540e|\u4ee5\u5f8c)(?:\u8bf7|\u8acb|\u90fd|\u4e0d|\u522b|\u5225|\u4e00\u5f8b|\u53ea|\u5fc5\u987b|"
    "\u5fc5\u9808|\u6c38|\u603b|\u6bcf|\u6240\u6709|\u51e1)|"
    "\u3053\u308c\u304b\u3089\u306f|"
    "\u7d76\u5bfe\u306b|\uc55e\uc73c\ub85c|\uc808\ub300"
)
"""What says anywhere in a sentence that it holds from now on."""
LASTING_START: Final = re.compile(
    r"\W*(?:(?:also|and|but|so|then|please|remember|rule|important|note|bitte|por favor)[,:]* )*"
    r"(?:you (?:must|should|have to|are to) )?"
    r"(?:(?:when(?:ever)?|if)\b[^.,;:!?]{2,80}, )?"
    r"(?:always|never|immer|niemals|nie|toujours|siempre|nunca|sempre|altijd|nooit|zawsze|nigdy|alltid|aldrig|"
    # "Boka aldrig ...": an imperative, which no pronoun or verb of the present is.
    r"(?!(?:jag|du|han|hon|vi|ni|de|det|den|har|\u00e4r|var|\w+er)\b)\w+ (?:aldrig|alltid)|"
    r"\u0432\u0441\u0435\u0433\u0434\u0430|\u043d\u0438\u043a\u043e\u0433\u0434\u0430)\b"
    # Not "Always loved it": what somebody did is no rule.
    r"(?!\s+(?:been|had|knew|saw|went|got|mind|the case|so|(?!need|feed|embed|proceed|exceed)\w+ed)\b)"
)
"""How a sentence begins that is a rule by itself."""
LASTING_CUES: Final = Cues(
    # A list under a heading counts where that speaks of rules: "Requirements:" heads those of a task.
    "always|never|from now|from here|from this|going forward|henceforth|at all times|no matter|under no c|ever|"
    "until i |until we |for the rest of|throughout the rest of|rule|new rule|standing rule|permanent rule|"
    "house rule|ground rule|hard rule|immer|nie|ab jetzt|ab sofort|von nun|k\u00fcnftig|auf keinen|unter keinen|"
    "toujours|d\u00e9sormais|dor\u00e9navant|\u00e0 partir de|en aucun|siempre|nunca|a partir de|de ahora|de agora|"
    "bajo ninguna|em nenhuma|sempre|d'ora in|d\u2019ora in|in nessun|altijd|nooit|vanaf nu|in geen geval|"
    "zawsze|nigdy|od teraz|od tej|od dzi|odt\u0105d|pod \u017cadnym|w \u017cadnym|alltid|aldrig|fr\u00e5n |"
    "h\u00e4danefter|fram\u00f6ver|"
    "i forts\u00e4ttningen|under inga|"
    "\u0432\u0441\u0435\u0433\u0434\u0430|\u043d\u0438\u043a\u043e\u0433\u0434\u0430|"
    "\u0441 \u044d\u0442\u043e\u0433\u043e|\u043e\u0442\u043d\u044b\u043d\u0435",
    "\u4ece\u73b0\u5728\u8d77|\u4eca\u540e|\u6c38\u8fdc\u4e0d|\u7edd\u5bf9\u4e0d|\u4eca\u5f8c|"
    "\u3053\u308c\u304b\u3089\u306f|\u7d76\u5bfe\u306b|\uc55e\uc73c\ub85c|\uc808\ub300|"
    "\u4ece\u4eca|\u5f9e\u4eca|\u4ece\u6b64|\u5f9e\u6b64|\u5f9e\u73fe\u5728|\u4ece\u73b0\u5728|"
    "\u6c38\u9060\u4e0d|\u7d55\u5c0d\u4e0d|\u7edd\u4e0d|\u7d55\u4e0d|\u4ee5\u540e|\u4ee5\u5f8c",
)

_RULE_NOUN: Final = (
    r"(?:rules?|instructions?|constraints?|restrictions?|requirements?|guidelines?|conventions?|regeln?|"
    r"anweisung(?:en)?|"
    r"vorgaben?|r\u00e8gles?|consignes?|reglas?|normas?|regole?|regras?)"
)
WITHDRAWS: Final = re.compile(
    r"(?<!n't )(?<!n\u2019t )(?<!not )(?<!never )"
    r"\b(?:forget|ignore|disregard|drop|scrap|cancel|lift|remove|undo|withdraw|revoke|skip|never mind|"
    r"stop (?:following|applying|enforcing|obeying)|vergiss|ignoriere?|streiche?|oublie[sz]?|annule[sz]?|olvida|"
    r"cancela|"
    rf"dimentica|esque\u00e7a)\s+(?:[\w'\u2019\"-]+\s+){{0,5}}?{_RULE_NOUN}\b|"
    rf"\b{_RULE_NOUN}\b[^.!?]{{0,60}}?\b(?:no longer (?:applies|apply|holds?|counts?|matters?|needed)|"
    r"(?:does not|doesn['\u2019]t|do not|don['\u2019]t) (?:apply|hold|count|matter)(?: any ?more)?|"
    r"(?:is|are) (?:off|lifted|withdrawn|cancell?ed|void|obsolete)|gilt nicht mehr|gelten nicht mehr)\b|"
    r"\bforget (?:what|everything) i (?:said|told you) about\b|"
    r"\b(?:no longer|don['\u2019]t|do not) (?:need|have) to (?:follow|obey|stick to|keep to|apply)\s+"
    rf"(?:\w+\s+){{0,4}}?{_RULE_NOUN}\b"
)
"""What asks anywhere in a sentence for a rule to be forgotten."""
WITHDRAWAL_CUES: Final = Cues(
    "rule|instruction|constraint|restriction|requirement|guideline|convention|regel|anweisung|vorgabe|r\u00e8gle|"
    "consigne|regla|norma|regol|regra|forget"
)
