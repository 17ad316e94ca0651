"""HotelSecret: each hotel's own secret in the Beds24 webhook, which nobody signs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from relevo.apps.hotel import names
from relevo.apps.hotel.beds24 import HEADER, SECRET, hotel_of
from relevo.errors import BodyError
from relevo.signatures import InvalidSignature, Keys, Scheme, SharedSecret
from relevo.webhook import Delivery


@dataclass(frozen=True, slots=True, repr=False)
class HotelSecret(Scheme):
    """The secret of the hotel that a call names; in a header, the query or the body, once.

    A hotel we do not have fails like a wrong secret, and takes as long. A name that no hotel can
    have passes with anybody's secret, to be told what is wrong with it.
    """

    keys: Mapping[str, Keys]
    code: ClassVar[str] = "invalid_secret"

    @property
    def hides(self) -> frozenset[str]:
        return frozenset({HEADER, SECRET})

    def check(self, delivery: Delivery, now: datetime) -> str:
        try:
            hotel = hotel_of(delivery)
        except BodyError as error:
            raise InvalidSignature(f"the place of the hotel cannot be read: {error}") from None
        known = self.keys.get(hotel)
        if known is not None:
            return _shared(known, delivery).check(delivery, now)
        if names.is_part(hotel):
            _shared(_nobodys(self.keys), delivery).check(delivery, now)
            raise InvalidSignature("there is no such hotel", "mismatch")
        return _shared(_everybodys(self.keys), delivery).check(delivery, now)

    def sign(self, delivery: Delivery, now: datetime) -> Delivery:
        return _shared(self.keys[hotel_of(delivery)], delivery).sign(delivery, now)


def _shared(keys: Keys, delivery: Delivery) -> SharedSecret:
    """The scheme for one call; only where the secret is nowhere else is JSON looked into for it."""
    is_outside = HEADER in delivery.headers or SECRET in delivery.params
    return SharedSecret(keys, HEADER, SECRET, SECRET, None if is_outside else SECRET)


def _everybodys(keys: Mapping[str, Keys]) -> Keys:
    pairs = [
        (key, ready)
        for each in keys.values()
        for key, ready in zip(each.given, each.ready, strict=True)
    ]
    return Keys(tuple(key for key, _ in pairs), tuple(ready for _, ready in pairs))


def _nobodys(keys: Mapping[str, Keys]) -> Keys:
    """As many keys as some hotel has, none of which anybody knows."""
    some = next(iter(keys.values()))
    return Keys(some.given, tuple(bytes(len(each)) for each in some.ready))
