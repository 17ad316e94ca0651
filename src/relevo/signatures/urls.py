"""Schemes that sign the URL, as it is configured at the provider: Twilio, Square, HubSpot.

The URL is the delivery's public one, never the Host header: whoever sends a call chooses that.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, Literal, TypeAlias
from urllib.parse import urlsplit, urlunsplit

import msgspec

from relevo.clock import stamp
from relevo.errors import BodyError
from relevo.pairs import form_pairs
from relevo.signatures.hmacs import Algorithm, encoded, hmac_of, joined
from relevo.signatures.keys import Keys
from relevo.signatures.scheme import (
    InvalidSignature,
    Scheme,
    check_age,
    check_seal,
    header,
    items_of,
    with_headers,
)
from relevo.webhook import FORM, Delivery

HubSpotVersion: TypeAlias = Literal["v1", "v2", "v3"]

_PORTS = {"https": 443, "http": 80}
_MILLISECONDS = re.compile(r"[0-9]{1,15}")
_SETTINGS = "X-Twilio-Webhooks-Signature-Settings"


def with_and_without_port(url: str) -> Iterator[str]:
    """The URL as it is, without its port, and with the port of its scheme."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    name = host.rpartition(":")[0] if parts.port is not None else host
    port = parts.port or _PORTS.get(parts.scheme, 443)
    for netloc in dict.fromkeys((host, name, f"{name}:{port}")):
        yield urlunsplit((parts.scheme, netloc, parts.path, parts.query, ""))


@dataclass(frozen=True, slots=True)
class Square(Scheme):
    """HMAC of the notification URL and the body, in base64."""

    keys: Keys
    header: ClassVar[str] = "x-square-hmacsha256-signature"
    needs_url: ClassVar[bool] = True

    def check(self, delivery: Delivery, now: datetime) -> str:
        given = header(delivery, self.header).encode()
        signed = joined((delivery.url, delivery.body))
        return check_seal(
            self.keys, now, [given], lambda key: encoded(hmac_of(key, signed), "base64")
        )

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        digest = hmac_of(self.keys.first(now), joined((delivery.url, delivery.body)))
        return with_headers(delivery, {self.header: encoded(digest, "base64").decode()})


@dataclass(frozen=True, slots=True)
class Twilio(Scheme):
    """HMAC-SHA1 of the URL and the form's fields; of the URL alone, with a hash of a JSON body.

    `shared` are the keys of the beta in which a header names the key and HMAC-SHA256.
    """

    keys: Keys
    shared: tuple[tuple[str, Keys], ...] = ()
    header: ClassVar[str] = "X-Twilio-Signature"
    needs_url: ClassVar[bool] = True

    def check(self, delivery: Delivery, now: datetime) -> str:
        given = header(delivery, self.header).encode()
        keys, algorithm = self._named(delivery)
        self._check_hash(delivery)
        try:
            fields = _fields(delivery)
        except BodyError as error:
            raise InvalidSignature(f"its form cannot be read: {error}") from None
        failure: InvalidSignature | None = None
        for url in with_and_without_port(delivery.url):
            signed = joined((url, fields))
            try:
                return check_seal(
                    keys,
                    now,
                    [given],
                    lambda key, signed=signed: encoded(hmac_of(key, signed, algorithm), "base64"),
                )
            except InvalidSignature as wrong:
                failure = failure or wrong
        assert failure is not None  # noqa: S101 - there is always one URL
        raise failure

    def _named(self, delivery: Delivery) -> tuple[Keys, Algorithm]:
        if _SETTINGS not in delivery.headers:
            return self.keys, "sha1"
        said = items_of(header(delivery, _SETTINGS))
        if said.get("algorithm") != "HMAC_SHA256":
            raise InvalidSignature(f"{_SETTINGS} names an algorithm that is not known here")
        for name, keys in self.shared:
            if name == said.get("key"):
                return keys, "sha256"
        raise InvalidSignature(f"{_SETTINGS} names a key that is not configured: shared_keys=")

    def _check_hash(self, delivery: Delivery) -> None:
        try:
            given = delivery.params.all("bodySHA256")
        except BodyError as error:
            raise InvalidSignature(f"its query cannot be read: {error}") from None
        if given:
            digest = hashlib.sha256(delivery.body).hexdigest()
            if len(given) > 1 or not hmac.compare_digest(given[0].encode(), digest.encode()):
                raise InvalidSignature("bodySHA256 is not the hash of this body", "body")
        elif delivery.body and delivery.media_type != FORM:
            raise InvalidSignature("a body that is no form needs bodySHA256 in the query", "body")

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        if delivery.body and delivery.media_type != FORM and "bodySHA256" not in delivery.query:
            digest = f"bodySHA256={hashlib.sha256(delivery.body).hexdigest()}"
            query = f"{delivery.query}&{digest}" if delivery.query else digest
            delivery = msgspec.structs.replace(delivery, query=query)
        signed = joined((delivery.url, _fields(delivery)))
        seal = encoded(hmac_of(self.keys.first(now), signed, "sha1"), "base64")
        return with_headers(delivery, {self.header: seal.decode()})


def _fields(delivery: Delivery) -> bytes:
    """Names in order, each followed by its distinct values in order."""
    if delivery.media_type != FORM or not delivery.body:
        return b""
    return "".join(name + value for name, value in sorted(set(form_pairs(delivery.body)))).encode()


@dataclass(frozen=True, slots=True)
class HubSpot(Scheme):
    """HMAC of method, URL, body and time (v3); older versions are bare hashes, if allowed."""

    keys: Keys
    tolerance: int  # ms
    versions: tuple[HubSpotVersion, ...] = ("v3",)
    header: ClassVar[str] = "X-HubSpot-Signature-v3"
    time: ClassVar[str] = "X-HubSpot-Request-Timestamp"
    old: ClassVar[str] = "X-HubSpot-Signature"
    needs_url: ClassVar[bool] = True

    def check(self, delivery: Delivery, now: datetime) -> str:
        if "v3" in self.versions and (self.header in delivery.headers or len(self.versions) == 1):
            return self._check_v3(delivery, now)
        given = header(delivery, self.old).encode()
        version = header(delivery, f"{self.old}-Version")
        if version not in self.versions or version == "v3":
            raise InvalidSignature(f"it is signed as {version!r:.10}, which is not allowed here")
        before = b"" if version == "v1" else joined((delivery.method, delivery.url))

        def seal(key: bytes) -> bytes:
            return hashlib.sha256(key + before + delivery.body).hexdigest().encode()

        return check_seal(self.keys, now, [given], seal)

    def _check_v3(self, delivery: Delivery, now: datetime) -> str:
        given, time = header(delivery, self.header).encode(), header(delivery, self.time)
        if not _MILLISECONDS.fullmatch(time):
            raise InvalidSignature(f"{self.time} is not a number of milliseconds in plain digits")
        urls = dict.fromkeys((delivery.url, _decoded(delivery.url)))
        texts = [joined((delivery.method, url, delivery.body, time)) for url in urls]

        def sealing(text: bytes) -> Callable[[bytes], bytes]:
            return lambda key: encoded(hmac_of(key, text), "base64")

        used = check_seal(self.keys, now, [given], *map(sealing, texts))
        check_age(int(time) // 1000, self.tolerance, now)
        return used

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time = str(stamp(now))
        signed = joined((delivery.method, delivery.url, delivery.body, time))
        seal = encoded(hmac_of(self.keys.first(now), signed), "base64").decode()
        return with_headers(delivery, {self.header: seal, self.time: time})


_PLAIN_AGAIN = {"3A": ":", "2F": "/", "3F": "?", "40": "@", "21": "!", "24": "$", "27": "'",
                "28": "(", "29": ")", "2A": "*", "2C": ",", "3B": ";"}  # fmt: skip
_ESCAPED = re.compile("%(" + "|".join(_PLAIN_AGAIN) + ")", re.IGNORECASE)


def _decoded(url: str) -> str:
    """The URL with the escapes undone that HubSpot undoes before it signs."""
    return _ESCAPED.sub(lambda found: _PLAIN_AGAIN[found[1].upper()], url)
