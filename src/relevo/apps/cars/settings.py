"""What the car rental is told by its environment.

STRIPE_SECRET_KEY                          needed
STRIPE_WEBHOOK_SECRET                      needed; while it is rolled both, with a comma
STRIPE_API_BASE                            Stripe's own unless told otherwise
CARS_SUPPLIERS                             a file like suppliers.json, instead of it
CARS_SUPPLIER_SECONDS                      how long a supplier may take in all; 30
CARS_CLIENT_URL                            is told of what is paid and confirmed, as a webhook
CARS_SUPPORT_URL                           is told of what waits for a person
CARS_WEBHOOK_SECRET                        signs both; needed where there is one: whsec_…
MEXGROUP_URL, MEXGROUP_USER, …             a supplier without its URL is not offered

The variables of a supplier begin with its gateway's prefix, or with the `environ` of its row: so
two accounts of one protocol are two rows, each with an `environ` of its own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from relevo import sources
from relevo.apps.cars.gateways import (
    Kind,
    Supplier,
    SupplierGatewayFactory,
    SupplierGatewaySelector,
    kind_of,
)
from relevo.errors import RelevoError, SettingsError

SUPPLIERS = Path(__file__).with_name("suppliers.json")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A supplier of the suppliers' file; `environ` begins the names of its variables."""

    id: int
    name: str
    gateway: str  # one of KINDS, or package.module:KIND
    environ: str | None = None


@dataclass(frozen=True, slots=True)
class CarsSettings:
    """Keys, addresses and accounts."""

    stripe_key: str = field(repr=False)
    stripe_webhook_secrets: tuple[str, ...] = field(repr=False)
    stripe_api_base: str
    suppliers: Mapping[int, Supplier]
    supplier_seconds: float
    client_url: str = ""
    support_url: str = ""
    webhook_secret: str = field(default="", repr=False)

    @property
    def is_live(self) -> bool:
        """Whether the key moves real money; events of the other world are refused."""
        return "_live_" in self.stripe_key

    @property
    def askable(self) -> frozenset[int]:
        """The suppliers that can be asked whether they have a booking."""
        return frozenset(id for id, each in self.suppliers.items() if each.can_find)

    @property
    def cancellable(self) -> frozenset[int]:
        """The suppliers that take a message that cancels a booking."""
        return frozenset(id for id, each in self.suppliers.items() if each.can_cancel)


def read(environ: Mapping[str, str] | None = None) -> CarsSettings:
    """The settings; SettingsError naming everything that is wrong, never a value."""
    environ = os.environ if environ is None else environ
    wrong = [
        f"{name} is missing"
        for name in ("STRIPE_SECRET_KEY", "STRIPE_WEBHOOK_SECRET")
        if not environ.get(name)
    ]
    seconds = _seconds(environ.get("CARS_SUPPLIER_SECONDS", "30"), wrong)
    suppliers = _suppliers(environ, wrong)
    client_url, support_url = (
        _address(environ, name, wrong) for name in ("CARS_CLIENT_URL", "CARS_SUPPORT_URL")
    )
    webhook_secret = environ.get("CARS_WEBHOOK_SECRET", "")
    if webhook_secret or client_url or support_url:
        try:
            sources.standard(webhook_secret or None)
        except RelevoError as error:
            wrong.append(f"CARS_WEBHOOK_SECRET is no secret of Standard Webhooks: {error}")
    if wrong:
        raise SettingsError("cars: " + "; ".join(wrong))
    return CarsSettings(
        stripe_key=environ["STRIPE_SECRET_KEY"],
        stripe_webhook_secrets=tuple(environ["STRIPE_WEBHOOK_SECRET"].split(",")),
        stripe_api_base=environ.get("STRIPE_API_BASE", "https://api.stripe.com"),
        suppliers=suppliers,
        supplier_seconds=seconds,
        client_url=client_url,
        support_url=support_url,
        webhook_secret=webhook_secret,
    )


def powers(environ: Mapping[str, str] | None = None) -> tuple[frozenset[int], frozenset[int]]:
    """The suppliers that can be asked, and that can cancel, for a command line without accounts."""
    environ = os.environ if environ is None else environ
    found: dict[str, set[int]] = {"FIND": set(), "CANCEL": set()}
    for row in _rows(environ.get("CARS_SUPPLIERS"), []):
        try:
            kind = kind_of(row.gateway)
        except SettingsError:
            continue  # only where bookings are made does its file have to be there
        for name, ids in found.items():
            if environ.get(f"{row.environ or kind.prefix}_{name}", kind.may.get(name)):
                ids.add(row.id)
    return frozenset(found["FIND"]), frozenset(found["CANCEL"])


def _suppliers(environ: Mapping[str, str], wrong: list[str]) -> dict[int, Supplier]:
    suppliers: dict[int, Supplier] = {}
    implied: dict[str, int] = {}
    ids: set[int] = set()
    for row in _rows(environ.get("CARS_SUPPLIERS"), wrong):
        try:
            kind = kind_of(row.gateway)
        except SettingsError as error:
            wrong.append(f"supplier {row.id}: {error}")
            continue
        if row.id in ids:
            wrong.append(f"two suppliers have the id {row.id}")
        ids.add(row.id)
        if row.environ is None and implied.setdefault(kind.prefix, row.id) != row.id:
            wrong.append(
                f"suppliers {implied[kind.prefix]} and {row.id} would share the account of "
                f'{kind.prefix}_…: give {row.id} an "environ" of its own, such as '
                f'"{kind.prefix}_{row.id}"'
            )
        supplier = _supplier(row, kind, environ, wrong)
        if supplier is not None:
            suppliers[row.id] = supplier
    return suppliers


def _rows(path: str | None, wrong: list[str]) -> list[Row]:
    try:
        return msgspec.json.decode(Path(path or SUPPLIERS).read_bytes(), type=list[Row])
    except (OSError, msgspec.DecodeError) as error:
        wrong.append(f"CARS_SUPPLIERS cannot be read: {type(error).__name__}")
        return []


def _supplier(
    row: Row, kind: Kind, environ: Mapping[str, str], wrong: list[str]
) -> Supplier | None:
    prefix = row.environ or kind.prefix
    if not environ.get(f"{prefix}_URL"):
        return None
    account = {name: environ.get(f"{prefix}_{name}", "") for name in kind.needs}
    wrong += [f"{prefix}_{name} is missing" for name, value in account.items() if not value]
    may = {name: environ.get(f"{prefix}_{name}", value) for name, value in kind.may.items()}
    if not may.get("REFERENCE", "x").strip():
        wrong.append(f"{prefix}_REFERENCE is empty: bookings carry our code in a field")
    return Supplier(row.id, row.name, kind, account | may)


def _address(environ: Mapping[str, str], name: str, wrong: list[str]) -> str:
    url = environ.get(name, "")
    if url and not url.startswith(("http://", "https://")):
        wrong.append(f"{name} is no http address")
    return url


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
