"""Secrets to check with, several at a time, each with an end if it has one."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, TypeAlias

from relevo.errors import SettingsError

_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_PREFIX = re.compile(r"(?:v\d,)?(?:[A-Za-z]{1,16}[_-]){1,4}")
_PLACEHOLDERS = frozenset({"changeme", "change-me", "change_me"})


@dataclass(frozen=True, slots=True, repr=False)
class Key:
    """A secret, and the moment from which it no longer counts."""

    value: str
    until: datetime | None = None

    def __repr__(self) -> str:
        return f"Key(until={self.until})"


Secrets: TypeAlias = str | Key | Sequence[str | Key]


@dataclass(frozen=True, slots=True, repr=False)
class Keys:
    """The secrets of a scheme, ready for use. There is at least one, and none is empty."""

    given: tuple[Key, ...]
    ready: tuple[bytes, ...]
    is_ending: bool = True  # one of them, perhaps
    names: tuple[str, ...] = field(init=False)
    """What tells them apart: `1 of 2, 3f9a`. The fingerprint is too short to guess a secret by."""

    def __post_init__(self) -> None:
        names = (
            f"{place} of {len(self.ready)}, {_fingerprint(ready)}"
            for place, ready in enumerate(self.ready, 1)
        )
        object.__setattr__(self, "names", tuple(names))

    @classmethod
    def read(
        cls, owner: str, secrets: Secrets | None, decode: Callable[[str], bytes] = str.encode
    ) -> Keys:
        """The keys of a setting; SettingsError, which never quotes them, if one is no secret.

        A door whose secret is missing stays closed: nothing here means "do not check".
        """
        listed = [secrets] if isinstance(secrets, str | Key) else list(secrets or ())
        given = tuple(each if isinstance(each, Key) else Key(each) for each in listed)
        if not given:
            raise SettingsError(f"{owner} has no secret, and does not open without one")
        ready = tuple(_ready(owner, key, decode) for key in given)
        return cls(given, ready, any(key.until is not None for key in given))

    def at(self, now: datetime) -> Sequence[bytes]:
        """Those that count at a moment, in the order they were given."""
        if not self.is_ending:
            return self.ready
        pairs = zip(self.given, self.ready, strict=True)
        return [ready for key, ready in pairs if key.until is None or now < key.until]

    def name(self, ready: bytes) -> str:
        """What one of them is called."""
        return self.names[self.ready.index(ready)]

    def first(self, now: datetime) -> bytes:
        """The one to sign with."""
        if not (live := self.at(now)):
            raise SettingsError("every configured secret has ended: there is none to sign with")
        return live[0]

    def endless(self) -> Keys:
        """The same as if none of them ended."""
        return Keys(tuple(Key(key.value) for key in self.given), self.ready, is_ending=False)

    def __repr__(self) -> str:
        return f"Keys({len(self.given)})"


def _fingerprint(ready: bytes) -> str:
    return blake2b(ready, digest_size=2, person=b"relevo-secret").hexdigest()


def _ready(owner: str, key: Key, decode: Callable[[str], bytes]) -> bytes:
    value: Any = key.value
    if not isinstance(value, str) or not value.strip():
        raise SettingsError(f"{owner} has a secret that is empty, or no text")
    if value != value.strip():
        raise SettingsError(f"a secret of {owner} has white space around it: take it off")
    if value.lower() in _PLACEHOLDERS:
        raise SettingsError(f"a secret of {owner} is a placeholder: put the real one there")
    if _PREFIX.fullmatch(value):
        # Known to everybody: whoever reads the provider's documentation could sign with it.
        raise SettingsError(f"a secret of {owner} is the prefix alone: give all of it")
    if key.until is not None and key.until.tzinfo is None:
        raise SettingsError(f"the end of a secret of {owner} needs a time zone")
    try:
        return decode(value)
    except ValueError:
        reason = f"a secret of {owner} does not have the form that its provider gives out"
    # Out here, so that the error does not drag along one that quotes the secret.
    raise SettingsError(reason)


def from_base64(value: str) -> bytes:
    """The bytes of a `whsec_…` secret as Standard Webhooks means it, with or without padding."""
    plain = value.removeprefix("whsec_")
    if not _BASE64.fullmatch(plain):
        raise ValueError
    bare = plain.rstrip("=")
    return base64.b64decode(bare + "=" * (-len(bare) % 4))
