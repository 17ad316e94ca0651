"""The suppliers: which there are is data, how each is spoken to is a file.

Another account of a protocol we speak is a row of the suppliers' file; another protocol is one file
anywhere, which the row names as `package.module:KIND`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from relevo.apps.cars.gateways import hertz, infinity, mexgroup, niza, noleggiare
from relevo.apps.cars.gateways.supplier import (
    Booking,
    BookingStatus,
    Driver,
    Kind,
    Supplier,
    SupplierBookingResult,
    SupplierGateway,
)
from relevo.apps.outside import Outside
from relevo.errors import ProviderRefused, SettingsError

__all__ = [
    "KINDS",
    "Booking",
    "BookingStatus",
    "Driver",
    "Kind",
    "Supplier",
    "SupplierBookingResult",
    "SupplierGateway",
    "SupplierGatewayFactory",
    "SupplierGatewaySelector",
    "kind_of",
]

KINDS: Mapping[str, Kind] = {
    module.KIND.name: module.KIND for module in (mexgroup, niza, infinity, noleggiare, hertz)
}


def kind_of(name: str) -> Kind:
    """The protocol of a name: one of KINDS, or the KIND of a file, as `package.module:KIND`."""
    module, colon, attribute = name.partition(":")
    if not colon and name in KINDS:
        return KINDS[name]
    if not colon:
        known = ", ".join(sorted(KINDS))
        raise SettingsError(
            f"no gateway is called {name!r:.60}: name one of {known}, or a file's KIND as "
            "package.module:KIND"
        )
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError as error:
        raise SettingsError(f"the gateway {name!r:.60} cannot be imported: {error}") from error
    if not isinstance(found, Kind):
        raise SettingsError(f"{name!r:.60} is no Kind of relevo.apps.cars.gateways")
    return found


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
