"""What the car rental is told by its environment.

STRIPE_SECRET_KEY                          needed
STRIPE_WEBHOOK_SECRET                      needed; while it is rolled both, with a comma
STRIPE_API_BASE                            Stripe's own unless told otherwise
CARS_SUPPLIERS                             a file like suppliers.json, instead of it
CARS_SUPPLIER_SECONDS                      how long a supplier may take in all; 30
MEXGROUP_URL, MEXGROUP_USER, …             a supplier without its URL is not offered
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from relevo.apps.cars.gateways import (
    KINDS,
    Supplier,
    SupplierGatewayFactory,
    SupplierGatewaySelector,
)
from relevo.errors import SettingsError

SUPPLIERS = Path(__file__).with_name("suppliers.json")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the table of suppliers."""

    id: int
    name: str
    gateway: str


@dataclass(frozen=True, slots=True)
class CarsSettings:
    """Keys, addresses and accounts."""

    stripe_key: str = field(repr=False)
    stripe_webhook_secrets: tuple[str, ...] = field(repr=False)
    stripe_api_base: str
    suppliers: Mapping[int, Supplier]
    supplier_seconds: float

    @property
    def is_live(self) -> bool:
        """Whether the key moves real money; events of the other world are refused."""
        return "_live_" in self.stripe_key

    @property
    def askable(self) -> frozenset[int]:
        """The suppliers that can be asked whether they have a booking."""
        return frozenset(id for id, each in self.suppliers.items() if each.kind.can_find)


def read(environ: Mapping[str, str] | None = None) -> CarsSettings:
    """The settings; SettingsError naming everything that is wrong, never a value."""
    environ = os.environ if environ is None else environ
    wrong = [
        f"{name} is missing"
        for name in ("STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRET")
        if not environ.get(name)
    ]
    seconds = _seconds(environ.get("CARS_SUPPLIER_SECONDS", "30"), wrong)
    suppliers: dict[int, Supplier] = {}
    for row in _rows(environ.get("CARS_SUPPLIERS"), wrong):
        supplier = _supplier(row, environ, wrong)
        if supplier is not None and suppliers.setdefault(row.id, supplier) is not supplier:
            wrong.append(f"two suppliers have the id {row.id}")
    if wrong:
        raise SettingsError("cars: " + "; ".join(wrong))
    return CarsSettings(
        stripe_key=environ["STRIPE_SECRET_KEY"],
        stripe_webhook_secrets=tuple(environ["STRIPE_WEBHOOK_SECRET"].split(",")),
        stripe_api_base=environ.get("STRIPE_API_BASE", "https://api.stripe.com"),
        suppliers=suppliers,
        supplier_seconds=seconds,
    )


def askable(environ: Mapping[str, str] | None = None) -> frozenset[int]:
    """The same for whoever has no account of any supplier: support's command line."""
    rows = _rows((os.environ if environ is None else environ).get("CARS_SUPPLIERS"), [])
    kinds = {row.id: KINDS.get(row.gateway) for row in rows}
    return frozenset(id for id, kind in kinds.items() if kind is not None and kind.can_find)


def _rows(path: str | None, wrong: list[str]) -> list[Row]:
    try:
        return msgspec.json.decode(Path(path or SUPPLIERS).read_bytes(), type=list[Row])
    except (OSError, msgspec.DecodeError) as error:
        wrong.append(f"CARS_SUPPLIERS cannot be read: {type(error).__name__}")
        return []


def _supplier(row: Row, environ: Mapping[str, str], wrong: list[str]) -> Supplier | None:
    kind = KINDS.get(row.gateway)
    if kind is None:
        wrong.append(f"supplier {row.id}: no gateway is called {row.gateway!r:.40}")
        return None
    if not environ.get(f"{kind.prefix}_URL"):
        return None
    account = {name: environ.get(f"{kind.prefix}_{name}", "") for name in kind.needs}
    wrong += [f"{kind.prefix}_{name} is missing" for name, value in account.items() if not value]
    may = {name: environ.get(f"{kind.prefix}_{name}", value) for name, value in kind.may.items()}
    return Supplier(row.id, row.name, kind, account | may)


def _seconds(text: str, wrong: list[str]) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 40:  # the job that calls has 45
        wrong.append("CARS_SUPPLIER_SECONDS is not a number above 0 and up to 40")
    return seconds


@asynccontextmanager
async def open_settings(relevo: Any) -> AsyncGenerator[CarsSettings]:
    yield read()


@asynccontextmanager
async def open_gateways(relevo: Any) -> AsyncGenerator[SupplierGatewaySelector]:
    settings: CarsSettings = relevo.use(CarsSettings)
    factory = SupplierGatewayFactory(settings.suppliers, seconds=settings.supplier_seconds)
    try:
        yield SupplierGatewaySelector(factory)
    finally:
        await factory.close()
