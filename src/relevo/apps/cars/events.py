"""Facts about reservations."""

from __future__ import annotations

from relevo import Event


class ReservationPaid(Event, name="reservation.paid"):
    """The customer has paid; the supplier does not know yet."""

    reservation_code: str
    supplier_id: int


class ReservationConfirmed(Event, name="reservation.confirmed"):
    """The supplier has the booking."""

    reservation_code: str
    supplier_id: int
    supplier_reservation_code: str


class ReservationStuck(Event, name="reservation.stuck"):
    """A paid reservation waits for a person: its order is held, or was given up."""

    reservation_code: str
    supplier_id: int
    state: str
    reason: str
