"""A secret that travels with the delivery itself, for providers that do not sign: Beds24."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import quote_plus, unquote_to_bytes

import msgspec

from relevo.errors import BodyError
from relevo.pairs import wire
from relevo.sensitive import HIDDEN
from relevo.signatures.keys import Keys
from relevo.signatures.scheme import (
    LONGEST,
    InvalidSignature,
    Scheme,
    check_seal,
    header,
    with_headers,
)
from relevo.webhook import FORM, Delivery

_TEXT = rb'"(?:[^"\\]|\\.)*+"'


@dataclass(frozen=True, slots=True)
class SharedSecret(Scheme):
    """The secret in a header, the query, a form's field or a JSON object's; there, and once."""

    keys: Keys
    header: str | None
    query: str | None
    form: str | None
    json: str | None
    code: ClassVar[str] = "invalid_secret"

    @property
    def hides(self) -> frozenset[str]:
        return frozenset(name for name in (self.header, self.query) if name)

    def check(self, delivery: Delivery, now: datetime) -> str:
        return check_seal(self.keys, now, [self.given(delivery)], lambda key: key)

    def bare(self, delivery: Delivery) -> bytes:
        # By its name: a secret may be escaped in many ways, and a wrong one may nearly be right.
        if self.json and delivery.media_type == "application/json":
            return _without_member(delivery, self.json)
        return _without_field(delivery.body, self.form) if self.form else delivery.body

    def given(self, delivery: Delivery) -> bytes:
        """The secret as it came."""
        try:
            found = self._find(delivery)
        except BodyError as error:
            reason = f"the place of the secret cannot be read: {error}"
        else:
            if not found:
                raise InvalidSignature("there is no secret where it should be", "absent")
            if len(found) > 1:
                raise InvalidSignature(f"the secret came {len(found)} times")
            if len(found[0]) > LONGEST:
                raise InvalidSignature(f"the secret is longer than {LONGEST:,} bytes")
            return found[0]
        raise InvalidSignature(reason)

    def _find(self, delivery: Delivery) -> list[bytes]:
        found: list[bytes] = []
        if self.header:
            found += map(wire, delivery.headers.all(self.header))
        if self.query:
            found += map(str.encode, delivery.params.all(self.query))
        if self.form and delivery.media_type == FORM:
            found += map(str.encode, delivery.form.all(self.form))
        # Only here is a parser fed before the caller is known, and only if the app asked for it.
        if self.json and delivery.media_type == "application/json" and delivery.body:
            tree = delivery.json
            # In another case it would be kept with the body, so it counts there as in a form.
            values: list[Any] = [tree[each] for each in _members(tree, self.json)]
            if not all(isinstance(value, str) for value in values):
                raise BodyError("it is not text")
            found += [value.encode() for value in values if value] if self.json in tree else []
        return found

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        secret = self.keys.first(now).decode()
        if self.header:
            # A header is bytes: one character for each.
            return with_headers(delivery, {self.header: secret.encode().decode("latin-1")})
        if self.query:
            return msgspec.structs.replace(
                delivery, query=_joined(delivery.query, self.query, secret)
            )
        if self.form:
            body = _joined(delivery.body.decode(), self.form, secret).encode()
            sent = with_headers(delivery, {"content-type": FORM})
        else:
            tree = {**delivery.json, str(self.json): secret}
            body = msgspec.json.encode(tree)
            sent = with_headers(delivery, {"content-type": "application/json"})
        return msgspec.structs.replace(sent, body=body)


def _without_field(body: bytes, name: str) -> bytes:
    return b"&".join(_hidden(part, name.lower()) for part in body.split(b"&"))


def _hidden(part: bytes, name: str) -> bytes:
    written, equals, value = part.partition(b"=")
    plain = unquote_to_bytes(written.replace(b"+", b" ")).decode("utf-8", "replace")
    is_secret = value and plain.strip().lower().removesuffix("[]") == name
    return written + equals + HIDDEN.encode() if is_secret else part


def _without_member(delivery: Delivery, name: str) -> bytes:
    key = re.escape(msgspec.json.encode(name))
    text = re.compile(rb"(%b\s*:\s*)%b" % (key, _TEXT), re.IGNORECASE)
    body = text.sub(rb'\1"%b"' % HIDDEN.encode(), delivery.body)
    # The name itself may be escaped, or what it names no text; then it is written anew.
    try:
        tree = msgspec.structs.replace(delivery, body=body).json
    except BodyError:
        return body
    named = _members(tree, name)
    is_bare = all(tree[each] == HIDDEN for each in named)
    return body if is_bare else msgspec.json.encode(tree | dict.fromkeys(named, HIDDEN))


def _members(tree: dict[str, Any], name: str) -> list[str]:
    """The members of that name, in upper or lower case."""
    return [each for each in tree if each.lower() == name.lower()]


def _joined(fields: str, name: str, value: str) -> str:
    field = f"{quote_plus(name)}={quote_plus(value)}"
    return f"{fields}&{field}" if fields else field


@dataclass(frozen=True, slots=True)
class Basic(Scheme):
    """A user and a password of HTTP Basic, as they stand in the URL that a provider was given."""

    user: str
    keys: Keys
    code: ClassVar[str] = "invalid_secret"

    @property
    def hides(self) -> frozenset[str]:
        return frozenset({"authorization"})

    def check(self, delivery: Delivery, now: datetime) -> str:
        scheme, _, given = header(delivery, "Authorization").partition(" ")
        if scheme.lower() != "basic":
            raise InvalidSignature("Authorization is not Basic")
        return check_seal(self.keys, now, [given.strip().encode()], self._pair)

    def _pair(self, key: bytes) -> bytes:
        return base64.b64encode(self.user.encode() + b":" + key)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        pair = self._pair(self.keys.first(now)).decode()
        return with_headers(delivery, {"Authorization": f"Basic {pair}"})
