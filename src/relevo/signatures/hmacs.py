"""Schemes whose signature is an HMAC in a header, of the body alone or with a time before it."""

from __future__ import annotations

import base64
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import ClassVar, Literal, TypeAlias

from relevo.clock import stamp
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

Algorithm: TypeAlias = Literal["sha256", "sha384", "sha512"]
Encoding: TypeAlias = Literal["hex", "base64"]

_VISIBLE = re.compile(r"[\x21-\x7e]+")
_MESSAGE_ID = re.compile(r"[\x21-\x2d\x2f-\x7e]{1,256}")  # no dot: dots divide what is signed


@lru_cache(maxsize=256)
def _begun(key: bytes, algorithm: Algorithm) -> hmac.HMAC:
    return hmac.new(key, digestmod=algorithm)


def _hmac(key: bytes, data: bytes, algorithm: Algorithm) -> bytes:
    # hmac.digest() gives the interpreter's lock away, however short the data: beside a busy thread
    # of a store it would wait a hundred times longer than it works.
    made = _begun(key, algorithm).copy()
    made.update(data)
    return made.digest()


@dataclass(frozen=True, slots=True)
class HmacHeader(Scheme):
    """HMAC of the body in one header: Meta, GitHub, and most of those who sign without a time."""

    keys: Keys
    header: str
    algorithm: Algorithm
    prefix: str
    encoding: Encoding

    def check(self, delivery: Delivery, now: datetime) -> None:
        value = header(delivery, self.header)
        if not value.startswith(self.prefix):
            raise InvalidSignature(f"{self.header} does not begin with '{self.prefix}'")
        given = value.removeprefix(self.prefix).encode()
        check_seal(self.keys, now, [given], lambda key: self._seal(key, delivery.body))

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        seal = self._seal(self.keys.first(now), delivery.body).decode()
        return with_headers(delivery, {self.header: self.prefix + seal})

    def _seal(self, key: bytes, body: bytes) -> bytes:
        digest = _hmac(key, body, self.algorithm)
        return digest.hex().encode() if self.encoding == "hex" else base64.b64encode(digest)


@dataclass(frozen=True, slots=True)
class Stripe(Scheme):
    """HMAC of time and body; while a secret is rolled, both the old and the new one sign."""

    keys: Keys
    tolerance: int  # ms
    header: ClassVar[str] = "Stripe-Signature"

    def check(self, delivery: Delivery, now: datetime) -> None:
        value = header(delivery, self.header)
        if not _VISIBLE.fullmatch(value):
            raise InvalidSignature(f"{self.header} holds white space or control characters")
        items = [item.partition("=") for item in value.split(",")]
        times = [content for name, _, content in items if name == "t"]
        seals = [content.encode() for name, _, content in items if name == "v1"]
        if len(times) != 1:
            raise InvalidSignature(f"{self.header} has {len(times)} times where one is due")
        if not seals:
            raise InvalidSignature(f"{self.header} has no v1 signature")
        signed_at = seconds(times[0], "t")
        signed = times[0].encode() + b"." + delivery.body
        check_seal(self.keys, now, seals, lambda key: self._seal(key, signed))
        check_age(signed_at, self.tolerance, now)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time = str(stamp(now) // 1000)
        seal = self._seal(self.keys.first(now), time.encode() + b"." + delivery.body)
        return with_headers(delivery, {self.header: f"t={time},v1={seal.decode()}"})

    def _seal(self, key: bytes, signed: bytes) -> bytes:
        return _hmac(key, signed, "sha256").hex().encode()


@dataclass(frozen=True, slots=True)
class Standard(Scheme):
    """Standard Webhooks and Svix: HMAC of message id, time and body."""

    keys: Keys
    tolerance: int  # ms
    spellings: ClassVar[tuple[str, str]] = ("webhook", "svix")
    parts: ClassVar[tuple[str, str, str]] = ("id", "timestamp", "signature")

    def check(self, delivery: Delivery, now: datetime) -> None:
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
        check_seal(self.keys, now, seals, lambda key: self._seal(key, signed))
        check_age(signed_at, self.tolerance, now)

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
        return base64.b64encode(_hmac(key, signed, "sha256"))
