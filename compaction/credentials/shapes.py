"""Shapes of credentials: the tokens of vendors by their documented prefixes, and what other secrets look like.

Every pattern is in RE2's syntax, which takes time linear in the text. The group is the secret itself.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class TokenShape(NamedTuple):
    """What the tokens of a vendor look like, and how a mask names them."""

    kind: str
    pattern: str


_JWT: Final = r"e(?:yJ|yA|wo)[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*){1,3}"

TOKENS: Final[tuple[TokenShape, ...]] = (
    # Models. Anthropic, OpenAI, OpenRouter, Langfuse, LiteLLM, DeepSeek: "API keys" in the documents of each.
    TokenShape("anthropic key", r"sk-ant-[A-Za-z0-9_-]{16,}"),
    TokenShape("openai key", r"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{16,}"),
    TokenShape("openrouter key", r"sk-or-[A-Za-z0-9-]{20,}"),
    TokenShape("langfuse key", r"sk-lf-[A-Za-z0-9-]{20,}"),
    TokenShape("api key", r"sk-(?:[a-z0-9]{1,12}-){0,3}[A-Za-z0-9_]{20,}"),
    TokenShape("api key", r"key_[A-Za-z0-9]{16,40}\.[A-Za-z0-9_-]{32,}"),
    TokenShape("hugging face token", r"(?:hf|api_org)_[A-Za-z0-9]{30,}"),
    TokenShape("groq key", r"gsk_[A-Za-z0-9]{32,}"),
    TokenShape("xai key", r"xai-[A-Za-z0-9]{40,}"),
    TokenShape("perplexity key", r"pplx-[A-Za-z0-9]{32,}"),
    TokenShape("replicate token", r"r8_[A-Za-z0-9]{30,}"),
    TokenShape("nvidia key", r"nvapi-[A-Za-z0-9_-]{40,}"),
    TokenShape("cerebras key", r"csk-[a-z0-9]{32,}"),
    TokenShape("fireworks key", r"fw_[A-Za-z0-9]{22,}"),
    TokenShape("together key", r"tgp_v1_[A-Za-z0-9_-]{30,}"),
    TokenShape("voyage key", r"pa-[A-Za-z0-9_-]{43}"),
    TokenShape("tavily key", r"tvly-[A-Za-z0-9-]{20,}"),
    TokenShape("firecrawl key", r"fc-[0-9a-f]{32}"),
    TokenShape("e2b key", r"e2b_[0-9a-f]{40}"),
    TokenShape("jina key", r"jina_[0-9a-f]{32}[A-Za-z0-9_-]{20,}"),
    TokenShape("pinecone key", r"pcsk_[A-Za-z0-9_]{40,}"),
    TokenShape("langsmith key", r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    TokenShape("elevenlabs key", r"sk_[0-9a-f]{48}"),
    TokenShape("wandb key", r"wandb_v1_[A-Za-z0-9_]{40,}"),
    # Clouds. AWS "IAM identifiers", Google "API keys" and OAuth, Azure AD, Alibaba, Tencent, Yandex.
    TokenShape("aws key", r"(?:AKIA|ASIA|ABIA|ACCA|A3T[A-Z0-9])[A-Z2-7]{16}"),
    TokenShape("aws key", r"ABSK[A-Za-z0-9+/]{100,}={0,2}|bedrock-api-key-[A-Za-z0-9+/=]{40,}"),
    TokenShape("aws session token", r"(?:IQoJb3JpZ2lu|FwoGZXIv|FQoGZXIv)[A-Za-z0-9/+=]{40,}"),
    TokenShape("google key", r"AIza[A-Za-z0-9_-]{35}|AQ\.Ab[A-Za-z0-9_-]{40,}"),
    TokenShape("google token", r"ya29\.[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{40,}"),
    TokenShape("google secret", r"GOCSPX-[A-Za-z0-9_-]{28}"),
    TokenShape("azure secret", r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}"),
    TokenShape("azure key", r"[A-Za-z0-9]{52}JQQJ99[A-Za-z0-9]{26}|[A-Za-z0-9+/]{76}\+ASt[A-Za-z0-9+/]{6}=="),
    TokenShape("alibaba key", r"LTAI[A-Za-z0-9]{12,26}"),
    TokenShape("tencent key", r"AKID[A-Za-z0-9]{32}"),
    TokenShape("yandex key", r"AQVN[A-Za-z0-9_-]{35,38}|y0_[A-Za-z0-9_-]{50,}"),
    TokenShape("digitalocean token", r"do[opr]_v1_[0-9a-f]{64}"),
    TokenShape("scaleway key", r"SCW[A-Z0-9]{17}"),
    TokenShape("heroku key", r"HRKU-[A-Za-z0-9_-]{36,}"),
    TokenShape("netlify token", r"nf[pcu]_[A-Za-z0-9]{36,}"),
    TokenShape("vercel token", r"vc[aikpr]_[A-Za-z0-9]{40,}"),
    TokenShape("cloudflare token", r"cf(?:k|ut|at)_[A-Za-z0-9]{40,}|v1\.0-[0-9a-f]{24}-[0-9a-f]{146}"),
    TokenShape("fly token", r"(?:fm[12]_|fo1_)[A-Za-z0-9+/=_-]{30,}"),
    TokenShape("render key", r"rnd_[A-Za-z0-9]{28,}"),
    TokenShape("supabase key", r"sbp_[0-9a-f]{40}|sb_secret_[A-Za-z0-9_-]{20,}"),
    TokenShape("planetscale token", r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9_.=-]{30,}"),
    TokenShape("neon key", r"npg_[A-Za-z0-9]{10,}|napi_[a-z0-9]{40,}"),
    TokenShape("databricks token", r"dapi[0-9a-f]{32}(?:-[0-9])?"),
    TokenShape("vault token", r"hv[sbr]\.[A-Za-z0-9_-]{24,}"),
    TokenShape("terraform token", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_-]{60,}"),
    TokenShape("pulumi token", r"pul-[0-9a-f]{40}"),
    TokenShape("doppler token", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9_.-]{40,}"),
    TokenShape("onepassword token", r"ops_eyJ[A-Za-z0-9+/=_-]{100,}|A3-[A-Z0-9]{6}(?:-[A-Z0-9]{5,11}){4,5}"),
    TokenShape("age key", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    TokenShape("tailscale key", r"tskey-[a-z]+-[A-Za-z0-9-]{16,}"),
    # Code. GitHub "token formats", GitLab "token prefixes", registries of packages.
    TokenShape("github token", r"gh[pour]_[A-Za-z0-9]{30,255}|ghs_[A-Za-z0-9._-]{30,}|github_pat_[A-Za-z0-9_]{40,}"),
    TokenShape(
        "gitlab token",
        r"gl(?:pat|dt|rt|rtr|cbt|ptt|ft|imt|agent|oas|soat|ffct|wt)-[A-Za-z0-9_.-]{20,}|GR1348941[A-Za-z0-9_-]{20,}",
    ),
    TokenShape("bitbucket token", r"ATBB[A-Za-z0-9]{28,}"),
    TokenShape("atlassian token", r"AT[AC]TT3[A-Za-z0-9_=-]{60,}"),
    TokenShape("npm token", r"npm_[A-Za-z0-9]{36}"),
    TokenShape("pypi token", r"pypi-[A-Za-z0-9_-]{50,}"),
    TokenShape("rubygems key", r"rubygems_[0-9a-f]{48}"),
    TokenShape("nuget key", r"oy2[a-z0-9]{43}"),
    TokenShape("crates token", r"cio[A-Za-z0-9]{32}"),
    TokenShape("clojars token", r"CLOJARS_[a-z0-9]{60}"),
    TokenShape("docker token", r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}"),
    TokenShape("artifactory token", r"AKC[A-Za-z0-9]{60,}|cmVmdGtu[A-Za-z0-9]{50,}"),
    TokenShape("circleci token", r"CCI(?:PAT|PRJ)_[A-Za-z0-9_]{30,}"),
    TokenShape("buildkite token", r"bk(?:ua|aj|ct)_[A-Za-z0-9]{32,}"),
    TokenShape("sonar token", r"sq[apu]_[0-9a-f]{40}"),
    # Payment.
    TokenShape("stripe key", r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{16,}"),
    TokenShape("webhook secret", r"whsec_[A-Za-z0-9+/=_-]{24,}"),
    TokenShape("square token", r"sq0(?:atp|csp)-[A-Za-z0-9_-]{22,}|EAAA[A-Za-z0-9_-]{60}"),
    TokenShape("shopify token", r"shp(?:at|ca|pa|ss|ua|tka)_[A-Fa-f0-9]{32}"),
    TokenShape("paypal token", r"access_token\$(?:production|sandbox)\$[0-9a-z]{16}\$[0-9a-f]{32}"),
    TokenShape("plaid token", r"access-(?:sandbox|development|production)-[0-9a-f]{8}-[0-9a-f-]{27}"),
    TokenShape("razorpay key", r"rzp_(?:live|test)_[A-Za-z0-9]{14,}"),
    TokenShape("flutterwave key", r"FLWSECK(?:_TEST)?-[A-Za-z0-9]{12,}(?:-X)?"),
    # Messages and mail.
    TokenShape("slack token", r"xox[abeoprs](?:\.xox[bp])?-[A-Za-z0-9-]{10,}|xapp-[0-9]-[A-Za-z0-9-]{20,}"),
    TokenShape(
        "slack webhook", r"hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)/[A-Za-z0-9_]+/[A-Za-z0-9_/]{10,}"
    ),
    TokenShape("discord token", r"[MNO][A-Za-z0-9_-]{23,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,}"),
    TokenShape("discord webhook", r"discord(?:app)?\.com/api/webhooks/[0-9]{15,}/[A-Za-z0-9_-]{50,}"),
    TokenShape("telegram token", r"(?:bot)?[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    TokenShape("twilio key", r"SK[0-9a-f]{32}"),
    TokenShape("sendgrid key", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{16,64}"),
    TokenShape("mailgun key", r"key-[0-9a-f]{32}"),
    TokenShape("mailchimp key", r"[0-9a-f]{32}-us[0-9]{1,2}"),
    TokenShape("brevo key", r"xkeysib-[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    TokenShape("resend key", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}"),
    TokenShape("facebook token", r"EAA[A-Za-z0-9]{80,}"),
    TokenShape("twitter token", r"AAAAAAAAAAAAAAAAAAAAA[A-Za-z0-9]{2,30}%2[BF][A-Za-z0-9%]{30,}"),
    # Work.
    TokenShape("linear key", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    TokenShape("notion token", r"ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}"),
    TokenShape("airtable token", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    TokenShape("figma token", r"fig[dour]_[A-Za-z0-9_-]{40,}"),
    TokenShape("dropbox token", r"sl\.(?:u\.)?[A-Za-z0-9_-]{100,}"),
    TokenShape("hubspot token", r"pat-(?:na|eu)[0-9]-[0-9a-f]{8}-[0-9a-f-]{27}"),
    TokenShape("postman key", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    TokenShape("typeform token", r"tfp_[A-Za-z0-9_.=-]{40,}"),
    TokenShape("contentful token", r"CFPAT-[A-Za-z0-9_-]{40,}"),
    TokenShape("mapbox token", r"sk\.eyJ[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{16,}"),
    TokenShape("prefect key", r"pn[ub]_[A-Za-z0-9]{36}"),
    # Observation.
    TokenShape("grafana token", r"glsa_[A-Za-z0-9]{32}_[0-9a-f]{8}|glc_eyJ[A-Za-z0-9+/=]{40,}"),
    TokenShape("sentry token", r"sntrys_eyJ[A-Za-z0-9+/=_-]{40,}|sntryu_[0-9a-f]{64}"),
    TokenShape("new relic key", r"NR(?:AK|II|JS|IQ)-[A-Za-z0-9_-]{19,}"),
    TokenShape("honeycomb key", r"hc[abx](?:ik|lk|mk)_[A-Za-z0-9]{40,}"),
    TokenShape("dynatrace token", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{8,}\.[A-Z0-9]{40,}"),
    TokenShape("posthog key", r"phx_[A-Za-z0-9]{40,}"),
    # Of no vendor.
    TokenShape("jwt", _JWT),
    TokenShape(
        "password hash",
        r"\$(?:1|5|6|7|y|2[abxy]|apr1|argon2(?:id?|d)|scrypt|pbkdf2[a-z0-9-]*)\$[A-Za-z0-9./$=,+_-]{20,}",
    ),
)
"""A longer beginning before a shorter one: the first shape that a token has names its kind."""

TOKEN: Final = rf"(?:^|\b|\\[nrt]|[^A-Za-z0-9])({'|'.join(f'(?:{shape.pattern})' for shape in TOKENS)})"
AWS_PAIR: Final = (
    r"(?:AKIA|ASIA)[A-Z2-7]{16}[^A-Za-z0-9/+]+(?:[A-Za-z_]{3,20}[^A-Za-z0-9/+]+){0,4}([A-Za-z0-9/+]{40})\b"
)
"""The secret key that comes with an access key's id, as in a credentials file."""

_LINE: Final = r"(?:\s|\\{1,4}[nrt]|[>|#*\"',+])"
_BASE64: Final = r"[A-Za-z0-9+/=]"
PEM: Final = (
    r"(-{4,5} ?BEGIN (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5}"
    rf"(?:{_LINE}|(?:Proc-Type|DEK-Info|Comment|Version|Subject|Hash): ?[^\n\\]*|{_BASE64}{{16,}})*"
    rf"(?:(?:{_BASE64}{{1,15}}{_LINE}*)?"
    r"-{4,5} ?END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5})?)"
)
"""A private key of RFC 7468, OpenSSH or OpenPGP, its lines broken, escaped or quoted; without its end if it was cut."""
PEM_END: Final = (
    rf"((?:{_BASE64}{{16,}}{_LINE}+)*{_BASE64}{{4,}}{_LINE}*"
    r"-{4,5} ?END (?:[A-Z0-9]+ ){0,4}PRIVATE KEY(?: BLOCK)? ?-{4,5})"
)
"""The rest of one whose beginning was cut."""
PEM_BASE64: Final = (
    r"(LS0tLS1CRUdJTi(?:BSU0EgUFJJVkFURSBLRVk|BQUklWQVRFIEtFWS|BFQyBQUklWQVRFIEtFWS|BPUEVOU1NIIFBSSVZBVEUgS0VZ|"
    r"BFTkNSWVBURUQgUFJJVkFURSBLRVk)[A-Za-z0-9+/=]*)"
)
"""One in base64, as in a kubeconfig."""
PUTTY: Final = (
    r"Private-(?:Lines|MAC|Hash): ?[0-9a-f]+((?:\s|\\{1,4}[nrt])*(?:[A-Za-z0-9+/=]{40,}(?:\s|\\{1,4}[nrt])*)*)"
)

URL_USERINFO: Final = r"(?i)\b[a-z][a-z0-9+.-]{1,30}://[^\s:/?#@\"'<>`]*:([^\s\"'<>`/]+)@"
"""`scheme://user:password@host`, RFC 3986, 3.2.1; a password may have the marks that should have been escaped."""
URL_USER: Final = r"(?i)\b(?:https?|git|ftp)://([A-Za-z0-9_.-]{20,})@"
"""A token in the place of the user."""
ORACLE: Final = r"(?i)(?:jdbc:oracle:\w+:|sqlplus\s+(?:-\w+\s+)*)[A-Za-z]\w*/([^\s@\"'/]+)@"
QUERY: Final = (
    r"(?i)[?&;](?:[a-z0-9_.-]*(?:token|secret|password|passwd|pwd|api_?key|apikey|access_?key|signature|credential)|"
    r"sig|key|auth|jwt|sid|session|code|x-amz-security-token)=([^&\s\"'<>#`\\\])}]{6,})"
)
"""Credentials in the query of an address."""

_SCHEME: Final = r"(?:bearer|basic|token|apikey|api-key|digest|negotiate|ssws|sso-key|bot|key|splunk|genie-?key)"
AUTHORIZATION: Final = (
    rf"(?i)\bauthorization(?:\\*[\"'`])?\]?\s*(?:[:=,]|=>)\s*(?:\\*[\"'`])?\s*(?:{_SCHEME}\s+)?"
    r"([^\s\"'`,;\\<>{}$%()\[\]][^\s\"'`,;\\<>{}()\[\]]{5,})"
)
BEARER: Final = r"(?i)\b(?:bearer|basic)\s+([a-z0-9._~+/-]{12,}=*)"
"""What RFC 6750 and 7617 put into a header, wherever it is quoted."""
COOKIE: Final = (
    r"(?i)\b[a-z0-9_.-]*(?:sess(?:ion)?(?:[_-]?id)?|sessid|auth|jwt|csrf|xsrf|remember)[a-z0-9_.-]*="
    r"([a-z0-9%._~+/=-]{16,})"
)

CARD: Final = r"(?:^|[^0-9A-Za-z_.,/-])((?:[0-9][ -]?){12,18}[0-9])(?:$|[^0-9A-Za-z_])"

_WORD_NAME: Final = r"passw(?:or)?d|passphrase|passcode|pwd|pswd|kennwort|passwort|contrase(?:ñ|n)a|senha|mot_de_passe"
_KEY_NAME: Final = (
    r"secret|token|api[_.-]?key|access[_.-]?key|secret[_.-]?(?:access[_.-]?)?key|private[_.-]?key|auth[_.-]?key|"
    r"account[_.-]?key|shared[_.-]?access[_.-]?key|encryption[_.-]?key|signing[_.-]?key|master[_.-]?key|"
    r"storage[_.-]?key|subscription[_.-]?key|service[_.-]?key|app[_.-]?key|admin[_.-]?key|function[_.-]?key|"
    r"license[_.-]?key|preshared[_.-]?key|session[_.-]?(?:id|key)|credentials?|"
    r"sas|hmac|webhook[_.-]?url"
)
NAME: Final = (
    rf"(?:[a-z0-9_.-]*(?:{_WORD_NAME}|{_KEY_NAME})|\b(?:[a-z0-9_.-]*[_.-])?(?:pass|pw|psk|auth))"
    r"(?:[_.-]?(?:value|b64|base64|prod|production|dev|staging|test|live|old|new|current|v?[0-9]{1,2}))?"
)
"""Names whose value is a credential, by their last word."""
_QUOTED: Final = r"\\*\"(?P<double>[^\"\n]*?)\\*\"|\\*'(?P<single>[^'\n]*?)\\*'|`(?P<tick>[^`\n]*)`"
ASSIGNED: Final = (
    rf"(?i)(?P<name>{NAME})(?:\\*[\"'`])?[\])]?(?P<sign>\s*(?:=>|:=|={{1,3}}|:)\s*|\s*,\s*\\*[\"'])"
    rf"(?:[bruf@]?(?:{_QUOTED})|(?P<bare>(?:[^\s\"'`\\]|\\[^nrt\"'`\\\s])+)|(?P<rest>\\*[\"'][^\"'\n]*))"
)
LISTED: Final = (
    rf"(?i)\bname\\*[\"']?\s*[:=]\s*\\*[\"']?(?P<name>{NAME})\\*[\"']?\s*,?(?:\s|\\n)*\\*[\"']?value\\*[\"']?\s*[:=]\s*"
    rf"(?:{_QUOTED}|(?P<bare>[^\s\"'`\\,}}]+))"
)
"""A variable of a container: its name in one field, its value in the next."""
FLAG: Final = (
    rf"(?i)(?:^|[\s\"'`(\[])--?(?P<name>{NAME})(?:\\*[\"'],?)?\s+(?:{_QUOTED}|(?P<bare>[^\s\"'`\\-][^\s\"'`\\]*))"
)
COMMAND: Final = (
    r"(?i)\b(?:mysql|mysqldump|mysqladmin|mariadb|mariadb-dump)\b[^\n|;]*?\s-p([^\s\"'`\\|;]{3,})|"
    r"\bsshpass\s+-p\s*[\"']?([^\s\"'`\\]{3,})|"
    r"\b(?:curl|wget|http)\b[^\n|;]*?\s(?:-u|--user)[\s=]+[\"']?[^\s:\"'`\\/]+:([^\s\"'`\\]{3,})|"
    r"\b(?:docker|podman|helm|oc|az|skopeo|nerdctl)\b[^\n|;]*?\slogin\b[^\n|;]*?\s-p[\s=]+[\"']?([^\s\"'`\\]{3,})|"
    r"\bredis-cli\b[^\n|;]*?\s-a\s+[\"']?([^\s\"'`\\]{3,})|"
    r"\bidentified\s+(?:with\s+\w+\s+)?by\s+\\*[\"']([^\"'\n\\]{3,})|"
    r"\b(?:encrypted\s+)?password\s+\\*'([^'\n\\]{3,})|"
    r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+(\S+)|"
    r"\b\d{2,5}:[\w*-]+:[\w.*-]+:([^\s:\\]{3,})(?:\s|$)|"
    r"\bsudo\s+-S\s+<<<\s*[\"']?([^\s\"'`\\]{3,})|"
    r"\becho\s+[\"']?([^\s\"'`\\|]{3,})[\"']?\s*\|\s*(?:sudo\s+-S|docker\s+login|passwd)"
)
"""Passwords where commands and files take them: MySQL, sshpass, curl, registries, Redis, SQL, .netrc, .pgpass."""
TAGGED: Final = rf"(?i)<(?P<name>{NAME})(?:\s[^<>]*)?>\s*(?P<bare>[^<>\s]+)\s*</"
CELL: Final = rf"(?im)\|\s*[`*]*(?P<name>{NAME})[`*]*\s*\|\s*`?(?P<bare>[^|\s`]+)`?\s*\|"
_SUBJECT: Final = (
    r"pass ?word|pass ?phrase|pass ?code|pwd|kennwort|passwort|mot de passe|wachtwoord|contrase(?:ñ|n)a|senha|has[lł]o|"
    r"parola|l(?:ö|o)senord|(?P<key>(?:api|access|secret|private|license|encryption)[ -]key|"
    r"(?:access |auth |bearer |api |secret )?token|client secret|secret)"
)
_SAID: Final = (
    r"(?:[\"“„«](?P<double>[^\"”“»\n]{3,80})[\"”“»]|'(?P<single>[^'\n]{3,80})'|[*]{0,2}`(?P<tick>[^`\n]{3,200})`|"
    r"(?P<bare>[^\s\"'`“”]+))"
)
PROSE: Final = (
    rf"(?i)\b(?:{_SUBJECT})(?:[ ][a-z0-9@._'-]{{1,40}}){{0,7}}?"
    rf"(?:\s*(?:[:=]|->|→)|[ ](?:is now|is|was|ist|lautet|est|es|é|è|jest|är):?)\s+{_SAID}"
)
"""What people write: "the password for the console is …"."""
PROSE_NEXT: Final = rf"(?i)\b(?:{_SUBJECT})(?:[ ]to)?[ \t]+{_SAID}"
"""The same without a verb: "log in with the password …"."""
LOGIN: Final = (
    r"(?i)\b(?:credentials?|log ?in|sign ?in|anmeldung|zugangsdaten)(?: [a-z]{1,12}){0,3}?"
    r"(?:[:=]| is| are| with| as| mit)\s+[^\s:/]{1,60}(?:\s*[:/]\s*|\s+and\s+)[\"'`]?([^\s\"'`]{6,80})"
)
"""A user and a password beside each other: "log in with admin / …"."""
PROSE_UNSPACED: Final = (
    r"(?:пароль|парол[ья]|ключ|токен|密码|密碼|口令|パスワード|暗証番号|비밀번호|암호|密钥|金鑰|"
    r"令牌|トークン|토큰|"
    r"رمز|كلمة المرور|סיסמה|סיסמא|पासवर्ड|รหัสผ่าน|mật khẩu|κωδικός)"
    r"(?:[ \t][^\s:\x{ff1a}=]{1,20}){0,3}?[ \t]*"
    r"(?:[:\x{ff1a}=]|это|-|—|是|为|為|は|が|은|는|هو|هي|है|คือ|là|είναι)?[ \t]*"
    r"[「『\"“`'«]?([!-~]{4,})"
)
"""The same where words are of other scripts; a password is in ASCII."""
