"""QStash's scheme: a signed token that names the destination and holds the hash of the body."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, cast

import msgspec

from relevo.clock import moment, stamp
from relevo.errors import BodyError
from relevo.pairs import wire
from relevo.signatures.keys import Keys
from relevo.signatures.scheme import (
    InvalidSignature,
    Nonce,
    Scheme,
    check_seal,
    header,
    with_headers,
)
from relevo.strictjson import parse_json
from relevo.webhook import Delivery

LONGEST = 16_384
"""A token holds the destination, and a URL may have 8 KiB."""

_BASE64URL = re.compile(rb"[A-Za-z0-9_-]+")
_LIFETIME = 300
_FAR = 10**11  # s


@dataclass(frozen=True, slots=True)
class QStash(Scheme):
    """A JWT under HS256, and under nothing else."""

    keys: Keys
    url: str
    leeway: int  # ms
    header: ClassVar[str] = "Upstash-Signature"

    def check(self, delivery: Delivery, now: datetime) -> str:
        signed, dot, seal = header(delivery, self.header, LONGEST).rpartition(".")
        if not dot or signed.count(".") != 1:
            raise InvalidSignature("the token is not three parts with dots between")
        # Before a look inside: the token does not choose how it is checked.
        used = check_seal(self.keys, now, [seal.encode()], lambda key: _seal(key, signed.encode()))
        head, claims = (_object(part) for part in signed.split("."))
        if head.get("alg") != "HS256" or head.get("typ", "JWT") != "JWT" or "crit" in head:
            raise InvalidSignature("the token is not a plain JWT under HS256", "claim")
        self._check_claims(claims, delivery)
        _check_body(claims, delivery)
        self._check_times(claims, now)
        return used

    def _check_claims(self, claims: dict[str, Any], delivery: Delivery) -> None:
        if claims.get("iss") != "Upstash":
            raise InvalidSignature("iss is not Upstash", "claim")
        if claims.get("sub") != self._destination(delivery):
            raise InvalidSignature("sub is not the URL that this door was given", "claim")
        if claims.get("aud"):
            raise InvalidSignature("aud names an audience, and QStash knows none", "claim")
        jti = claims.get("jti")
        if not isinstance(jti, str) or not 1 <= len(jti) <= 256:
            raise InvalidSignature("jti is not a text of 1 to 256 characters", "claim")
        for name in ("exp", "nbf", "iat"):
            if type(claims.get(name)) is not int or not 0 <= claims[name] <= _FAR:
                raise InvalidSignature(f"{name} is not a number of seconds", "claim")

    def _check_times(self, claims: dict[str, Any], now: datetime) -> None:
        at = stamp(now)
        late = at - claims["exp"] * 1000
        if late >= self.leeway:
            raise InvalidSignature(f"the token ended {late / 1000:.0f} s ago", "time")
        early = max(claims["nbf"], claims["iat"]) * 1000 - at
        if early > self.leeway:
            raise InvalidSignature(
                f"the token begins in {early / 1000:.0f} s: our clock may be behind", "time"
            )

    def _destination(self, delivery: Delivery) -> str:
        # Of our settings, for the Host header is the caller's. The query belongs to the
        # destination, and is signed with it.
        is_whole = "?" in self.url or not delivery.query
        return self.url if is_whole else f"{self.url}?{delivery.query}"

    def nonce(self, delivery: Delivery) -> Nonce | None:
        claims = _object(header(delivery, self.header, LONGEST).split(".")[1])
        return Nonce(claims["jti"], moment(claims["exp"] * 1000 + self.leeway))

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time = stamp(now) // 1000
        claims = {
            "iss": "Upstash",
            "sub": self._destination(delivery),
            "exp": time + _LIFETIME,
            "nbf": time,
            "iat": time,
            "jti": f"jwt_{delivery.id}",
            "body": base64.urlsafe_b64encode(hashlib.sha256(delivery.body).digest()).decode(),
        }
        parts = ({"alg": "HS256", "typ": "JWT"}, claims)
        signed = b".".join(_base64url(msgspec.json.encode(part)) for part in parts)
        token = signed + b"." + _seal(self.keys.first(now), signed)
        return with_headers(delivery, {self.header: token.decode()})


def _check_body(claims: dict[str, Any], delivery: Delivery) -> None:
    given = claims.get("body")
    if not isinstance(given, str):
        raise InvalidSignature("the token does not cover the body", "claim")
    mine = _base64url(hashlib.sha256(delivery.body).digest())
    if not hmac.compare_digest(mine, wire(given.rstrip("="))):
        raise InvalidSignature("the token is right, and of another body", "body")


def _seal(key: bytes, signed: bytes) -> bytes:
    return _base64url(hmac.digest(key, signed, "sha256"))


def _base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def _object(part: str) -> dict[str, Any]:
    tree: Any = None
    bare = part.encode().rstrip(b"=")
    try:
        if _BASE64URL.fullmatch(bare):
            tree = parse_json(base64.urlsafe_b64decode(bare + b"=" * (-len(bare) % 4)))
    except (ValueError, BodyError):
        pass
    if not isinstance(tree, dict):
        raise InvalidSignature("a part of the token is not a JSON object in base64url")
    return cast("dict[str, Any]", tree)
