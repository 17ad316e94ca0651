"""Schemes whose signature is of chosen values, not of the whole body: Mailgun, Adyen, Mercado Pago.

The signatures of Mailgun and Mercado Pago do not cover the event: whoever saw one call can send
another body with it. The event is a hint; fetch the object before an effect that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

import msgspec

from relevo.clock import stamp
from relevo.errors import BodyError
from relevo.signatures.hmacs import encoded, hmac_of
from relevo.signatures.keys import Keys
from relevo.signatures.scheme import (
    InvalidSignature,
    Nonce,
    Scheme,
    check_age,
    check_seal,
    header,
    items_of,
    seconds,
    with_headers,
)
from relevo.strictjson import parse_json
from relevo.webhook import Delivery

_FAR = 10**11  # a time above it is in milliseconds


def _body(delivery: Delivery) -> dict[str, Any]:
    try:
        tree = parse_json(delivery.body)
    except BodyError as error:
        raise InvalidSignature(f"the place of the signature cannot be read: {error}") from None
    if not isinstance(tree, dict):
        raise InvalidSignature("the body is no object")
    return cast("dict[str, Any]", tree)


def _texts(owner: Any, *names: str) -> list[str]:
    owned = cast("dict[str, Any]", owner) if isinstance(owner, dict) else {}
    values: list[Any] = [owned.get(name) for name in names]
    if not all(isinstance(value, str) for value in values):
        raise InvalidSignature(f"the body has no {', '.join(names)}", "absent")
    return values


@dataclass(frozen=True, slots=True)
class Mailgun(Scheme):
    """HMAC of a time and a token inside the body; a token counts once."""

    keys: Keys
    tolerance: int  # ms

    def check(self, delivery: Delivery, now: datetime) -> str:
        time, token, given = self._read(delivery)
        used = check_seal(
            self.keys, now, [given.encode()], lambda key: _hex(key, (time + token).encode())
        )
        check_age(seconds(time, "the timestamp"), self.tolerance, now)
        return used

    def _read(self, delivery: Delivery) -> list[str]:
        return _texts(_body(delivery).get("signature"), "timestamp", "token", "signature")

    def nonce(self, delivery: Delivery) -> Nonce | None:
        time, token, _ = self._read(delivery)
        until = datetime.fromtimestamp(int(time), UTC) + timedelta(milliseconds=self.tolerance)
        return Nonce(token, until)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        time, token = str(stamp(now) // 1000), delivery.id.ljust(50, "a")
        seal = _hex(self.keys.first(now), (time + token).encode()).decode()
        tree = _body(delivery) | {
            "signature": {"timestamp": time, "token": token, "signature": seal}
        }
        return msgspec.structs.replace(delivery, body=msgspec.json.encode(tree))


def _hex(key: bytes, signed: bytes) -> bytes:
    return hmac_of(key, signed).hex().encode()


@dataclass(frozen=True, slots=True)
class AdyenItems(Scheme):
    """HMAC of eight values of each item of the body; every item must be right."""

    keys: Keys

    def check(self, delivery: Delivery, now: datetime) -> str:
        items = adyen_items(_body(delivery))
        if not items:
            raise InvalidSignature("the body has no notificationItems", "absent")
        used = ""
        for item in items:
            [given] = _texts(item.get("additionalData"), "hmacSignature")
            signed = _adyen_text(item)
            used = check_seal(
                self.keys,
                now,
                [given.encode()],
                lambda key, signed=signed: encoded(hmac_of(key, signed), "base64"),
            )
        return used

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        tree = _body(delivery)
        for item in adyen_items(tree):
            seal = encoded(hmac_of(self.keys.first(now), _adyen_text(item)), "base64").decode()
            item.setdefault("additionalData", {})["hmacSignature"] = seal
        return msgspec.structs.replace(delivery, body=msgspec.json.encode(tree))


def adyen_items(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a body of Adyen's; those that are no objects are left out."""
    listed = tree.get("notificationItems")
    found: list[Any] = [
        cast("dict[str, Any]", each).get("NotificationRequestItem")
        if isinstance(each, dict)
        else None
        for each in (cast("list[Any]", listed) if isinstance(listed, list) else [])
    ]
    if not all(isinstance(each, dict) for each in found):
        raise InvalidSignature("an item is no NotificationRequestItem")
    return cast("list[dict[str, Any]]", found)


def _adyen_text(item: dict[str, Any]) -> bytes:
    amount = item.get("amount")
    amount = cast("dict[str, Any]", amount) if isinstance(amount, dict) else {}
    names = ("pspReference", "originalReference", "merchantAccountCode", "merchantReference")
    values = [item.get(name) for name in names]
    values += [amount.get("value"), amount.get("currency"), item.get("eventCode")]
    values.append(item.get("success"))
    return ":".join("" if value is None else _plain(value) for value in values).encode()


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True, slots=True)
class MercadoPago(Scheme):
    """HMAC of an id in the query, the request's id and a time; the body is not signed."""

    keys: Keys
    tolerance: int | None = None  # ms; None: the time is not looked at
    header: ClassVar[str] = "x-signature"
    request: ClassVar[str] = "x-request-id"

    def check(self, delivery: Delivery, now: datetime) -> str:
        items = items_of(header(delivery, self.header))
        time, given = items.get("ts", ""), items.get("v1", "")
        if not time or not given:
            raise InvalidSignature(f"{self.header} has no ts and v1")
        try:
            ids = delivery.params.all("data.id")
        except BodyError as error:
            raise InvalidSignature(f"its query cannot be read: {error}") from None
        if len(ids) > 1:
            raise InvalidSignature("data.id came more than once")
        id = ids[0] if ids else ""
        texts = [self._text(spelled, delivery, time) for spelled in dict.fromkeys((id, id.lower()))]

        def sealing(text: bytes) -> Callable[[bytes], bytes]:
            return lambda key: _hex(key, text)

        used = check_seal(self.keys, now, [given.encode()], *map(sealing, texts))
        if self.tolerance is not None:
            at = seconds(time[:12], "ts") if len(time) <= 12 else int(time[:15])
            check_age(at // 1000 if at > _FAR else at, self.tolerance, now)
        return used

    def _text(self, id: str, delivery: Delivery, time: str) -> bytes:
        request = delivery.header(self.request) or ""
        said = (("id", id), ("request-id", request), ("ts", time))
        return "".join(f"{name}:{value};" for name, value in said if value).encode()

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        if self.request not in delivery.headers:
            delivery = with_headers(delivery, {self.request: delivery.id})
        time = str(stamp(now) // 1000)
        ids = delivery.params.all("data.id")
        seal = _hex(self.keys.first(now), self._text(ids[0] if ids else "", delivery, time))
        return with_headers(delivery, {self.header: f"ts={time},v1={seal.decode()}"})


@dataclass(frozen=True, slots=True)
class Linear(Scheme):
    """HMAC of the body in a header, and the time inside the body, in milliseconds."""

    keys: Keys
    tolerance: int  # ms
    header: ClassVar[str] = "Linear-Signature"
    time: ClassVar[str] = "webhookTimestamp"

    def check(self, delivery: Delivery, now: datetime) -> str:
        given = header(delivery, self.header).encode()
        used = check_seal(self.keys, now, [given], lambda key: _hex(key, delivery.body))
        time = _body(delivery).get(self.time)
        if type(time) is not int or not 0 <= time < 10**15:
            raise InvalidSignature(f"{self.time} of the body is not a time in milliseconds")
        check_age(time // 1000, self.tolerance, now)
        return used

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        body = msgspec.json.encode(_body(delivery) | {self.time: stamp(now)})
        signed = msgspec.structs.replace(delivery, body=body)
        return with_headers(signed, {self.header: _hex(self.keys.first(now), body).decode()})
