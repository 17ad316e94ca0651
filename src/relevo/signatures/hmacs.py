"""Schemes whose signature is an HMAC in a header: of the body alone, with a time, or with an id.

Each class is one family of providers and its fields are what differs between them.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

from relevo.clock import stamp
from relevo.errors import BodyError
from relevo.signatures.keys import Keys
from relevo.signatures.scheme import (
    InvalidSignature,
    Scheme,
    check_age,
    check_seal,
    header,
    seconds,
    with_headers,
)
from relevo.webhook import Delivery

Algorithm: TypeAlias = Literal["sha1", "sha256", "sha384", "sha512"]
Encoding: TypeAlias = Literal["hex", "base64"]

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_MESSAGE_ID = re.compile(r"[\x21-\x2d\x2f-\x7e]{1,256}")  # no dot: dots divide what is signed


@lru_cache(maxsize=256)
def _begun(key: bytes, algorithm: Algorithm) -> hmac.HMAC:
    return hmac.new(key, digestmod=algorithm)


def hmac_of(key: bytes, data: bytes, algorithm: Algorithm = "sha256") -> bytes:
    """The HMAC of some bytes."""
    # hmac.digest() gives the interpreter's lock away, however short the data: beside a busy thread
    # of a store it would wait a hundred times longer than it works.
    made = _begun(key, algorithm).copy()
    made.update(data)
    return made.digest()


def encoded(digest: bytes, encoding: Encoding) -> bytes:
    """A digest as the provider writes it."""
    return digest.hex().encode() if encoding == "hex" else base64.b64encode(digest)


Signed: TypeAlias = Callable[[Delivery, str], bytes]
"""What is signed of a delivery, given the time of its header; "" where there is none."""


def _body(delivery: Delivery, _: str) -> bytes:
    return delivery.body


@dataclass(frozen=True, slots=True)
class HmacHeader(Scheme):
    """HMAC in one header: Meta, GitHub, most signatures; with a `time` in another: Slack, Zoom.

    `also` is a second name for the header; a delivery has one of the two.
    """

    keys: Keys
    header: str
    algorithm: Algorithm = "sha256"
    prefix: str = ""
    encoding: Encoding = "hex"
    also: str = ""
    time: str = ""
    tolerance: int = 0  # ms
    signed: Signed = _body

    def check(self, delivery: Delivery, now: datetime) -> str:
        name = self.header
        if self.also and name not in delivery.headers and self.also in delivery.headers:
            name = self.also
        value = header(delivery, name)
        if not value.startswith(self.prefix):
            raise InvalidSignature(f"{name} does not begin with '{self.prefix}'")
        given = value.removeprefix(self.prefix).encode()
        time = header(delivery, self.time) if self.time else ""
        signed_at = seconds(time, self.time) if self.time else 0
        try:
            signed = self.signed(delivery, time)
        except (LookupError, BodyError) as error:
            raise InvalidSignature(f"what is signed cannot be read: {error}") from None
        used = check_seal(self.keys, now, [given], lambda key: self._seal(key, signed))
        if self.time:
            check_age(signed_at, self.tolerance, now)
        return used

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time = str(stamp(now) // 1000) if self.time else ""
        if self.time:
            delivery = with_headers(delivery, {self.time: time})
        seal = self._seal(self.keys.first(now), self.signed(delivery, time)).decode()
        return with_headers(delivery, {self.header: self.prefix + seal})

    def _seal(self, key: bytes, signed: bytes) -> bytes:
        return encoded(hmac_of(key, signed, self.algorithm), self.encoding)


@dataclass(frozen=True, slots=True)
class TimedHeader(Scheme):
    """HMAC of time and body, with the time in the same header: Stripe, Calendly, Paddle.

    While a secret is rolled, both the old and the new one sign; any of them counts.
    """

    keys: Keys
    tolerance: int  # ms
    header: str = "Stripe-Signature"
    time: str = "t"
    seal: str = "v1"
    split: str = ","
    joiner: bytes = b"."

    def check(self, delivery: Delivery, now: datetime) -> str:
        value = header(delivery, self.header)
        if not _VISIBLE.fullmatch(value):
            raise InvalidSignature(f"{self.header} holds white space or control characters")
        items = [item.partition("=") for item in value.split(self.split)]
        times = [content for name, _, content in items if name == self.time]
        seals = [content.encode() for name, _, content in items if name == self.seal]
        if len(times) != 1:
            raise InvalidSignature(f"{self.header} has {len(times)} times where one is due")
        if not seals:
            raise InvalidSignature(f"{self.header} has no {self.seal} signature")
        signed_at = seconds(times[0], self.time)
        signed = times[0].encode() + self.joiner + delivery.body
        used = check_seal(self.keys, now, seals, lambda key: hmac_of(key, signed).hex().encode())
        check_age(signed_at, self.tolerance, now)
        return used

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time = str(stamp(now) // 1000)
        signed = time.encode() + self.joiner + delivery.body
        seal = hmac_of(self.keys.first(now), signed).hex()
        value = f"{self.time}={time}{self.split}{self.seal}={seal}"
        return with_headers(delivery, {self.header: value})


@dataclass(frozen=True, slots=True)
class Standard(Scheme):
    """Standard Webhooks and Svix: HMAC of message id, time and body."""

    keys: Keys
    tolerance: int  # ms
    spellings: ClassVar[tuple[str, str]] = ("webhook", "svix")
    parts: ClassVar[tuple[str, str, str]] = ("id", "timestamp", "signature")

    def check(self, delivery: Delivery, now: datetime) -> str:
        message_id, time, signatures = self._read(delivery)
        if not _MESSAGE_ID.fullmatch(message_id):
            raise InvalidSignature("the message id is not 1 to 256 visible characters without dot")
        signed_at = seconds(time, "the timestamp")
        items = [item.partition(",") for item in signatures.split(" ")]
        seals = [content.encode() for version, _, content in items if version == "v1"]
        if not seals:
            # v1a is ed25519, which the standard library does not have.
            raise InvalidSignature("there is no v1 signature, and no other version is known here")
        signed = f"{message_id}.{time}.".encode() + delivery.body
        used = check_seal(self.keys, now, seals, lambda key: self._seal(key, signed))
        check_age(signed_at, self.tolerance, now)
        return used

    def _read(self, delivery: Delivery) -> list[str]:
        """Id, time and signatures in the spelling that is there.

        If both are, they must say the same: what is signed under one spelling could otherwise be
        repeated for ever with fresh ids under the other.
        """
        names = [[f"{word}-{part}" for part in self.parts] for word in self.spellings]
        there = [each for each in names if any(name in delivery.headers for name in each)]
        found = [[header(delivery, name) for name in each] for each in there or names[:1]]
        if found[0] != found[-1]:
            raise InvalidSignature("the webhook-* and svix-* headers contradict each other")
        return found[0]

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time, message_id = str(stamp(now) // 1000), f"msg_{delivery.id}"
        signed = f"{message_id}.{time}.".encode() + delivery.body
        seal = self._seal(self.keys.first(now), signed).decode()
        values = dict(zip(self.parts, (message_id, time, f"v1,{seal}"), strict=True))
        both = {f"{word}-{part}": values[part] for word in self.spellings for part in self.parts}
        return with_headers(delivery, both)

    def _seal(self, key: bytes, signed: bytes) -> bytes:
        return base64.b64encode(hmac_of(key, signed))


def joined(parts: Iterable[str | bytes]) -> bytes:
    """The bytes of what is signed, parts one after the other."""
    return b"".join(part if isinstance(part, bytes) else part.encode() for part in parts)
