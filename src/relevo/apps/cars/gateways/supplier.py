"""What every supplier has in common: the booking it is asked for, and what it answers with."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import cast

from relevo.apps.outside import Outside, Reply, as_objects
from relevo.errors import (
    MisuseError,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
)

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


class BookingStatus(StrEnum):
    """What came of asking a supplier for a booking."""

    SUCCESS = "SUCCESS"
    REFUSED = "REFUSED"  # it said no, and has no booking
    UNAVAILABLE = "UNAVAILABLE"  # it could not be asked, or turned us away: nothing was booked
    UNCERTAIN = "UNCERTAIN"  # its answer is lost, or says nothing: it may have the booking


@dataclass(frozen=True, slots=True)
class SupplierBookingResult:
    """What is left of a supplier's answer: its number for the booking, or why there is none."""

    supplier_reservation_code: str = ""
    status: BookingStatus = BookingStatus.SUCCESS
    error: ProviderError | None = None

    @classmethod
    def failed(cls, error: ProviderError) -> SupplierBookingResult:
        """The result of a call that raised."""
        match error:
            case ProviderRefused():
                status = BookingStatus.REFUSED
            case ProviderUncertain():
                status = BookingStatus.UNCERTAIN
            case _:
                status = BookingStatus.UNAVAILABLE
        return cls("", status, error)

    @property
    def why(self) -> str:
        """The reason for which there is no booking; empty after a success."""
        return "" if self.error is None else str(self.error)

    def code(self) -> str:
        """The supplier's number; the error where there is none."""
        if self.error is not None:
            raise self.error
        return self.supplier_reservation_code


class SupplierGateway(ABC):
    """One account at a supplier, behind the verbs that its protocol has.

    `book` raises a ProviderError: ProviderUncertain when the booking may exist. `find` then says
    whether it does, by our reservation code, and `cancel` gives a booking back; a protocol without
    these leaves them out.
    """

    def __init__(self, outside: Outside, account: Mapping[str, str]) -> None:
        self._outside = outside
        self._account = account

    @abstractmethod
    async def book(self, booking: Booking) -> SupplierBookingResult: ...

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        """The supplier's number of this booking; None when the supplier does not have it."""
        raise MisuseError(f"{self._outside.who} cannot be asked for a booking by our code")

    async def cancel(self, booking: Booking, number: str) -> None:
        """Give the booking of that number back; returns when the supplier no longer has it."""
        raise MisuseError(f"{self._outside.who} has no message that cancels a booking")


@dataclass(frozen=True, slots=True)
class Kind:
    """A protocol we speak, and what it needs: settings of the account, fields of the snapshot.

    Two settings have a meaning of their own: FIND, the address or message by which the supplier is
    asked for a booking by our code, and CANCEL, the one that cancels. Where an account has none of
    them, the supplier cannot be asked, and cannot cancel.
    """

    name: str
    prefix: str  # of its variables in the environment, unless a row of the suppliers' file has one
    build: Callable[[Outside, Mapping[str, str]], SupplierGateway]
    needs: tuple[str, ...]  # URL is always one of them
    may: Mapping[str, str] = field(default_factory=dict[str, str])  # with what they are otherwise
    fields: tuple[str, ...] = ()
    optional: Mapping[str, str] = field(default_factory=dict[str, str])
    check: Callable[[Mapping[str, str], date], Mapping[str, str]] = lambda snapshot, until: {}
    """What is wrong with a snapshot, by field, for a car that comes back on a day."""


@dataclass(frozen=True, slots=True)
class Supplier:
    """A supplier we have an account at."""

    id: int
    name: str
    kind: Kind
    account: Mapping[str, str] = field(repr=False)

    @property
    def can_find(self) -> bool:
        """Whether the supplier can be asked if it has a booking."""
        return bool(self.account.get("FIND"))

    @property
    def can_cancel(self) -> bool:
        return bool(self.account.get("CANCEL"))


def confirmed(value: object, reply: Reply) -> SupplierBookingResult:
    """A confirmation id as a result; nothing that only looks like one becomes a success."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _CONFIRMATION.fullmatch(text.strip()):
        raise reply.unreadable("no confirmation id")
    return SupplierBookingResult(text.strip())


def found(
    reply: Reply, listed: object, field: str, code: str, numbers: Sequence[str]
) -> SupplierBookingResult | None:
    """The booking that carries our code in a list of bookings; None when the list is empty.

    A list with bookings of other codes was not asked for: that supplier has not understood the
    question, and its list proves nothing.
    """
    if not isinstance(listed, list):
        raise reply.unreadable("no list of bookings")
    entries = cast("list[object]", listed)
    rows = as_objects(entries)
    if len(rows) != len(entries) or any(row.get(field) != code for row in rows):
        raise reply.unreadable(f"bookings that do not have our code as {field}")
    told = [row[name] for row in rows for name in numbers if row.get(name) not in (None, "")]
    if not rows:
        return None
    if len(rows) > 1 or not told:
        raise reply.unreadable(f"{len(rows)} bookings of our code")
    return confirmed(told[0], reply)


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
    """Our code on every call, for both sides' logs; the booking carries it in its own field."""
    return {"x-request-id": booking.code}
