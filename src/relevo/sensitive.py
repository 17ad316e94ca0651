"""What must not travel: secrets known by their name, secrets known by their look, and binary.

The rules catch accidents, not smugglers, and lean towards letting ids and references pass: a queue
that refuses one honest order id in a thousand is worse than none.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

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


# Names


def _set(text: str) -> frozenset[str]:
    return frozenset(text.split())


# A secret wherever it stands in the name, unless the name is that of a reference.
_SECRET = _set(
    "password passwd pwd passphrase passcode passwort secret contrasena contrasenia contrasenya "
    "senha cvv cvc cvn apikey accesstoken refreshtoken privatekey clientsecret cardnumber "
    "creditcardnumber numerotarjeta"
)
# A secret only when it is the whole name: these are ordinary words beside others.
_WHOLE = _set("pass pin pan clave tarjeta cartao")
# A secret only at the end, as headers are named.
_LAST = _set("authorization")
# Two neighbouring words that are a secret together.
_PAIRS = _set(
    "apikey privatekey secretkey accesskey signingkey encryptionkey sshkey masterkey "
    "accesstoken refreshtoken authtoken bearertoken sessiontoken apitoken oauthtoken bottoken "
    "securitytoken tokenacceso password passphrase motpasse "
    "claveacceso clavesecreta claveprivada claveapi claveusuario nuevaclave clavenueva "
    "securitycode codigoseguridad cardpin userpin pinnumber accountpin "
    "cardnumber cardnum cardpan ccnumber ccnum pannumber numerotarjeta tarjetanumero numtarjeta "
    "nrotarjeta tarjetacredito tarjetadebito datostarjeta numerocartao cartaonumero cartaocredito"
)
# Cards that pay for nothing.
_OTHER_CARDS = _set(
    "gift loyalty member membership sim boarding library business regalo embarque fidelidad visita"
)
# What a name ends, or begins, with when it tells about a secret instead of holding it.
_TELLS_LAST = _set(
    "id uid uuid ref reference referencia at on date fecha until expiry expire expired expiration "
    "ttl age count length size type kind tipo brand marca last status state estado policy version "
    "name nombre alias arn path required enabled change changed reset updated rotated valid "
    "verified strength attempt hint masked mask fingerprint prefix suffix holder titular template"
)
_TELLS_FIRST = _set("has is needs requires tiene es id fecha tipo marca metodo pago masked")
_FILLERS = _set("de del la el los las do da of the mi su my your")

# A bare number under such a name is an order, a barcode or a moment; ids of Meta look like cards.
_NUMBER_LAST = _set(
    "id uid order pedido orden folio ref reference referencia ean gtin upc sku isbn barcode imei "
    "iban clabe tracking guia timestamp ts ms us ns at invoice factura"
)
_CARD_WORDS = _set("card tarjeta cartao pan cc")

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@lru_cache(4_096)
def _words(name: str) -> tuple[str, ...]:
    """The words of a name in any case, without accents, digits and plurals."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    found = (word.lower() for word in _WORD.findall(plain))
    return tuple(w[:-1] if len(w) > 3 and w[-1] == "s" != w[-2] else w for w in found)


@lru_cache(4_096)
def _names_secret(name: str) -> bool:
    every = _words(name)
    if not every or every[-1] in _TELLS_LAST or every[0] in _TELLS_FIRST:
        return False
    words = [word for word in every if word not in _FILLERS]
    whole = "".join(words)
    if whole in _WHOLE or (words[-1:] and words[-1] in _LAST):
        return True
    if any(w in _SECRET or w.endswith(("password", "passwd", "contrasena")) for w in words):
        return True
    if _OTHER_CARDS.intersection(words):
        return False
    return any(a + b in _PAIRS for a, b in pairwise(words))


def names_secret(name: str) -> bool:
    """Whether a field of this name holds a secret; `password_reset_id` and its like do not."""
    return _names_secret(name[:128])  # a longer name only costs memory in the cache


def _names_number(name: str) -> bool:
    words = _words(name[:128])
    return bool(words) and words[-1] in _NUMBER_LAST and not _CARD_WORDS.intersection(words)


# Values

_CARD = re.compile(
    r"(?<![A-Za-z0-9_.+])(?<![A-Za-z0-9]-)"
    r"(?:[2-6]\d{13,18}"
    r"|[2-6]\d{3}([ -])\d{4}\1\d{4}\1\d{4}(?:\1\d{3})?"
    r"|3\d{3}([ -])\d{6}\2\d{4,5})"
    r"(?![A-Za-z0-9_])(?!-[A-Za-z0-9])(?!\.\d)",
    re.ASCII,
)
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
_BEARER = re.compile(r"[Bb]earer\s+([\w.~+/-]{3,}=*)", re.ASCII)
_BASIC = re.compile(r"(?<!\w)[Bb]asic\s+([A-Za-z0-9+/_-]{4,}={0,2})", re.ASCII)
_USERINFO = re.compile(r"(?<=://)[^/\s@:\"]*:[^/\s@\"]+(?=@)")
_PEM = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END [^-]*-----|\Z)", re.S
)
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:[sr]k_live_\w{4,}|whsec_[\w+/=-]{4,}|xox[abeoprs]-[\w-]{4,}"
    r"|ghp_\w{8,}|github_pat_\w{8,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{10,})",
    re.ASCII,
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
    if digits and _is_card(digits) and not _names_number(name):
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
    for found in _KEY.finditer(text):
        yield Leak("a provider's key", "keep it in the settings of the worker", *found.span())
    for found in _BEARER.finditer(text):
        # Alone it is a header; inside prose only if it looks like a token: "bearer of good news".
        token = found[1]
        if found[0] == text or (len(token) >= 16 and any(c.isdigit() for c in token)):
            yield Leak("an Authorization header", SEND_ID, *found.span())
    for found in _BASIC.finditer(text):
        if _is_login(found[1]):  # "Basic plan" is none
            yield Leak("an Authorization header", SEND_ID, *found.span())
    for found in _USERINFO.finditer(text):
        yield Leak("a URL with a password", "send the URL without it", *found.span())
    for found in _CARD.finditer(text):
        alone = found[0] == text and text.isdigit() and _names_number(name)
        if (
            not alone
            and _is_card(_NOT_DIGIT.sub("", found[0]))
            and not _in_iban(text, found.start())
        ):
            yield Leak("a card number", SEND_TOKEN, *found.span())


# A quick look at encoded JSON

_RARE = b"BJKbxz/\\"
_FOLD = bytes.maketrans(b"0123456789 " + _RARE, b"0000000000-" + b"\x01" * len(_RARE))
# The beginnings of leaks, each hung on a rare letter: once those are folded into one byte, the
# search leaps from one to the next, many times faster than through a plain list of alternatives.
_MARKS = re.compile(
    rb"\x01(?:(?<=ey\x01)|earer-|asic-|ase00,|o\x01[a\x01eoprs]-|(?<=A\x01)IA|(?<=AI\x01)a"
    rb"|_pat_|EY-|u0000|\x01[^@:\"]{0,99}:[^@\"]{1,99}@)"
)


def looks_clean(data: bytes) -> bool:
    """Whether encoded JSON surely holds no leak by value, no NUL and no integer past 64 bit."""
    if len(data) >= BLOB:
        return False
    folded = data.translate(_FOLD)
    text = str(folded, "latin-1")
    if "0000" in text and (
        "00000000000000" in text or "0000-0000-0000" in text or "0000-000000-0000" in text
    ):
        return False
    if "_" in text and ("k_live_" in text or "whsec_" in text or "ghp_" in text):
        return False
    return _MARKS.search(folded) is None


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


def mask(text: str, name: str = "") -> str:
    """The text with secrets, cards, e-mail addresses and phone numbers hidden."""
    text = text.encode(errors="replace").decode()  # half a surrogate pair cannot be shown
    shown = ""
    done = 0
    for leak in sorted(leaks(text, name), key=lambda leak: leak.start):
        if leak.start >= done:
            shown += text[done : leak.start] + HIDDEN
            shown += text[leak.end - 4 : leak.end] if leak.what == "a card number" else ""
        done = max(done, leak.end)
    text = shown + text[done:]
    if "@" in text:
        text = _EMAIL.sub(rf"\1{HIDDEN}\2", text)
    if _PHONE_NAMES.intersection(_words(name[:128])) and _PHONE_ALONE.fullmatch(text):
        return HIDDEN + text[-2:]
    return _PHONE.sub(lambda found: HIDDEN + found[0][-2:], text)
