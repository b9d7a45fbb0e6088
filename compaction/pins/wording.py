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
    r"\u043e\u0442\u043d\u044b\u043d\u0435)\b|"
    # Chinese, Japanese, Korean
    "\u4ece\u73b0\u5728\u8d77|\u4eca\u540e|\u6c38\u8fdc\u4e0d|\u7edd\u5bf9\u4e0d|\u4eca\u5f8c|"
    "\u3053\u308c\u304b\u3089\u306f|"
    "\u7d76\u5bfe\u306b|\uc55e\uc73c\ub85c|\uc808\ub300"
)
"""What says anywhere in a sentence that it holds from now on."""
LASTING_START: Final = re.compile(
    r"\W*(?:(?:also|and|but|so|then|please|remember|rule|important|note|bitte|por favor)[,:]* )*"
    r"(?:you (?:must|should|have to|are to) )?"
    r"(?:always|never|immer|niemals|nie|toujours|siempre|nunca|sempre|altijd|nooit|"
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
    "\u0432\u0441\u0435\u0433\u0434\u0430|\u043d\u0438\u043a\u043e\u0433\u0434\u0430|"
    "\u0441 \u044d\u0442\u043e\u0433\u043e|\u043e\u0442\u043d\u044b\u043d\u0435",
    "\u4ece\u73b0\u5728\u8d77|\u4eca\u540e|\u6c38\u8fdc\u4e0d|\u7edd\u5bf9\u4e0d|\u4eca\u5f8c|"
    "\u3053\u308c\u304b\u3089\u306f|\u7d76\u5bfe\u306b|\uc55e\uc73c\ub85c|\uc808\ub300",
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
