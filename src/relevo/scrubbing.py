"""Take what looks like a credential out of a text that is kept or shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from relevo import sensitive
from relevo.sensitive import HIDDEN, Holds

# A name before its value, as programs write them: name=value, "name": "value", name%3Dvalue,
# ('name', b'value'), <name>value</name>, --name value.
_NAME = re.compile(
    r"(?:(?<![\w.-])|(?<=%26)|(?<=%3F)|(?<=%22))(-{0,2})([^\W\d][\w.-]{1,63})"
    r"(?:\\{0,3}[\"']?(?:\s{0,8}(?:=>|:=|[=>]|:(?!//)|%3[ADad])|,(?=\s?b?[\"']))\s{0,8}\[?(?:b(?=[\"']))?"
    r"|(?<=[a-z])\s+(?=[^\s-]))"
)
# Up to the same quote, written the same way: the other one, and one behind a backslash, are inside.
_QUOTED = re.compile(
    r"(?P<quote>\\{0,3}[\"'])(?P<value>(?:(?!(?P=quote))(?:\\.|[^\\])){1,4096})", re.DOTALL
)
_PLAIN = re.compile(
    r"(?:<!\[CDATA\[)?(?:(?:basic|bearer|digest|token|api-?key|hmac|oauth|negotiate)\s+)?(?P<value>[^\s\"'&,;<>(){}\[\]%\\]{1,4096})",
    re.I,
)
_IS = re.compile(r"(?:is|was|es|era)\s+[\"']?(?P<value>[^\s\"',;]{3,4096})")
# An element with its attributes and its text, in which words may stand.
_ELEMENT = re.compile(r"<([^\W\d][\w:.-]{0,127})(?:\s[^<>]{0,2048})?>\s*([^<]{3,4096})(?=</|\Z)")
_COOKIE = re.compile(r"(\b(?:set-)?cookie[\"']?\s?[:=,]\s?)[^\r\n]{3,8192}", re.I)
_LOOKS = re.compile(
    # A password may have any sign but those between two values of a text.
    r"(?<=://)[^\s:/@\"']{0,128}:[^\s@,{}\[\]]{1,512}(?=@[\w.\[-])"
    r"|(?P<keep>\b(?:bearer|basic)\s+|://(?!\[[\da-f:.]{2,45}\])[^\s:/@]{0,128}:"
    # A port is no password where no @ follows in the address.
    r"(?!\d{1,5}(?![^\s/?#\"'<>),;.:])[^\s@\"']{0,2048}+(?:[\s\"']|\Z)))"
    r"(?P<value>[^\s\"'&,;@]{4,4096})"
    # Elsewhere a name alone before the @ is that of a user.
    r"|(?:(?<=https://)|(?<=http://))[^\s/?#@:\"']{3,512}(?=@)"
    r"|(?<=://)(?=[^\s/@:]{0,512}\d)[^\s/@:\"']{8,512}(?=@)"
    r"|(?<=/bot)\d{6,12}:[\w-]{30,}"
    r"|\bsk-(?=[\w-]{0,64}\d)[\w-]{10,}|\bpk_(?:live|test)_\w+|\beyJ[\w-]+\.[\w-]+\.[\w-]+",
    re.I,
)
# Ordinary words in a payload, and credentials in a log.
_MORE = frozenset(
    [
        *("token", "sig", "signature", "auth", "session", "sessionid", "sid", "cookie"),
        *("credential", "otp", "jwt"),
    ]
)
_NUMBER = re.compile(r"\d{1,7}(?:\.\d+)?")
# Cookies of servers that no word of their names gives away.
_COOKIE_NAME = re.compile(r"(?:j|php|asp)_?sess(?:ion)?id\w*|asp\.net_sessionid", re.I)
# Behind a name without a sign between: a letter and a digit, and no word of cryptography.
_BARE = re.compile(r"(?=[^\s]*[^\W\d_])(?=[^\s]*\d)(?P<value>[^\s\"',;<>(){}\[\]\\/]{6,4096})")
_METHOD = re.compile(
    r"(?:sha|md|aes|rsa|hs|rs|es|ed|utf|argon|bcrypt|scrypt|pbkdf|oauth|base|v|version|step|line|"
    r"user|id|test|column|field)[-_]?\d",
    re.I,
)


def scrub(text: str) -> str:
    """Text without what looks like a credential, and without control characters."""
    text = sensitive.without_leaks(text)
    if "ookie" in text or "OOKIE" in text:
        text = _COOKIE.sub(rf"\1{HIDDEN}", text)
    if "</" in text:
        text = _ELEMENT.sub(_element, text)
    shown, done = "", 0
    for start, end in _values(text):
        shown, done = shown + text[done:start] + HIDDEN, end
    text = _LOOKS.sub(lambda found: (found["keep"] or "") + HIDDEN, shown + text[done:])
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in text)


def mask(text: str) -> str:
    """A text about an error as a viewer reads it: scrubbed, without addresses and phone numbers."""
    return sensitive.mask(scrub(text)) if text else text


def _element(found: re.Match[str]) -> str:
    kind = _kind(found[1])
    if kind is None and not _names_credential(found[1]):
        return found[0]
    if not _is_secret(kind, found[2].strip(), in_quotes=True):
        return found[0]
    return found[0][: found.start(2) - found.start()] + HIDDEN


def _values(text: str) -> Iterator[tuple[int, int]]:
    """Where the secrets are that stand behind their names."""
    done = 0
    for found in _NAME.finditer(text):
        if found.start() < done:
            continue
        name = found[2]
        kind = _kind(name)
        at = found.end()
        if kind is None and not _names_credential(name):
            # The key of a service that has no look of its own: `?key=…`.
            is_key = name.lower() == "key" and text[found.start() - 1 : found.start()] in ("?", "&")
            if not is_key or not (value := _PLAIN.match(text, at)):
                continue
            if sensitive.is_long_secret(value["value"]):
                done = value.end()
                yield value.span("value")
            continue
        in_quotes = False
        if found[0][-1:].isspace() and found[0].rstrip() == found[1] + name:
            # No sign between them: an option of a program, or a sentence.
            value = _PLAIN.match(text, at) if found[1] else _IS.match(text, at)
            if value is None and kind is Holds.PASSWORD:
                value = _BARE.match(text, at)
                value = None if value is None or _METHOD.match(value[0]) else value
                if value is not None:
                    done = value.end()
                    yield value.span("value")
                    continue
        elif value := _QUOTED.match(text, at):
            in_quotes = True
        else:
            value = _PLAIN.match(text, at)
        if value is not None and _is_secret(kind, value["value"], in_quotes=in_quotes):
            done = value.end()
            yield value.span("value")


def _is_secret(kind: Holds | None, value: str, *, in_quotes: bool) -> bool:
    if sensitive.is_harmless(value):
        return False
    if kind is None:
        return len(value) > 3 and not _NUMBER.fullmatch(value)
    if kind in (Holds.CODE, Holds.CARD):
        return any(c.isdigit() for c in value)
    # What is not in quotes may be the next word of a sentence.
    return len(value) > 3 and (in_quotes or not _NUMBER.fullmatch(value) or len(value) > 5)


@lru_cache(4_096)
def _kind(name: str) -> Holds | None:
    return sensitive.holds(name)


@lru_cache(4_096)
def _names_credential(name: str) -> bool:
    words = sensitive.words(name)
    return bool(words) and (words[-1] in _MORE or _COOKIE_NAME.fullmatch(name) is not None)
