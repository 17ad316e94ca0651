"""Orders about reservations."""

from __future__ import annotations

from relevo import Breaker, Command, exponential
from relevo.apps.cars.gateways.breaker import async_supplier_breaker

BACKOFF = exponential("15s", cap="10m", jitter=0)
"""15 s, 30 s, 60 s … to the letter; what fails together is spread by the supplier's breaker."""


class BookSupplier(
    Command,
    queue="cars:suppliers:book",
    attempts=6,
    backoff=BACKOFF,
    timeout="45s",
    key="book:{reservation_code}",
    unique="forever",
    breaker=async_supplier_breaker.rule,
    fair="supplier:{supplier_id}",
):
    """Make a paid reservation a booking at its supplier: the outbox's BOOK_SUPPLIER."""

    reservation_code: str
    supplier_id: int


class FinishPayment(
    Command,
    queue="cars:payments:finish",
    attempts=8,
    backoff=exponential("30s", cap="30m"),
    timeout="45s",
    key="finish:{reservation_code}",
    unique="unfinished",
    breaker=Breaker("stripe", window="30m"),
):
    """See how a payment ended that was begun: its request may have died on the way."""

    reservation_code: str


class MirrorOutbox(
    Command,
    queue="cars:outbox:mirror",
    attempts=5,
    backoff=exponential("1s"),
    timeout="15s",
    keep="1h",
):
    """Write into outbox_events what the engine made of an order after its run."""

    reservation_code: str


class CancelBooking(
    Command,
    queue="cars:suppliers:cancel",
    attempts=6,
    backoff=BACKOFF,
    timeout="45s",
    key="cancel:{reservation_code}",
    unique="forever",
    breaker=async_supplier_breaker.rule,
):
    """Give back at the supplier what it may have booked; without a number it is looked up."""

    reservation_code: str
    supplier_id: int
    number: str = ""


class Refund(
    Command,
    queue="cars:payments:refund",
    attempts=8,
    backoff=exponential("30s", cap="30m"),
    timeout="45s",
    key="refund:{reservation_code}:{owed_at}",
    unique="forever",
    breaker=Breaker("stripe", window="30m"),
):
    """Give the money of these payments back to the customer, each once."""

    reservation_code: str
    owed_at: int  # the line of the history that says so
    intents: list[str]
