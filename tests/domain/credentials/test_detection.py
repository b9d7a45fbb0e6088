"""Credentials are found by their shapes, and what only looks like them is not."""

from __future__ import annotations

import base64
import json
import random
import time
import uuid

import pytest

from compaction.credentials.detection import find_secrets, is_secret_field, is_secret_flag
from tests.domain.credentials.samples import (
    AWS_SECRET,
    BODY,
    CARD,
    JWT,
    PASSWORD,
    PEM,
    RSA,
    TOKENS,
    hexadecimal,
    mixed,
)


def values(text: str) -> list[str]:
    return [text[found.start : found.end] for found in find_secrets(text)]


@pytest.mark.parametrize("kind", TOKENS)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "TOKEN={}",
        'curl -H "x: {}"',
        "ключ {} здесь",
        "密钥\uff1a{}。",
        "a\n{}\nb",
        r"out\n{}\nnext",
        '{{"k": "{}"}}',
        "({})",
    ],
)
def test_a_token_is_found_whole_whatever_stands_around_it(kind: str, around: str) -> None:
    text = around.format(TOKENS[kind])
    (found,) = find_secrets(text)
    assert (found.kind, text[found.start : found.end]) == (kind, TOKENS[kind])


STRONG = "q9Zr-Lm27xWv"
PLACES = {
    "environment": f"PATH=/usr/bin\nDB_PASSWORD={STRONG}\nHOME=/root",
    "export": f"export PGPASSWORD='{STRONG}'",
    "a plain word in the environment": "x\nPOSTGRES_PASSWORD=swordfish\n",
    "yaml": f"database:\n  password: {STRONG}\n  host: db",
    "json": json.dumps({"user": "app", "password": STRONG, "port": 5432}),
    "json in json": json.dumps({"stdout": json.dumps({"password": STRONG})}),
    "json twice in json": json.dumps(json.dumps(json.dumps({"api_key": mixed(24)}))),
    "lines in json": json.dumps({"stdout": f"A=1\nSECRET_KEY={STRONG}\nB=2"}),
    "python": f'password = "{STRONG}"',
    "a word in python": 'password = "swordfish"',
    "go": f'dbPassword := "{STRONG}"',
    "php": f"define('DB_PASSWORD', '{STRONG}');",
    "ruby": f":password => '{STRONG}'",
    "os.environ": f'os.environ["API_TOKEN"] = "{mixed(20)}"',
    "properties": f"spring.datasource.password={STRONG}",
    "dotnet": f"Server=db;Database=x;User Id=sa;Password={STRONG};Encrypt=true",
    "azure": f"DefaultEndpointsProtocol=https;AccountName=x;AccountKey={base64.b64encode(bytes(range(64))).decode()};",
    "xml": f"<password>{STRONG}</password>",
    "table": f"| user | password |\n|---|---|\n| password | {STRONG} |",
    "flag": f"mysqldump --password {STRONG} db",
    "flag with a sign": f"tool --api-key={mixed(24)} run",
    "mysql": f"mysql -h db -u root -p{STRONG} app",
    "sshpass": f"sshpass -p '{STRONG}' ssh root@h",
    "curl": f"curl -u admin:{STRONG} https://h/x",
    "sql": f"CREATE USER app WITH PASSWORD '{STRONG}';",
    "identified by": f"CREATE USER a IDENTIFIED BY '{STRONG}';",
    "netrc": f"machine h.example login bob password {STRONG}",
    "pgpass": f"db.example:5432:app:bob:{STRONG}",
    "container": json.dumps([{"name": "DB_PASSWORD", "value": STRONG}]),
    "pod": f"- name: DB_PASSWORD\n  value: {STRONG}\n",
    "kubernetes secret": f"data:\n  password: {base64.b64encode(STRONG.encode()).decode()}\n",
    "bearer": f"Authorization: Bearer {mixed(32)}",
    "basic": f"Authorization: Basic {base64.b64encode(b'bob:q9Zr-Lm27').decode()}",
    "header in json": json.dumps({"Authorization": f"Bearer {mixed(32)}"}),
    "own header": f"X-Api-Key: {mixed(32)}",
    "cookie": f"Set-Cookie: sessionid={mixed(32)}; Path=/",
    "address": f"https://h.example/cb?a=1&access_token={mixed(30)}&b=2",
    "fragment of an address": f"see https://h.example/?token={mixed(24)}#top",
    "user of an address": f"git clone https://{mixed(24)}@h.example/r.git",
    "aws": f"aws_access_key_id = x\naws_secret_access_key = {AWS_SECRET}",
    "npmrc": f"//registry.example/:_authToken={mixed(36)}",
    "registry": json.dumps({"auths": {"r.example": {"auth": base64.b64encode(b"bob:q9Zr-Lm27").decode()}}}),
    "bot": f"https://api.telegram.org/bot{TOKENS['telegram token']}/getMe",
    "signed address": f"https://b.s3.example/k?X-Amz-Expires=60&X-Amz-Signature={hexadecimal(64)}",
    "presigned bus": f"Endpoint=sb://x/;SharedAccessKey={base64.b64encode(bytes(range(32))).decode()};EntityPath=q",
    "hash": "root:$6$saltsalt$" + mixed(86) + ":19000:0:99999:7:::",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_value_is_found_where_files_and_commands_have_it(place: str) -> None:
    assert values(PLACES[place]), PLACES[place]


@pytest.mark.parametrize("place", [place for place, text in PLACES.items() if STRONG in text])
def test_such_a_value_is_found_whole(place: str) -> None:
    assert STRONG in values(PLACES[place])


@pytest.mark.parametrize(
    "scheme",
    [
        *(
            "postgres",
            "postgresql+asyncpg",
            "mysql",
            "mysql+pymysql",
            "mongodb",
            "mongodb+srv",
            "redis",
            "rediss",
            "amqp",
        ),
        *(
            "amqps",
            "ftp",
            "sftp",
            "http",
            "https",
            "smtp",
            "ldap",
            "mssql",
            "clickhouse",
            "nats",
            "jdbc:postgresql",
            "ssh",
        ),
    ],
)
@pytest.mark.parametrize("password", ["s3cr3tpw", "p@ss:w0rd", "swordfish", "a%40b!c$d", "5432"])
def test_the_password_of_an_address_is_found_and_no_more(scheme: str, password: str) -> None:
    text = f"url {scheme}://app:{password}@db.internal:5432/app?sslmode=require"
    assert values(text) == [password]


def test_an_address_without_user_has_a_password_too() -> None:
    assert values("redis://:s3cr3tpw@cache:6379/0") == ["s3cr3tpw"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"From now on always log in with the password {PASSWORD}.", PASSWORD),
        (f"The password is {PASSWORD}.", PASSWORD),
        ("The password is hunter22", "hunter22"),
        (f"my password: {PASSWORD}", PASSWORD),
        (f"The password for the admin console is `{PASSWORD}`, use it.", PASSWORD),
        ("Use the password 'swordfish' there.", "swordfish"),
        (f"Das Passwort lautet {PASSWORD}.", PASSWORD),
        (f"le mot de passe est {PASSWORD}", PASSWORD),
        (f"La contraseña es {PASSWORD}", PASSWORD),
        (f"Hasło: {PASSWORD}", PASSWORD),
        (f"пароль: {PASSWORD}", PASSWORD),
        (f"密码是{PASSWORD}。", PASSWORD),
        (f"パスワードは{PASSWORD}です", PASSWORD),
        (f"log in with admin / {PASSWORD}", PASSWORD),
        (f"The credentials are admin:{PASSWORD}.", PASSWORD),
        (f"пароль от базы: {PASSWORD}", PASSWORD),
        (f"كلمة المرور هي {PASSWORD}", PASSWORD),
        (f"The API key is {mixed(20)}.", mixed(20)),
        (f"Here is the access token: {mixed(20)}", mixed(20)),
    ],
)
def test_what_people_call_a_password_is_found(text: str, value: str) -> None:
    assert values(text) == [value]


@pytest.mark.parametrize("key", [PEM, RSA, PEM.replace(" PRIVATE", " OPENSSH PRIVATE"), PEM.replace("\n", r"\n")])
def test_a_private_key_is_found_over_all_of_its_lines(key: str) -> None:
    assert values(f"Here is it:\n{key}\nThanks.") == [key]


def test_a_private_key_is_found_in_json_and_indented_and_encrypted() -> None:
    for text in (
        json.dumps({"private_key": PEM}),
        json.dumps(json.dumps({"private_key": PEM})),
        "key: |\n" + "\n".join(f"    {line}" for line in PEM.split("\n")),
        RSA.replace("KEY-----\n", "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,AB12\n\n", 1),
    ):
        kept = text
        for value in values(text):
            kept = kept.replace(value, "")
        assert BODY[:20] not in kept


@pytest.mark.parametrize("cut", [60, 150, 300])
def test_what_a_cut_left_of_a_private_key_is_found(cut: int) -> None:
    for half in (PEM[:cut], PEM[cut:]):
        (value,) = values(f"{half}\nand more")
        assert "more" not in value
        assert len(half.replace(value, "")) < 16


def test_a_private_key_of_a_kubeconfig_is_found_and_a_certificate_is_not() -> None:
    key, certificate = (
        base64.b64encode(f"-----BEGIN {what}-----\n{BODY}".encode()).decode()
        for what in ("RSA PRIVATE KEY", "CERTIFICATE")
    )
    assert values(f"client-certificate-data: {certificate}\nclient-key-data: {key}\n") == [key]


@pytest.mark.parametrize(
    "number",
    [
        "4111111111111111",
        CARD,
        "4111-1111-1111-1111",
        "378282246310005",
        "5555555555554444",
        "6011111111111117",
        "2223003122003222",
    ],
)
@pytest.mark.parametrize("around", ["My card is {}.", "{}", '{{"card_number": "{}"}}', "カード{}です"])
def test_a_card_number_is_found(number: str, around: str) -> None:
    assert values(around.format(number)) == [number]


HARMLESS = [
    "4111111111111112",
    "order 4111111111111111",
    "tracking number: 4111111111111111",
    "0.4111111111111111",
    "id_4111111111111111",
    "1700000000000 1700000000000000",
    "password: str",
    "def login(user: str, password: str | None = None) -> None:",
    "password = request.form['password']",
    "password = get_password()",
    "self.password = password",
    "token = tokens[0]",
    "password=$DB_PASSWORD",
    "password: ${{ secrets.DB_PASSWORD }}",
    "api_key=<your-api-key>",
    "API_KEY=your_api_key_here",
    "password: ********",
    "password=[REDACTED]",
    "max_tokens: 4096",
    '"total_tokens": 123456789',
    'next_page_token: "CAUQAA12345678"',
    "pad_token = '<pad>'",
    "the password is required",
    "Your password is incorrect, please try again.",
    "I forgot my password yesterday",
    "password reset for the user at 10:30",
    "hash the password with sha256 or bcrypt",
    "Bearer token authentication",
    "the secret to success is patience",
    "tokens per second: 1234.5",
    "http://localhost:3000/users/@me",
    "http://h.example:8080?mail=a@b.example",
    "git@github.com:owner/repository.git",
    "ssh://git@h.example/r.git",
    "mailto:bob@h.example",
    "commit 3f9c1e7ab04d58623f9c1e7ab04d58623f9c1e7a",
    "sha512-" + base64.b64encode(bytes(range(64))).decode(),
    "reservation HATHAT for user mia_li_3668, payment credit_card_4421486",
    "sk-loading-spinner-container sk-fading-circle",
    "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----",
    "-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIU\n-----END CERTIFICATE-----",
    "compass: Xk7#pQ9z",
    "bypass=Xk7#pQ9z",
    "passport: AB1234567",
    "token: localStorage.getItem('token')",
    "token_type: bearer",
    "idempotency-key: 3f9c1e7a-b04d-5862-9c1e-7ab04d5862ff",
    "hash: 5f4dcc3b5aa765d61d8327deb882cf99",
    "secretKeyRef:\n  name: db\n  key: password",
    "keyboard: qwerty12345",
    'primary_key = "abc12345def"',
    "[secret: aws key, m12]",
    "password=[secret: password, m12]",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_no_credential_is_left_alone(text: str) -> None:
    assert values(text) == []


def test_identifiers_are_no_credentials() -> None:
    draw = random.Random(7)  # noqa: S311 - the same every time
    names = ["id", "order", "reservation", "commit", "trace_id", "sha256", "etag", "cursor", "user", "build"]
    for number in range(2_000):
        made = [
            str(uuid.UUID(int=draw.getrandbits(128))),
            f"{draw.getrandbits(160):040x}",
            f"{draw.getrandbits(256):064x}",
            str(draw.randrange(10**9, 10**12)),
            "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=6)),
            f"#W{draw.randrange(10**7)}",
            f"toolu_01{mixed(22)}",
            f"req_{hexadecimal(24)}",
            str(int(time.time() * 1000)),
        ]
        name = names[number % len(names)]
        text = "\n".join([f"{name}: {each}" for each in made] + [f"{name} {each} and so on" for each in made])
        assert values(text) == []


def test_fields_and_flags_are_known_by_their_names() -> None:
    assert is_secret_field("password", "swordfish") == "password"
    assert is_secret_field("apiKey", mixed(20)) == "api key"
    assert is_secret_flag("--password", "swordfish") == "password"
    assert is_secret_field("password", "string") is None
    assert is_secret_field("max_tokens", "4096") is None
    assert is_secret_field("title", "swordfish") is None


def test_half_of_a_surrogate_pair_is_no_obstacle() -> None:
    text = f"\ud800 é {JWT}"
    (found,) = find_secrets(text)
    assert text[found.start : found.end] == JWT


@pytest.mark.parametrize(
    "unit",
    [
        "password password ",
        f"-----BEGIN {'PRIVATE KEY'}-----\n",
        "://a:",
        "eyJ",
        "a=",
        "\\n\\\\n",
        "4111 1111 ",
        "\"'`",
        "sk-a-a-a-",
        "AKIA",
    ],
)
def test_the_time_is_linear_in_the_text(unit: str) -> None:
    def seconds(times: int) -> float:
        text = unit * (times // len(unit))
        start = time.process_time()
        find_secrets(text)
        return time.process_time() - start

    seconds(20_000)
    assert seconds(800_000) < 40 * max(seconds(100_000), 0.02)
