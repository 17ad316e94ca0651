"""Schemes of a key pair: the provider signs with a key of which we know the public half only.

They need the package `cryptography` (`pip install 'relevo[keypairs]'`).
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, cast
from urllib.parse import SplitResult, urlsplit
from zlib import crc32

from relevo.clock import stamp
from relevo.errors import BodyError, MisuseError, SettingsError
from relevo.signatures.scheme import (
    InvalidSignature,
    Scheme,
    check_age,
    header,
    seconds,
    with_headers,
)
from relevo.strictjson import parse_json
from relevo.webhook import Delivery

_HEX = re.compile(r"[0-9a-f]{128}")
_MISMATCH = "the public key does not fit this signature"


def _require(owner: str) -> None:
    if importlib.util.find_spec("cryptography") is None:
        raise SettingsError(
            f"{owner} needs the package cryptography: pip install 'relevo[keypairs]'"
        )


@dataclass(frozen=True, slots=True)
class Ed25519(Scheme):
    """Ed25519 over time and body, as Discord signs. `seed` is a private half, for tests alone."""

    public: bytes = field(repr=False)
    tolerance: int | None = None  # ms; None: the time is not looked at
    seed: bytes | None = field(default=None, repr=False)
    header: ClassVar[str] = "X-Signature-Ed25519"
    time: ClassVar[str] = "X-Signature-Timestamp"

    @classmethod
    def read(
        cls, owner: str, public: str | None, tolerance: int | None, seed: str | None
    ) -> Ed25519:
        """The scheme of a public key in hex; SettingsError if it is none."""
        try:
            key = bytes.fromhex(public or "")
            private = None if seed is None else bytes.fromhex(seed)
        except ValueError:
            key, private = b"", None
        if len(key) != 32:
            raise SettingsError(f"{owner} needs the application's public key: 64 hex digits")
        _require(owner)
        return cls(key, tolerance, private)

    def check(self, delivery: Delivery, now: datetime) -> None:
        value, time = header(delivery, self.header), header(delivery, self.time)
        if not _HEX.fullmatch(value.lower()):
            raise InvalidSignature(f"{self.header} is not 128 hex digits")
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        public = Ed25519PublicKey.from_public_bytes(self.public)
        if not _fits(lambda: public.verify(bytes.fromhex(value), time.encode() + delivery.body)):
            raise InvalidSignature(_MISMATCH, "mismatch")
        if self.tolerance is not None:
            check_age(seconds(time, self.time), self.tolerance, now)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        if self.seed is None:
            raise MisuseError(
                "only the provider has the private key: give a test's own pair, with seed="
            )
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        time = str(stamp(now) // 1000)
        private = Ed25519PrivateKey.from_private_bytes(self.seed)
        seal = private.sign(time.encode() + delivery.body).hex()
        return with_headers(delivery, {self.header: seal, self.time: time})


def _fits(verify: Callable[[], object]) -> bool:
    from cryptography.exceptions import InvalidSignature as Wrong

    try:
        verify()
    except Wrong:
        return False
    return True


@dataclass(frozen=True, slots=True)
class Ecdsa(Scheme):
    """ECDSA P-256 over time and body, as SendGrid signs. `private` is in PEM, for tests alone."""

    public: bytes = field(repr=False)  # DER
    tolerance: int | None = None
    private: bytes | None = field(default=None, repr=False)
    header: ClassVar[str] = "X-Twilio-Email-Event-Webhook-Signature"
    time: ClassVar[str] = "X-Twilio-Email-Event-Webhook-Timestamp"

    @classmethod
    def read(
        cls, owner: str, public: str | None, tolerance: int | None, private: str | None
    ) -> Ecdsa:
        """The scheme of a public key in base64; SettingsError if it is none."""
        _require(owner)
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        der = b""
        try:
            der = base64.b64decode((public or "").encode(), validate=True)
            key = load_der_public_key(der)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, EllipticCurvePublicKey):
            raise SettingsError(
                f"{owner} needs the verification key of its settings page: base64 without lines"
            )
        return cls(der, tolerance, None if private is None else private.encode())

    def check(self, delivery: Delivery, now: datetime) -> None:
        value, time = header(delivery, self.header), header(delivery, self.time)
        try:
            seal = base64.b64decode(value.encode(), validate=True)
        except binascii.Error:
            raise InvalidSignature(f"{self.header} is not base64") from None
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_der_public_key

        public: Any = load_der_public_key(self.public)
        algorithm = ECDSA(SHA256())
        if not _fits(lambda: public.verify(seal, time.encode() + delivery.body, algorithm)):
            raise InvalidSignature(_MISMATCH, "mismatch")
        if self.tolerance is not None:
            check_age(seconds(time, self.time), self.tolerance, now)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        if self.private is None:
            raise MisuseError(
                "only the provider has the private key: give a test's own pair, with private="
            )
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        time = str(stamp(now) // 1000)
        key: Any = load_pem_private_key(self.private, None)
        seal: bytes = key.sign(time.encode() + delivery.body, ECDSA(SHA256()))
        return with_headers(
            delivery, {self.header: base64.b64encode(seal).decode(), self.time: time}
        )


def _certified(
    owner: str, pem: bytes, seal: bytes, signed: bytes, *, is_sha1: bool = False
) -> bool:
    _require(owner)
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA1, SHA256

    public: Any = x509.load_pem_x509_certificate(pem).public_key()
    algorithm = SHA1() if is_sha1 else SHA256()  # noqa: S303 - version 1 of AWS
    return _fits(lambda: public.verify(seal, signed, PKCS1v15(), algorithm))


Certificates = Mapping[str, bytes] | Callable[[str], bytes | None]
"""The certificate in PEM at an address, already downloaded and checked; None if there is none."""


def _certificate(certificates: Certificates, url: str) -> bytes:
    found = certificates(url) if callable(certificates) else certificates.get(url)
    if found is None:
        raise InvalidSignature("no certificate is configured for the address that it names")
    return found


_SNS_HOST = re.compile(r"sns\.[a-z0-9-]{3,32}\.amazonaws\.com(\.cn)?")
_SNS_KEYS = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": (
        *("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    ),
}
_SNS_KEYS["UnsubscribeConfirmation"] = _SNS_KEYS["SubscriptionConfirmation"]


def is_of_sns(url: str) -> bool:
    """Whether an address is one of AWS SNS, over HTTPS."""
    parts = _parted(url)
    return parts.scheme == "https" and bool(_SNS_HOST.fullmatch(parts.netloc))


def _parted(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        raise InvalidSignature("the address of its certificate is no URL") from None


@dataclass(frozen=True, slots=True)
class Sns(Scheme):
    """RSA over named fields of the body, as AWS SNS signs; certificates are handed in."""

    certificates: Certificates = field(repr=False)
    topics: frozenset[str]

    def check(self, delivery: Delivery, now: datetime) -> None:
        try:
            tree = parse_json(delivery.body)
        except BodyError as error:
            raise InvalidSignature(f"the body cannot be read: {error}") from None
        if not isinstance(tree, dict):
            raise InvalidSignature("the body is no object")
        fields = cast("dict[str, Any]", tree)
        names = _SNS_KEYS.get(str(fields.get("Type")))
        version, url = fields.get("SignatureVersion"), str(fields.get("SigningCertURL"))
        if names is None or version not in ("1", "2"):
            raise InvalidSignature("its Type or SignatureVersion is not one of AWS SNS")
        if not is_of_sns(url) or not urlsplit(url).path.endswith(".pem"):
            raise InvalidSignature("its certificate is not at an address of AWS SNS")
        parts = [(name, fields[name]) for name in names if fields.get(name) is not None]
        if not all(isinstance(value, str) for _, value in parts):
            raise InvalidSignature("a signed field is no text")
        signed = "".join(f"{name}\n{value}\n" for name, value in parts).encode()
        try:
            seal = base64.b64decode(str(fields.get("Signature")).encode(), validate=True)
        except binascii.Error:
            raise InvalidSignature("its Signature is not base64") from None
        pem = _certificate(self.certificates, url)
        if not _certified("sns()", pem, seal, signed, is_sha1=version == "1"):
            raise InvalidSignature("the certificate does not fit this signature", "mismatch")
        if fields.get("TopicArn") not in self.topics:
            raise InvalidSignature("it is of a topic that is not configured: topics=", "claim")


@dataclass(frozen=True, slots=True)
class PayPal(Scheme):
    """RSA over id, time, webhook id and a checksum of the body; certificates are handed in."""

    webhook_id: str
    certificates: Certificates = field(repr=False)

    def check(self, delivery: Delivery, now: datetime) -> None:
        names = ("ID", "TIME", "SIG")
        id, time, seal64 = (header(delivery, f"PAYPAL-TRANSMISSION-{name}") for name in names)
        url, algorithm = header(delivery, "PAYPAL-CERT-URL"), header(delivery, "PAYPAL-AUTH-ALGO")
        parts, host = _parted(url), _parted(url).netloc
        if parts.scheme != "https" or not (host == "paypal.com" or host.endswith(".paypal.com")):
            raise InvalidSignature("its certificate is not at an address of PayPal")
        if algorithm != "SHA256withRSA":
            raise InvalidSignature("PAYPAL-AUTH-ALGO is not SHA256withRSA")
        try:
            seal = base64.b64decode(seal64.encode(), validate=True)
        except binascii.Error:
            raise InvalidSignature("PAYPAL-TRANSMISSION-SIG is not base64") from None
        signed = f"{id}|{time}|{self.webhook_id}|{crc32(delivery.body)}".encode()
        pem = _certificate(self.certificates, url)
        if not _certified("paypal()", pem, seal, signed):
            raise InvalidSignature("the certificate does not fit this signature", "mismatch")
