"""The circuit breaker around every booking, named as the flow's document names it.

Its state is the engine's: one breaker for each supplier, shared by all processes. It is declared
on BookSupplier, so that the bookings of a supplier that keeps failing are parked before they call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from relevo import Breaker
from relevo.apps.cars.gateways.supplier import Booking, SupplierBookingResult
from relevo.errors import ProviderError


@dataclass(frozen=True, slots=True)
class SupplierBreaker:
    """A breaker by supplier, and the call that it counts."""

    rule: Breaker

    async def __call__(
        self, book: Callable[[Booking], Awaitable[SupplierBookingResult]], booking: Booking
    ) -> SupplierBookingResult:
        """Book; SUCCESS, or a result that says why not. Its `code()` tells the breaker."""
        try:
            return await book(booking)
        except ProviderError as error:
            return SupplierBookingResult.failed(error)


async_supplier_breaker = SupplierBreaker(Breaker("supplier:{supplier_id}", window="5m"))
