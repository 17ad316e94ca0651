"""The suppliers: which there are is data, how each is spoken to is a file.

Another account of a protocol we speak is a line in suppliers.json; another protocol is one file
here, listed in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping

from relevo.apps.cars.gateways import hertz, infinity, mexgroup, niza, noleggiare
from relevo.apps.cars.gateways.supplier import (
    Booking,
    Driver,
    Kind,
    Supplier,
    SupplierBookingResult,
    SupplierGateway,
)
from relevo.apps.outside import Outside
from relevo.errors import ProviderRefused

__all__ = [
    "KINDS",
    "Booking",
    "Driver",
    "Kind",
    "Supplier",
    "SupplierBookingResult",
    "SupplierGateway",
    "SupplierGatewayFactory",
    "SupplierGatewaySelector",
]

KINDS: Mapping[str, Kind] = {
    module.KIND.name: module.KIND for module in (mexgroup, niza, infinity, noleggiare, hertz)
}


class SupplierGatewayFactory:
    """Makes the gateway of each configured supplier, once."""

    def __init__(self, suppliers: Mapping[int, Supplier], *, seconds: float) -> None:
        self._suppliers = suppliers
        self._seconds = seconds
        self._made: dict[str, SupplierGateway] = {}
        self._open: list[Outside] = []

    def get_adapter(self, supplier_id: str) -> SupplierGateway:
        """The gateway of a supplier, by its id as text."""
        made = self._made.get(supplier_id)
        if made is None:
            supplier = self._suppliers.get(int(supplier_id))
            if supplier is None:
                raise ProviderRefused(f"no supplier {supplier_id} is configured here")
            outside = Outside(supplier.name, supplier.account["URL"], seconds=self._seconds)
            self._open.append(outside)
            made = self._made[supplier_id] = supplier.kind.build(outside, supplier.account)
        return made

    async def close(self) -> None:
        for outside in self._open:
            await outside.close()


class SupplierGatewaySelector:
    """Finds the gateway for a reservation, by nothing but its supplier's id."""

    def __init__(self, factory: SupplierGatewayFactory) -> None:
        self._factory = factory

    def for_supplier(self, id: int) -> SupplierGateway:
        return self._factory.get_adapter(str(id))
