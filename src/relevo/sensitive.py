"""What must not travel: secrets known by their name, secrets known by their look, and binary.

Refused is what is surely a secret. Names decide together with values: `cvc_check: "pass"`,
`secret: "********"` and `pass: 3` are business, and a queue that refuses one honest event in a
thousand is worse than none.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterator
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from relevo.vendor_keys import FOLD, KEY, holds_key, may_hold_key, without_escapes

BLOB = 4_096
"""From this length on, text that is all base64 or hexadecimal is taken for binary."""

SEND_ID = "send an id and look it up when the job runs"
SEND_TOKEN = "send the payment provider's token for it"  # noqa: S105 - advice, not a token
SEND_URL = "send a signed storage URL"


class Leak(NamedTuple):
    """Something in a text that must not travel: what it is, what to send instead, and where."""

    what: str
    instead: str
    start: int
    end: int

    @property
    def is_bulk(self) -> bool:
        """Whether it is no secret, only too much to travel."""
        return self.instead == SEND_URL


# Names


def _word(text: str) -> str:
    """A word without its plural."""
    return text[:-1] if len(text) > 3 and text[-1] == "s" != text[-2] else text


def _set(text: str) -> frozenset[str]:
    return frozenset(map(_word, text.split()))


class Holds(StrEnum):
    """What a field holds by its name; each is judged by other values."""

    PASSWORD = "a password"  # noqa: S105 - a kind, not a password
    KEY = "a key"
    SECRET = "a secret"  # noqa: S105 - a kind too; honest fields have the name as well
    CODE = "a security code"
    CARD = "a card number"
    HEADER = "a header that authorizes"
    MAYBE = "perhaps a secret"  # an ordinary word, and a password in other programs


# Wherever it stands in the name, unless the name is that of a reference.
_ANYWHERE = {
    Holds.PASSWORD: _set(
        "password passwd pwd passphrase passcode passwort contrasena contrasenia contrasenya "
        "senha mnemonic"
    ),
    Holds.SECRET: _set("secret clientsecret"),
    Holds.KEY: _set("apikey accesstoken refreshtoken privatekey"),
    Holds.CODE: _set("cvv cvc cvn"),
    Holds.CARD: _set("cardnumber creditcardnumber numerotarjeta"),
}
# Only when it is the whole name: these are ordinary words beside others.
_WHOLE = {
    Holds.MAYBE: _set("pass pin nip clave"),
    Holds.CARD: _set("pan tarjeta cartao"),
}
# Only at the end, as headers are named.
_LAST = _set("authorization")
# Two neighbouring words that are a secret together.
_PAIRS = {
    Holds.KEY: _set(
        "apikey privatekey secretkey accesskey signingkey encryptionkey sshkey masterkey "
        "accesstoken refreshtoken authtoken bearertoken sessiontoken apitoken oauthtoken bottoken "
        "securitytoken tokenacceso accountkey sharedkey hmackey recoverycode backupcode "
        "claveapi claveprivada"
    ),
    Holds.PASSWORD: _set(
        "password passphrase motpasse claveacceso clavesecreta claveusuario nuevaclave "
        "clavenueva seedphrase recoveryphrase"
    ),
    Holds.CODE: _set("securitycode codigoseguridad cardpin userpin pinnumber accountpin"),
    Holds.CARD: _set(
        "cardnumber cardnum cardpan ccnumber ccnum pannumber numerotarjeta tarjetanumero "
        "numtarjeta nrotarjeta tarjetacredito tarjetadebito datostarjeta numerocartao "
        "cartaonumero cartaocredito"
    ),
}
# Cards that pay for nothing.
_OTHER_CARDS = _set(
    "gift loyalty member membership sim boarding library business regalo embarque fidelidad visita"
)
# What a name ends, or begins, with when it tells about a secret instead of holding it.
_TELLS_LAST = _set(
    "id uid uuid ref reference referencia at on date fecha until expiry expire expired expiration "
    "ttl age count length size type kind tipo brand marca last status state estado policy version "
    "name nombre alias arn path required enabled change changed reset updated rotated rotation "
    "valid verified strength attempt hint masked mask fingerprint prefix suffix holder titular "
    "template check checked result response match matched scanning scan protection validity "
    "detected found leaked bypass bypassed alert location resolution option setting rule label "
    "title description note url uri link href page form flow method provider manager source event "
    "action mode level score bin iin network issuer country funding wallet category"
)
_TELLS_FIRST = _set("has is needs requires tiene es id fecha tipo marca metodo pago masked")
_FILLERS = _set("de del la el los las do da of the mi su my your")
# Beneath a name that holds a secret, what a field may be called and still be that secret.
_ITSELF = _set(
    "value valor text texto data plain plaintext raw current currentvalue new old previous next "
    "primary secondary content number numero num"
)

# Ordinary words in a message. In what a provider answers, they hold what lets a caller in.
_SESSIONS = _set("token session cookie jwt auth credential bearer")

# A number under such a name is an order, a parcel or a moment; ids of Meta look like cards.
_NUMBER = _set(
    "id uid uuid order pedido orden folio ref reference referencia ean gtin upc sku isbn barcode "
    "imei iban clabe tracking guia timestamp ts ms us ns at invoice factura shipment parcel "
    "waybill serial confirmation tracknum psp phone mobile telefono whatsapp wa msisdn snowflake"
)
_VAGUE = _set("number numero num no nr code codigo value valor")
_CARD_WORDS = _set("card tarjeta cartao pan cc")

_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@lru_cache(4_096)
def _words(name: str) -> tuple[str, ...]:
    """The words of a name in any case, without accents, digits and plurals."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return tuple(_word(part.lower()) for part in _PARTS.findall(plain))


@lru_cache(4_096)
def _holds(name: str) -> Holds | None:
    every = _words(name)
    if not every or every[-1] in _TELLS_LAST or every[0] in _TELLS_FIRST:
        return None
    words = [word for word in every if word not in _FILLERS]
    whole = "".join(words)
    for kind, known in _WHOLE.items():
        if whole in known:
            return kind
    if words[-1:] and words[-1] in _LAST:
        return Holds.HEADER
    for kind, known in _ANYWHERE.items():
        if not known.isdisjoint(words):
            return kind
    if any(word.endswith(("password", "passwd", "contrasena")) for word in words):
        return Holds.PASSWORD
    if _OTHER_CARDS.intersection(words):
        return None
    pairs = {_word(a + b) for a, b in pairwise(words)}
    return next((kind for kind, known in _PAIRS.items() if not known.isdisjoint(pairs)), None)


def holds(name: str) -> Holds | None:
    """What a field of this name holds; `password_reset_id` and its like hold no secret."""
    return _holds(name[:128])  # a longer name only costs memory in the cache


def words(name: str) -> tuple[str, ...]:
    """The words of a name in lower case, without accents, digits and plurals."""
    return _words(name[:128])


def names_secret(name: str) -> bool:
    """Whether a field of this name holds a secret, or may hold one; for what people see."""
    return holds(name) is not None


def declares_secret(name: str) -> bool:
    """Whether a field of this name can hold nothing but a secret, whatever its value."""
    return holds(name) in (Holds.PASSWORD, Holds.KEY, Holds.CODE)


def names_session(name: str) -> bool:
    """Whether a field is called `token`, `session` or the like, and nothing more."""
    found = words(name)
    return len(found) == 1 and found[0] in _SESSIONS


def is_long_secret(text: str) -> bool:
    """Whether a text is long and without words, and no id with a prefix (`tok_1Nv0FGQ9RKHg`)."""
    text = text.strip()
    has_both = any(map(str.isdigit, text)) and any(map(str.isalpha, text))
    return (
        len(text) >= 16
        and has_both
        and " " not in text
        and not (
            _PREFIXED.match(text) or _REFERENCE.match(text) or _is_masked(text) or _is_word(text)
        )
    )


def beneath(name: str, above: Holds | None) -> Holds | None:
    """What a field holds that stands inside another one, which holds `above`."""
    if (kind := holds(name)) is not None or above is None:
        return kind
    return above if "".join(_words(name[:128])) in _ITSELF else None


def named(name: str, above: str) -> str:
    """The name of a field with that of the one it stands in, where its own says too little."""
    words = _words(name[:128])
    return f"{above}_{name}" if len(words) == 1 and words[0] in _VAGUE else name


def names_number(name: str) -> bool:
    """Whether long numbers are usual in a field of this name: orders, parcels, moments."""
    words = _words(name[:256])
    if not _OTHER_CARDS.isdisjoint(words):
        return True
    while len(words) > 1 and words[-1] in _VAGUE:
        words = words[:-1]
    return bool(words) and words[-1] in _NUMBER and _CARD_WORDS.isdisjoint(words)


# Values of fields that are named so

_MASK = re.compile(r"[*•●∙⬤█#]|(?<![A-Za-z])[xX]{3,}(?![A-Za-z])|\.{3,}|…")
_LETTERS = re.compile(r"[^\W\d_]+")
_PROSE = re.compile(r"[^\W\d_]+(?:[\s,.;:!?'’()-]+[\w']+){2,}[.!?)]*", re.UNICODE)
_CONSTANT = re.compile(r"[A-Z]+(?:_[A-Z]+)+", re.ASCII)
_REFERENCE = re.compile(
    r"arn:|projects/|op://|vault:|secrets?/|env:|ref:|file:|https?://|\$\{|\$[A-Z_]+\Z|\{\{|<[^>]*>\Z",
    re.I,
)
_SAYS = _set(
    "a able accept accepted activate activated active add added already an and any are attempt "
    "available bad basic be been bearer blank block blocked bypass can cannot change changed check "
    "checked clear closed code completed configured confirmed contain correct created current "
    "custom declined default delete deleted denied detected digest disable disabled do does done "
    "email empty enable enabled error exempted expire expired fail failed false filtered forgotten "
    "fulfilled generated good granted has have hidden hide in inactive incomplete incorrect "
    "invalid is issued it key known least locked long low manual masked match matched may medium "
    "minimum mismatch missing more must na new next no none normal not null of off ok old on only "
    "open optional or other out partial pass passed password pending pin please present processed "
    "protected provided public private read received redacted regenerated rejected remove removed "
    "renewed required requested reset resolved revoked rotated secret security see sent set short "
    "should skipped strong success succeeded supplied supported temporary the this to token too "
    "true unavailable unchanged unchecked undefined unknown unlocked unset unsupported unverified "
    "update updated used user valid validated value verification verified wa was weak will write "
    "wrong ye you your es campo debe obligatorio valido requerida requerido incorrecta incorrecto "
    "activo activa actualizada actualizado enviado oculto oculta"
)
_BAD_FIRST = re.compile(r"\s*(?:basic|bearer|digest|token|negotiate|aws4-\S+)\s+\S{3,}", re.I)


def _is_masked(text: str) -> bool:
    hidden = sum(len(found[0]) for found in _MASK.finditer(text))
    left = sum(c.isalnum() for c in _MASK.sub("", text))
    return hidden >= 2 and left <= 12


def _is_word(text: str) -> bool:
    """Whether it is a state or a sentence about a secret, such as `not_set`, and none itself."""
    if not text.isascii() and not _LETTERS.search(text):
        return True
    words = _words(text[:256])
    if not words:
        return False
    if any(c.isdigit() for c in text):
        # "is too short (minimum is 8 characters)"
        words = tuple(word for word in words if len(word) > 1)  # digits of hexadecimal are none
        return len(words) >= 4 and sum(word in _SAYS for word in words) * 2 >= len(words)
    return sum(word in _SAYS for word in words) * 3 >= len(words) * 2


def is_harmless(text: str) -> bool:
    """Whether it is surely no secret, whatever its field is called: masked, empty or a state."""
    text = text.strip()
    return not text or (len(text) <= 256 and (_is_masked(text) or _is_word(text)))


def _is_random(text: str) -> bool:
    """Whether a value without blanks mixes letters of both cases, digits and signs."""
    if not 8 <= len(text) <= 256 or any(c.isspace() for c in text) or _PREFIXED.match(text):
        return False
    kinds = (
        any(c.islower() for c in text),
        any(c.isupper() for c in text),
        any(c.isdigit() for c in text),
        any(c in "!@#$%^&*+=?~<>" for c in text),
    )
    return sum(kinds) >= 3


_PREFIXED = re.compile(r"[a-z]{2,12}_|[a-z]+://|[A-Z]{1,5}-")


def _is_secret_text(text: str, kind: Holds) -> bool:
    text = text.strip()
    if len(text) < 3 or _is_masked(text) or _REFERENCE.match(text):
        return False
    digits = sum(c.isdigit() for c in text)
    match kind:
        case Holds.CARD:
            return 12 <= digits <= 19 and digits + sum(c in " -./" for c in text) == len(text)
        case Holds.MAYBE:
            return _is_random(text)
        case Holds.CODE:
            return not _is_word(text)
        case Holds.HEADER:
            # The code that a bank authorizes a payment with is shorter.
            is_token = len(text) >= 10 and 0 < digits < len(text) and " " not in text
            is_token = is_token and _PREFIXED.match(text) is None
            return is_token or (_BAD_FIRST.match(text) is not None and not _is_word(text))
        case Holds.PASSWORD:
            # Longer numbers are those of invoices: the clave of Costa Rica has 50 digits.
            return len(text) >= 4 and not (digits == len(text) > 19) and not _is_word(text)
        case Holds.KEY | Holds.SECRET:
            if _is_word(text) or _CONSTANT.fullmatch(text) or digits == len(text) > 19:
                return False
            if " " in text and not digits:
                return _PROSE.fullmatch(text) is None
            return len(text) >= (6 if digits else 12)


_LEAST = {Holds.PASSWORD: 1_000, Holds.CODE: 100, Holds.CARD: 10**11}


def named_leak(value: str | int, kind: Holds) -> Leak | None:
    """The secret that a value is because its field is named so; None for what is surely none."""
    if isinstance(value, int):
        least = _LEAST.get(kind, 10**6)
        is_secret = kind not in (Holds.MAYBE, Holds.HEADER) and least <= value < 10**19
    else:
        is_secret = _is_secret_text(value, kind)
    return Leak("a secret by its name", SEND_ID, 0, len(str(value))) if is_secret else None


# Values

_CARD = re.compile(
    r"(?<![A-Za-z0-9_.+])(?<![A-Za-z0-9]-)"
    r"(?:[2-6]\d{13,18}"
    r"|[2-6]\d{3}([ ./\u00a0\u2009\u202f-])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?"
    r"|3\d{3}([ ./\u00a0\u2009\u202f-])\d{6}\2\d{4,5})"
    r"(?![A-Za-z0-9_])(?!-[A-Za-z0-9])(?!\.\d)",
    re.ASCII,
)
# What a magnetic stripe says, first and second track.
_TRACK = re.compile(r"%?[bB](\d{14,19})\^|(?<!\d)(\d{14,19})=\d{4}", re.ASCII)
# Brand and length. Visa's 13 digits are left out: nobody issues them any more, while phones of
# Germany and half the barcodes have 13 digits that begin with 4. Nothing has 18: CLABE does.
_BRANDS = re.compile(
    r"4(?:\d{15}|\d{18})"  # Visa
    r"|5[0-8](?:\d{14}|\d{17})"  # Mastercard, Maestro, Carnet, Elo
    r"|(?:222[1-9]|22[3-9]\d|2[3-6]\d\d|27[01]\d|2720)\d{12}"  # Mastercard
    r"|3[47]\d{13}"  # American Express
    r"|3(?:0[0-5]|[689]\d)\d{11}"  # Diners
    r"|35(?:2[89]|[3-8]\d)\d{12}"  # JCB
    r"|6[02-57](?:\d{14}|\d{17})",  # Discover, UnionPay, Maestro, Hipercard, Carnet
    re.ASCII,
)
_IBAN = re.compile(r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?(?![A-Za-z0-9])")
_IBAN_HEAD = re.compile(r"[A-Z]{2}\d{2} ?\Z", re.ASCII)
_NOT_DIGIT = re.compile(r"[^0-9]")

_JWT = re.compile(r"(?<![\w-])(eyJ[\w-]{6,})\.[\w-]{2,}\.[\w-]*", re.ASCII)
_BEARER = re.compile(r"(?:[Bb]earer|BEARER)\s+([\w.~+/-]{3,}=*)", re.ASCII)
_BASIC = re.compile(r"(?<!\w)[Bb]asic\s+([A-Za-z0-9+/_-]{4,}={0,2})", re.ASCII)
_USERINFO = re.compile(r"(?<=://)[^/\s@:\"]*:[^/\s\"]+(?=@)")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [^-]*-----|\Z)"
    r"|PuTTY-User-Key-File-\d.*",
    re.S,
)
_DATA_URL = re.compile(r"data:[\w.+/;=-]*;base64,[A-Za-z0-9+/=_-]*", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]+={0,2}")
_HEX = re.compile("[0-9a-fA-F]+")
_BREAK = re.compile(r"[\r\n]+")


def luhn(digits: str) -> bool:
    """Whether the check digit of a card number is right."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) << (place & 1)
        total += value - 9 if value > 9 else value
    return total % 10 == 0


def _is_card(digits: str) -> bool:
    return _BRANDS.fullmatch(digits) is not None and luhn(digits)


def _in_iban(text: str, start: int) -> bool:
    head = _IBAN_HEAD.search(text, max(0, start - 5), start)
    iban = _IBAN.match(text, head.start()) if head else None
    if iban is None:
        return False
    plain = iban[0].replace(" ", "")
    return int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1


def _json_header(part: str) -> Any:
    try:
        return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, RecursionError):
        return None


def _is_login(part: str) -> bool:
    try:
        return b":" in base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_")
    except binascii.Error:
        return False


def _is_blob(run: str) -> bool:
    # Real base64 uses its whole alphabet, and real hexadecimal its own; "xxxx…" does not.
    return len(run) >= BLOB and len(set(run)) >= (10 if _HEX.fullmatch(run) else 30)


def number_leak(number: int, name: str = "") -> Leak | None:
    """The card number that an integer is, under a name that does not explain it."""
    digits = str(number) if 10**13 <= number < 10**19 else ""
    if digits and _is_card(digits) and not names_number(name):
        return Leak("a card number", SEND_TOKEN, 0, len(digits))
    return None


def leaks(text: str, name: str = "") -> Iterator[Leak]:
    """What must not travel in a text that stands under `name`."""
    if len(text) < 7 or looks_clean(text.encode(errors="replace")):
        return
    if len(text) >= BLOB:
        lines = "\n" in text  # as base64 is often wrapped
        for found in _BASE64.finditer(_BREAK.sub("", text) if lines else text):
            if _is_blob(found[0]):
                yield Leak("binary as text", SEND_URL, *((0, len(text)) if lines else found.span()))
    for found in _DATA_URL.finditer(text):
        yield Leak("a data: URL", SEND_URL, *found.span())
    for found in _PEM.finditer(text):
        yield Leak("a private key", SEND_ID, *found.span())
    for found in _JWT.finditer(text):
        header = _json_header(found[1])
        if isinstance(header, dict) and "alg" in header:
            yield Leak("a signed token (JWT)", SEND_ID, *found.span())
    for found in KEY.finditer(text):
        yield Leak("a provider's key", "keep it in the settings of the worker", *found.span())
    for found in _BEARER.finditer(text):
        # Alone it is a header; inside prose only if it looks like a token: "bearer of good news".
        token = found[1]
        if found[0] == text or (len(token) >= 12 and any(c.isdigit() for c in token)):
            yield Leak("an Authorization header", SEND_ID, *found.span())
    for found in _BASIC.finditer(text):
        if _is_login(found[1]):  # "Basic plan" is none
            yield Leak("an Authorization header", SEND_ID, *found.span())
    for found in _USERINFO.finditer(text):
        yield Leak("a URL with a password", "send the URL without it", *found.span())
    shown = text if text.isascii() else _ascii_digits(text)
    for found in _TRACK.finditer(shown):
        if _is_card(found[1] or found[2]):
            yield Leak("a card's magnetic stripe", SEND_TOKEN, *found.span())
    for found in _CARD.finditer(shown):
        alone = found[0] == shown and shown.isdigit() and names_number(name)
        if (
            not alone
            and _is_card(_NOT_DIGIT.sub("", found[0]))
            and not _in_iban(shown, found.start())
            and not _is_explained(shown, found.start())
            and not _is_path(shown, *found.span())
        ):
            yield Leak("a card number", SEND_TOKEN, *found.span())


_BEFORE = re.compile(r"([\w.-]{1,64})[\"']?\s{0,2}[=:]\s{0,2}[\"']?\Z")
_IN_PATH = re.compile(r"https?://[^\s?#]*/\Z", re.I)


def _is_explained(text: str, start: int) -> bool:
    """Whether a number inside a text is an id: in the path of a URL, or behind such a name."""
    near = text[max(0, start - 512) : start]
    if near.endswith("/"):
        return _IN_PATH.search(near) is not None
    before = _BEFORE.search(near[-70:]) if near[-1:] in "=: \"'" else None
    return before is not None and names_number(before[1])


def _is_path(text: str, start: int, end: int) -> bool:
    """Whether digits in groups are folders: between other parts of a path."""
    is_sliced = "/" in text[start:end]
    return is_sliced and (text[start - 1 : start] == "/" or text[end : end + 1] == "/")


def _ascii_digits(text: str) -> str:
    """The text with the digits of every script as ours, each in its place."""
    if not any(c.isdecimal() and not c.isascii() for c in text):
        return text
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


# A quick look at encoded JSON

# The beginnings of leaks, each hung on a letter that FOLD makes the byte 1. An underscore is such a
# letter too, and `bearer_token` is the name of many a field.
_MARKS = re.compile(
    r"\x01(?:earer\s|E\x01RER\s|asic\s|ase00,|EY(?: |\x01\x01)|ey\x01File"
    r"|\x01(?<=:\x01\x01)[^@:\"]{0,99}:[^@\"]{1,99}@)"
)
_DIGITS = "0" * 14
_BACKSLASH = ord("\\")
_GROUPS = bytes.maketrans(b"0123456789 ./", b"0000000000---")
_OTHER_DIGITS = ("\xef\xbc", "\xd9", "\xdb")  # full-width and Arabic ones begin so in UTF-8
_OTHER_BLANKS = ("\xc2\xa0", "\xe2\x80")


def looks_clean(data: bytes, least: int = BLOB) -> bool:
    """Whether encoded JSON surely holds no leak by value, no NUL and no integer past 64 bit.

    From `least` bytes on it may be bulk, and is not sure.
    """
    if len(data) >= least:
        return False
    folded = str(data.translate(FOLD), "latin-1")  # searched more quickly than bytes
    if not folded.isascii():
        if any(mark in folded for mark in _OTHER_DIGITS):
            return False
        for blank in _OTHER_BLANKS:
            folded = folded.replace(blank, " ")
    if "0000" in folded and (
        _DIGITS in folded
        or (("0000\x010000" in folded or "0000 0000" in folded) and _has_groups(data))
    ):
        return False
    if "eyJ" in folded or _MARKS.search(folded) is not None:
        return False
    if _BACKSLASH in data:
        if b"\\u0000" in data:
            return False
        folded = str(without_escapes(data).translate(FOLD), "latin-1")
    return not (may_hold_key(folded) and holds_key(data))


def _has_groups(data: bytes) -> bool:
    """Whether there are digits in such groups as those of a card's number."""
    text = str(data.translate(_GROUPS), "latin-1")
    if not text.isascii():
        for blank in _OTHER_BLANKS:
            text = text.replace(blank, "-")
    return "0000-0000-0000" in text or "0000-000000-0000" in text


# For people's eyes

HIDDEN = "***"

_EMAIL = re.compile(r"([\w.+'-])[\w.+'-]{0,63}(@[\w-]{1,63}(?:\.[\w-]{1,63})+)")
_PHONE = re.compile(
    r"(?<![\w+.-])(?:\+\d[\d ().-]{6,18}\d"
    r"|(?:\(\d{2,4}\)|\d{2,4})[ .-]\d{3,4}[ .-]?\d{4})(?![\w-])",
    re.ASCII,
)
_PHONE_NAMES = _set(
    "phone telephone telefono telefone tel mobile movil celular cel whatsapp wa msisdn fax "
    "from to sender recipient contact contacto"
)
_PHONE_ALONE = re.compile(r"\+?[\d ().-]{7,24}", re.ASCII)


def without_leaks(text: str, name: str = "", *, bulk: bool = True) -> str:
    """The text with every secret in it hidden; of a card number the last four digits stay.

    Without `bulk`, what is only too much to travel stays.
    """
    shown = ""
    done = 0
    for leak in sorted(leaks(text, name), key=lambda leak: leak.start):
        if leak.is_bulk and not bulk:
            continue
        if leak.start >= done:
            shown += text[done : leak.start] + HIDDEN
            shown += text[leak.end - 4 : leak.end] if leak.what == "a card number" else ""
        done = max(done, leak.end)
    return shown + text[done:]


def mask(text: str, name: str = "") -> str:
    """The text with secrets, cards, e-mail addresses and phone numbers hidden."""
    text = text.encode(errors="replace").decode()  # half a surrogate pair cannot be shown
    text = without_leaks(text, name)
    if "@" in text:
        text = _EMAIL.sub(rf"\1{HIDDEN}\2", text)
    if _PHONE_NAMES.intersection(_words(name[:128])) and _PHONE_ALONE.fullmatch(text):
        return HIDDEN + text[-2:]
    return _PHONE.sub(lambda found: HIDDEN + found[0][-2:], text)
