"""Scheme, a way to know who sent a delivery, and the steps that schemes share."""

from __future__ import annotations

import hmac
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import msgspec

from relevo.clock import stamp
from relevo.errors import MisuseError, SignatureError
from relevo.signatures.keys import Keys
from relevo.webhook import Delivery

Kind: TypeAlias = Literal["absent", "malformed", "mismatch", "body", "claim", "time", "ended"]

LONGEST = 4_096
"""No provider's signature header is longer; nothing is done with one that is."""

_DIGITS = re.compile(r"0|[1-9][0-9]{0,11}")


class InvalidSignature(SignatureError):
    """A delivery is not from who it says.

    The message is the same for every cause; `why` is for our side, and must not reach the caller.
    """

    def __init__(self, why: str, kind: Kind = "malformed") -> None:
        super().__init__("invalid signature")
        self.why = why
        self.kind: Kind = kind


class Nonce(NamedTuple):
    """What may be seen once only, and until when it has to be remembered."""

    value: str
    until: datetime


class Scheme(ABC):
    """A way to know who sent a delivery."""

    __slots__ = ()

    code: ClassVar[str] = "invalid_signature"  # for the answer
    needs_url: ClassVar[bool] = False  # whether the public URL is part of what is signed

    @property
    def hides(self) -> frozenset[str]:
        """Headers and query parameters that carry the secret itself."""
        return frozenset()

    def bare(self, delivery: Delivery) -> bytes:
        """The body as it may be kept, without a secret that came inside it."""
        return delivery.body

    @abstractmethod
    def check(self, delivery: Delivery, now: datetime) -> str | None:
        """Return if the delivery is from who it says; InvalidSignature if not, and nothing else.

        It returns the name of the secret that fits, as `Keys.names` has it, where there are some.
        """

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        """The delivery as the provider would send it, under the first key that counts."""
        raise MisuseError(f"{type(self).__name__} can check, and cannot sign")

    def nonce(self, delivery: Delivery) -> Nonce | None:
        """What makes a checked delivery unrepeatable, where the scheme has such a thing."""
        return None


def header(delivery: Delivery, name: str, longest: int = LONGEST) -> str:
    """The one value of a header, in ASCII and not too long to look at."""
    values = delivery.headers.all(name)
    if not values:
        raise InvalidSignature(f"there is no {name} header", "absent")
    if len(values) > 1:
        raise InvalidSignature(f"{name} came {len(values)} times")
    value = values[0]
    if len(value) > longest:
        raise InvalidSignature(f"{name} is longer than {longest:,} bytes")
    if not value:
        raise InvalidSignature(f"{name} is empty")
    if not value.isascii():
        raise InvalidSignature(f"{name} is not ASCII")
    return value


def items_of(value: str, split: str = ",") -> dict[str, str]:
    """The items of a header such as `ts=1,v1=ab`, by name; a name comes once."""
    items = [item.strip().partition("=") for item in value.split(split)]
    found = {name: content for name, _, content in items}
    if len(found) < len(items):
        raise InvalidSignature("an item of its header came twice")
    return found


def with_headers(delivery: Delivery, headers: dict[str, str]) -> Delivery:
    return msgspec.structs.replace(delivery, headers=delivery.headers.replaced(headers))


def seconds(text: str, name: str) -> int:
    """Unix seconds in plain digits; int() alone would take "１２", " 1_0 " and "-1"."""
    if not _DIGITS.fullmatch(text):
        raise InvalidSignature(f"{name} is not a number of seconds in plain digits")
    return int(text)


def check_age(signed: int, tolerance: int, now: datetime) -> None:
    """Whether a moment in seconds is within so many milliseconds of now, on either side."""
    age = stamp(now) - signed * 1000
    if age > tolerance:
        raise InvalidSignature(
            f"it was signed {age / 1000:.0f} s ago, and {tolerance / 1000:.0f} s are allowed: "
            "a replay, or a wrong clock",
            "time",
        )
    if age < -tolerance:
        raise InvalidSignature(
            f"it was signed {-age / 1000:.0f} s in the future: "
            "the sender's clock is wrong, or ours",
            "time",
        )


def check_seal(
    keys: Keys, now: datetime, given: Sequence[bytes], *seals: Callable[[bytes], bytes]
) -> str:
    """The name of the key that counts and of which one of those given is a seal.

    Seals are compared as they are written, so that no second spelling of one is right.
    """
    live = keys.at(now)
    if not live:
        raise InvalidSignature("every configured secret has ended", "ended")
    # All pairs, without a short cut: the time it takes shall not tell which key was right.
    fits = [
        hmac.compare_digest(seal(key), each) for key in live for seal in seals for each in given
    ]
    if True not in fits:
        raise InvalidSignature("no configured secret gives this signature", "mismatch")
    return keys.name(live[fits.index(True) // (len(seals) * len(given))])
