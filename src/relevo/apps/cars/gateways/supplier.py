"""What every supplier has in common: the booking it is asked for, and what it answers with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Protocol

from relevo.apps.outside import Outside, Reply
from relevo.errors import ProviderError, ProviderRefused, ProviderUnavailable, ProviderUncertain

_CONFIRMATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._:/#-]{0,63}", re.ASCII)
_OF_LOGIN = re.compile(
    r"\b(?:log ?[io]n|sign ?in|passw|credential|authenti|(?:un)?authori[sz]|access denied|user|"
    r"contrase[nñ]a|credencial|autentica|usu[aá]rio|acceso denegado|"
    r"senha|palavra.?(?:passe|chave)|credencia|utilizador|acesso negado)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Driver:
    """Who drives the car."""

    first_name: str
    last_name: str
    email: str
    phone: str
    birth_date: date


@dataclass(frozen=True, slots=True)
class Booking:
    """A paid reservation as a gateway sees it. Times are local at the office, without a zone."""

    code: str
    pickup_at: datetime
    dropoff_at: datetime
    pickup_location: str
    dropoff_location: str
    driver: Driver
    flight: str
    amount: Decimal
    currency: str
    snapshot: Mapping[str, str]  # the supplier's own words, from the availability it answered


@dataclass(frozen=True, slots=True)
class SupplierBookingResult:
    """What is left of a supplier's answer: its number for the booking."""

    supplier_reservation_code: str


class SupplierGateway(Protocol):
    """One supplier's protocol behind two verbs.

    `book` raises ProviderUncertain when the booking may exist; `find`, where `can_find`, then says
    whether it does, by our own reservation code.
    """

    can_find: bool

    async def book(self, booking: Booking) -> SupplierBookingResult: ...

    async def find(self, booking: Booking) -> SupplierBookingResult | None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A protocol we speak, and what it needs: settings of the account, fields of the snapshot."""

    name: str
    prefix: str  # of its variables in the environment
    build: Callable[[Outside, Mapping[str, str]], SupplierGateway]
    needs: tuple[str, ...]  # URL is always one of them
    may: Mapping[str, str] = field(default_factory=dict[str, str])  # with what they are otherwise
    fields: tuple[str, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict[str, str])
    can_find: bool = False  # as its gateway


@dataclass(frozen=True, slots=True)
class Supplier:
    """A supplier we have an account at."""

    id: int
    name: str
    kind: Kind
    account: Mapping[str, str] = field(repr=False)


def confirmed(value: object, reply: Reply) -> SupplierBookingResult:
    """A confirmation id as a result; nothing that only looks like one becomes a success."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _CONFIRMATION.fullmatch(text.strip()):
        raise reply.unreadable("no confirmation id")
    return SupplierBookingResult(text.strip())


def said(reply: Reply, message: object) -> str:
    """A supplier's own words for an error, short and on one line."""
    words = _short(message)
    return f"{reply.who} says: {words}" if words else f"{reply.who} answered {reply.status}"


def refused(reply: Reply, message: object) -> ProviderError:
    """Its `no` to a booking; with a 5xx or a 429 rather a `not now`, and nothing was booked.

    With a 502 or 504 it is no word of the supplier's at all: something in front of it gave up
    waiting (`{"message": "Endpoint request timed out"}`), and the booking may have been made.
    """
    if reply.status in (502, 504):
        return ProviderUncertain(said(reply, message))
    if reply.status == 429 or reply.status >= 500:
        return ProviderUnavailable(said(reply, message))
    return ProviderRefused(said(reply, message))


def bad_login(reply: Reply, message: object = None) -> ProviderError:
    """Our credentials do not open the door.

    Everyone's bookings would fail alike, and all of them work once the password is mended: so the
    breaker opens and keeps them, instead of each becoming a dead letter.
    """
    return ProviderUnavailable(f"{reply.who} refuses our login ({_short(message) or reply.status})")


def denied(reply: Reply, message: object) -> ProviderError:
    """Its `no` in free text, where only the words tell a wrong login from a booking refused.

    None of them documents those words, so any that speak of a login count: what is taken for one
    wrongly is tried again and dies a little later, what is missed kills everyone's bookings.
    """
    if _OF_LOGIN.search(str(message or "")):
        return bad_login(reply, message)
    return ProviderRefused(said(reply, message))


def _short(message: object) -> str:
    return " ".join(str(message or "").split())[:200]


def reference(booking: Booking) -> dict[str, str]:
    """Our code on every call, for both sides' logs; no supplier promises more for it."""
    return {"x-request-id": booking.code}
