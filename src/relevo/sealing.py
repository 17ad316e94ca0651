"""Sealing: what jobs and deliveries carry, unreadable to whoever has only the database.

    Relevo(url, apps=[app], seal=SealKeys(os.environ["RELEVO_SEAL_KEYS"]))

What is sealed is stored as text behind a mark, so that it stays JSON where JSON is expected, and
what was stored before there was a seal is known by the mark it lacks.
"""

from __future__ import annotations

import base64
import re
import secrets
from collections import Counter
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol

import msgspec

from relevo.errors import SealError, SettingsError

MARK = b"relevo-sealed:"
_JSON_MARK = b'"' + MARK
_PAIR_MARK = b'[["relevo-sealed","'
_MARKS = (MARK, _JSON_MARK, _PAIR_MARK)

_SEALED = re.compile(
    rb'(relevo-sealed(?::|","))((?:[A-Za-z0-9_-]{4})+(?:[A-Za-z0-9_-]{2}==|[A-Za-z0-9_-]{3}=)?)'
)

_KEY = re.compile(r"[A-Za-z0-9_-]{43}=", re.ASCII)
_NAMED = re.compile(rb"key-([0-9a-f]{8}):")


class Seal(Protocol):
    """What seals and opens. It is asked in the event loop, for every value: let it be quick."""

    def seal(self, data: bytes) -> bytes:
        """The data in a form that tells nothing to who cannot open it."""
        ...

    def open(self, data: bytes) -> bytes:
        """What was sealed; SealError if that was not by us, or has been changed since."""
        ...

    def key_of(self, data: bytes) -> str:
        """The name of the key that sealed it."""
        ...

    def oldest(self) -> str:
        """The name of the key that has been in use longest; only its removal changes this."""
        ...

    def digest(self, data: bytes, by: str | None = None) -> bytes:
        """Eight bytes that are equal for equal data, and tell nothing to who has no key.

        Under the key called `by`, or the one that seals today. The first byte names the key, and
        is never 0: digests of several keys cannot be compared.
        """
        ...


class SealKeys:
    """AES keys, by Fernet of `cryptography`: the first one seals, every one opens.

    A new key goes in front; the last one is the oldest.
    """

    def __init__(self, *keys: str) -> None:
        """SettingsError, which never quotes them, if one of the keys is none.

        One text may hold several, parted by commas.
        """
        given = [key.strip() for text in keys for key in text.split(",") if key.strip()]
        if not given:
            raise SettingsError("there is no key to seal with: make one with `relevo seal-key`")
        for number, key in enumerate(given, 1):
            if not _is_key(key):
                raise SettingsError(
                    f"key {number} of {len(given)} to seal with is none: make one with "
                    "`relevo seal-key`"
                )
        fernet = _fernet()
        self._fernets: dict[bytes, Any] = {_name(key): fernet(key) for key in given}
        self._digests = {_name(key): _digest_key(key) for key in given}
        self._first = next(iter(self._fernets))

    def __repr__(self) -> str:
        return f"SealKeys({', '.join(self.names)})"

    @property
    def names(self) -> list[str]:
        """What the keys are called where one is missing; no key can be had from its name."""
        return [name.decode() for name in self._fernets]

    def seal(self, data: bytes) -> bytes:
        token: bytes = self._fernets[self._first].encrypt(data)
        return b"key-%b:%b" % (self._first, base64.urlsafe_b64decode(token))

    def open(self, data: bytes) -> bytes:
        from cryptography.fernet import InvalidToken

        named = _NAMED.match(data)
        fernet = self._fernets.get(named[1]) if named else None
        if named is None or fernet is None:
            raise _closed(data)
        try:
            opened: bytes = fernet.decrypt(base64.urlsafe_b64encode(data[named.end() :]))
        except InvalidToken:
            raise _closed(data) from None
        return opened

    def key_of(self, data: bytes) -> str:
        named = _NAMED.match(data)
        if named is None:
            raise _closed(data)
        return named[1].decode()

    def oldest(self) -> str:
        return next(reversed(self._fernets)).decode()

    def digest(self, data: bytes, by: str | None = None) -> bytes:
        name = self._first if by is None else by.encode()
        key = self._digests.get(name)
        if key is None:
            raise _closed(b"key-%b:" % name)
        return bytes([int(name[:2], 16) or 1]) + blake2b(data, key=key, digest_size=7).digest()


def new_key() -> str:
    """A fresh key."""
    return base64.urlsafe_b64encode(secrets.token_bytes(32)).decode()


def _is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None and len(base64.urlsafe_b64decode(text)) == 32


def _name(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=4, person=b"relevo-seal").hexdigest().encode()


def _digest_key(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=32, person=b"relevo-digest").digest()


def _fernet() -> Any:
    try:
        from cryptography.fernet import Fernet
    except ImportError as error:
        raise SettingsError("sealing needs cryptography: pip install 'relevo[seal]'") from error
    return Fernet


# Sealed values, as they are stored


def sealed_text(seal: Seal, data: bytes) -> bytes:
    """The data sealed, as ASCII text behind the mark."""
    return MARK + base64.urlsafe_b64encode(seal.seal(data))


def sealed_json(seal: Seal, data: bytes) -> bytes:
    """The same as a JSON string."""
    return b'"%b"' % sealed_text(seal, data)


def sealed_pairs(seal: Seal, data: bytes) -> bytes:
    """The same as JSON pairs, which is what headers are."""
    return b'%b%b"]]' % (_PAIR_MARK, base64.urlsafe_b64encode(seal.seal(data)))


def is_sealed(data: bytes | msgspec.Raw) -> bool:
    """Whether it is sealed, in whichever of the three ways."""
    return bytes(data).startswith(_MARKS)


def opened(seal: Seal, data: bytes) -> bytes:
    """What was sealed, or the data as it is: where it never was, and where nothing opens it."""
    if not is_sealed(data):
        return data
    try:
        return seal.open(_inner(data))
    except Exception:  # noqa: BLE001 - a seal may raise anything; what it cannot open must not be lost
        return data


def sealed_by(seal: Seal, data: bytes) -> str | None:
    """The name of the key that sealed it; None for what is not sealed, or not by this seal."""
    if not is_sealed(data):
        return None
    try:
        return seal.key_of(_inner(data))
    except Exception:  # noqa: BLE001 - a seal may raise anything; opened() tells what cannot be read
        return None


def key_named(data: bytes | msgspec.Raw) -> str | None:
    """The name of the key that sealed it, which tells nothing of the key; "" for another seal's.

    None for what is not sealed. It needs no key.
    """
    if not is_sealed(data):
        return None
    try:
        named = _NAMED.match(_inner(bytes(data)))
    except ValueError:
        return ""
    return named[1].decode() if named else ""


class Renewed(NamedTuple):
    """A stored value, what was sealed in it sealed with the newest key."""

    data: bytes
    by: Counter[str]  # how often what was renewed had been sealed with which key
    closed: Counter[str]  # what no key opens; under "" what is not relevo's


def renewed(keys: SealKeys, data: bytes) -> Renewed:
    """Seal anew whatever is sealed in a stored value, however that is packed.

    What is sealed is as long as before, so that lengths that stand in front of it stay right.
    """
    newest = keys.names[0]
    by: Counter[str] = Counter()
    closed: Counter[str] = Counter()

    def again(found: re.Match[bytes]) -> bytes:
        mark, token = found.groups()
        try:
            inner = base64.b64decode(token, altchars=b"-_", validate=True)
            name = keys.key_of(inner)
            if name == newest:
                return found[0]
            fresh = base64.urlsafe_b64encode(keys.seal(keys.open(inner)))
        except (ValueError, SealError):
            closed[_name_in(token)] += 1
            return found[0]
        by[name] += 1
        return mark + fresh

    return Renewed(_SEALED.sub(again, data), by, closed)


def _name_in(token: bytes) -> str:
    return key_named(MARK + token) or ""


def unsealed(data: bytes | msgspec.Raw) -> bytes:
    """The data, if it can be read; SealError for what is still sealed, as nothing here opens it."""
    if is_sealed(data):
        raise closed(data)
    return bytes(data)


def closed(data: bytes | msgspec.Raw) -> SealError:
    """Why something sealed cannot be read here."""
    try:
        return _closed(_inner(bytes(data)))
    except ValueError:
        return _closed(b"")


def _inner(data: bytes) -> bytes:
    mark = next(mark for mark in _MARKS if data.startswith(mark))
    return base64.b64decode(data.removeprefix(mark).rstrip(b'"]'), altchars=b"-_", validate=True)


def _closed(inner: bytes) -> SealError:
    named = _NAMED.match(inner)
    by = f"with the key called {named[1].decode()}" if named else "by a seal that is not ours"
    return SealError(
        f"it is sealed {by} and cannot be opened here: add that key to RELEVO_SEAL_KEYS, or to "
        "Relevo(…, seal=…), unless what is stored has been changed"
    )
