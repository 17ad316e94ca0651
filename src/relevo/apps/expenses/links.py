"""Links that open a person's own expenses for a day, signed so that nobody can make one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from datetime import date, datetime, timedelta
from typing import NamedTuple

import msgspec

LIFE = timedelta(hours=24)
_TAG = 16


class Link(NamedTuple):
    """Whose expenses, and of which days."""

    user: str
    since: date
    until: date


class _Claims(msgspec.Struct, array_like=True):
    user: str
    since: date
    until: date
    ends: int


def make(key: bytes, link: Link, now: datetime) -> str:
    """The token of a link that lasts a day."""
    claims = _Claims(link.user, link.since, link.until, int((now + LIFE).timestamp()))
    body = msgspec.json.encode(claims)
    return base64.urlsafe_b64encode(_tag(key, body) + body).rstrip(b"=").decode()


def read(key: bytes, token: str, now: datetime) -> Link | None:
    """What a token opens; None if it is not ours, or its day is over."""
    if len(token) > 512:
        return None
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        tag, body = raw[:_TAG], raw[_TAG:]
        if not hmac.compare_digest(tag, _tag(key, body)):
            return None
        claims = msgspec.json.decode(body, type=_Claims)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
    if now.timestamp() >= claims.ends:
        return None
    return Link(claims.user, claims.since, claims.until)


def _tag(key: bytes, body: bytes) -> bytes:
    return hmac.digest(key, body, hashlib.sha256)[:_TAG]
