"""Function words by language. Queries ignore them, and a text's language is recognized by them."""

from __future__ import annotations

from typing import Final

_LISTS: Final = {
    "danish": (
        "og i jeg det at en den til er som på de med han af for ikke der var mig sig men et har om vi min havde "
        "ham hun nu over da fra du ud sin dem os op man hans hvor eller hvad skal selv her alle vil blev kunne "
        "ind når"
    ),
    "dutch": (
        "de en van ik te dat die in een hij het niet zijn is was op aan met als voor had er maar om hem dan zou "
        "of wat mijn men dit zo door over ze zich bij ook tot je mij uit der daar haar naar heb hoe heeft hebben "
        "deze u"
    ),
    "english": (
        "a an the of to in is was were did do does i you he she it they my your his her their and or for on at "
        "with what when where who which how why that this have has had be been are from by about me we us our as "
        "if so not will would can could should am its than then there these those up out just any some s t re ve "
        "d ll m don didn doesn im into too very"
    ),
    "finnish": (
        "olla on ei se hän ja että oli mutta kun niin kuin mitä myös joka jos tämä vain ovat minä sinä me te he "
        "mikä kuka voi ole tai nyt sitten sen niitä hänen minun sinun ne olen olet olemme olivat ollut kanssa "
        "jotka vielä"
    ),
    "french": (
        "au aux avec ce ces dans de des du elle en et eux il je la le les leur lui ma mais me même mes moi mon ne "
        "nos notre nous on ou où par pas pour qu que qui sa se ses son sur ta te tes toi ton tu un une vos votre "
        "vous c d j l m n s t y est suis sont était ai as ont avez avait plus quand comment quel quelle"
    ),
    "german": (
        "der die das und ist in zu den ich nicht von mit sich des auf für es ein eine einen einem einer dem im "
        "auch als an er so dass daß kann am aus bei nach wie oder war wir aber noch nur sie du mir mich ihr was "
        "wenn wer wo wann warum hat habe hatte sind sein mein dein ihre wird werden um zum zur vom über doch man "
        "schon"
    ),
    "hungarian": (
        "a az egy és hogy nem is ez azt ezt van volt de ha csak meg mint már vagy még mi ki én te ő mert hol "
        "mikor miért lesz lehet sem el fel nagyon majd után ott itt minden amely aki ami sok"
    ),
    "italian": (
        "il lo la i gli le un uno una di a da in con su per tra fra e o ma se che chi non è sono ho ha hanno era "
        "mi ti si ci vi mio tuo suo del della dei delle al alla nel nella come quando dove più questo quello "
        "anche io tu lui lei noi voi loro cosa perché"
    ),
    "norwegian": (
        "og i jeg det at en et den til er som på de med han av ikke der så var meg seg men ett har om vi min mitt "
        "ha hadde hun nå over da ved fra du ut sin dem oss opp man kan hans hvor eller hva skal selv her alle vil "
        "bli ble når være ei noe blitt"
    ),
    "portuguese": (
        "de a o que e do da em um para é com não uma os no se na por mais as dos como mas foi ao ele das tem à "
        "seu sua ou ser quando muito há nos já está eu também só pelo pela até isso ela entre era depois sem "
        "mesmo aos ter seus quem nas me esse eles estão você tinha foram essa num nem suas meu minha onde"
    ),
    "romanian": (
        "și în la de pe cu nu că din este sunt o un mai ce care pentru a am ai au fost dar sau dacă se să eu tu "
        "el ea noi voi ei când unde cum acest această lui mea meu fi după fără prin cel cea"
    ),
    "russian": (
        "и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по только ее мне было вот "
        "от меня еще нет о из ему теперь когда даже ну ли если уже или быть был него до вас нибудь вам ведь там "
        "потом себя они тут где есть для мы тебя их чем была сам чтоб без это кто"
    ),
    "spanish": (
        "de la que el en y a los del se las por un para con no una su al lo como más pero sus le ya o este sí "
        "porque esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos durante todos uno "
        "les ni contra otros ese eso ante ellos e esto mí qué es son está era fue yo tú él mi tu cuál dónde "
        "cuándo"
    ),
    "swedish": (
        "och det att i en jag hon som han på den med var sig för så till är men ett om hade de av icke mig du "
        "henne då sin nu har inte hans honom skulle hennes där min man ej vid kunde något från ut när efter upp "
        "vi dem vara vad över än dig kan sina här ha mot alla under någon eller allt mycket sedan"
    ),
    "turkish": (
        "ve bir bu da de için ile mi ne çok ben sen o biz siz onlar var yok gibi daha en ama ki şu her ya veya "
        "değil olarak kadar sonra olan oldu nasıl neden nerede kim bana sana"
    ),
}
STOP_WORDS: Final = {language: frozenset(words.split()) for language, words in _LISTS.items()}
"""By the name that the Snowball stemmers give a language; from their lists, the most frequent words alone."""
