"""The car suppliers' protocols: what leaves, and what every kind of answer is taken for."""

import dataclasses
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import cast
from xml.etree import ElementTree

import httpx2
import pytest
from hypothesis import given, strategies
from hypothesis import settings as settings_of
from lxml import etree
from pydantic import ValidationError

from relevo import (
    ProviderCredentials,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
)
from relevo.apps.cars import settings
from relevo.apps.cars.gateways import (
    Booking,
    BookingStatus,
    Driver,
    SupplierBookingResult,
    SupplierGateway,
    SupplierGatewayFactory,
)
from relevo.apps.cars.gateways import SupplierGatewaySelector as Selector
from relevo.apps.cars.gateways.breaker import async_supplier_breaker
from relevo.apps.cars.gateways.hertz import licence
from relevo.apps.cars.gateways.infinity import InfinityGroupGateway
from relevo.apps.cars.gateways.niza import NizaCarsGateway
from relevo.apps.cars.gateways.noleggiare import NoleggiareGateway
from relevo.apps.cars.requests import Customer
from relevo.apps.outside import Outside, Reply
from relevo.apps.xml import Unreadable, parse_xml
from relevo.errors import SettingsError
from relevo.simulators import World, hertz, mexgroup, noleggiare, xml
from relevo.simulators.faults import Kind

SNAPSHOTS = {
    28: {"rate_code": "IPAMOM", "class_code": "ECAR", "rate_id": "MEX-R-998877"},
    126: {"Group": "A", "RateCode": "FF"},
    106: {"car_type": "ECAR", "vendor_rate_id": "RATE123"},
    140: {"sipp_code": "MBMR"},
    128: {
        "acriss_code": "ECAR",
        "licence_number": "20123456",
        "licence_expiration": "2032-01-31",
        "licence_country": "AR",
    },
}
PROVIDERS = {28: "mexgroup", 126: "niza", 106: "infinity", 140: "noleggiare", 128: "hertz"}
EVERY = pytest.mark.parametrize("id", sorted(PROVIDERS), ids=lambda id: PROVIDERS[id])


def booking(id: int, first: str = "Ana", last: str = "Paz") -> Booking:
    return Booking(
        code="RES-7K2M9QXW4T",
        pickup_at=datetime(2031, 3, 1, 10),
        dropoff_at=datetime(2031, 3, 5, 10),
        pickup_location="CUN",
        dropoff_location="CUN",
        driver=Driver(first, last, "ana@example.com", "+5215555555555", date(1990, 1, 1)),
        flight="AZ123",
        amount=Decimal("100.00"),
        currency="EUR",
        snapshot=SNAPSHOTS[id],
    )


@pytest.fixture
async def selector(world: World) -> AsyncGenerator[Selector]:
    factory = SupplierGatewayFactory(settings.read().suppliers, seconds=5)
    yield Selector(factory)
    await factory.close()


@EVERY
async def test_every_supplier_books_once_and_gives_its_number(
    id: int, world: World, selector: Selector
) -> None:
    result = await selector.for_supplier(id).book(booking(id))
    [entry] = world.ledger.find(PROVIDERS[id], "book")
    assert entry.key == "RES-7K2M9QXW4T"
    assert result.supplier_reservation_code == entry.detail["confirmation"]


NAMES = [
    ("O'Brien & <Sons>\"/><Evil/>", "]]> Cía"),
    ("José Ñandú 漢字 🚗", "%3Cb%3E &amp; + #"),
]


@EVERY
async def test_b41_the_supplier_reads_back_the_very_name(
    id: int, world: World, selector: Selector
) -> None:
    for first, last in NAMES:
        await selector.for_supplier(id).book(booking(id, first, last))
    read = [
        (entry.detail["first_name"], entry.detail["last_name"])
        for entry in world.ledger.find(PROVIDERS[id], "book")
    ]
    assert read == NAMES


async def test_no_licence_is_invented_for_a_driver(world: World, selector: Selector) -> None:
    until = date(2031, 3, 5)
    assert licence(SNAPSHOTS[128], until) == {}
    for untold in ("NA", "", "none", "N/A"):
        assert list(licence({**SNAPSHOTS[128], "licence_number": untold}, until)) == [
            "licence_number"
        ]
    for ends in ("NA", "2031-03-04", "2031-02-30"):
        assert list(licence({**SNAPSHOTS[128], "licence_expiration": ends}, until)) == [
            "licence_expiration"
        ]
    assert list(licence({}, until)) == ["licence_number", "licence_expiration", "licence_country"]
    old = dataclasses.replace(booking(128), snapshot={"acriss_code": "ECAR"})
    with pytest.raises(ProviderRefused, match="licence_number"):
        await selector.for_supplier(128).book(old)
    assert world.ledger.count("hertz") == 0


NAME = strategies.text(min_size=1, max_size=40)


@given(first=NAME, last=NAME)
@settings_of(max_examples=150, deadline=None)
def test_b41_every_name_the_api_takes_comes_out_of_the_xml_as_it_went_in(
    first: str, last: str
) -> None:
    try:
        wish = {"email": "a@b.example", "phone": "+34600000000", "birth_date": "1990-01-01"}
        who = Customer.model_validate({"first_name": first, "last_name": last, **wish})
    except ValidationError:
        return
    account = dict.fromkeys(
        (
            *("COMPANY_CODE", "CUSTOMER_CODE", "USER", "PASSWORD", "REQUESTOR_ID", "COMPANY"),
            *("TARGET", "PAYMENT_TYPE", "REFERENCE"),
        ),
        "x",
    )
    nowhere = cast("Outside", None)
    for id, gateway in (
        (106, InfinityGroupGateway(nowhere, account)),
        (126, NizaCarsGateway(nowhere, account)),
        (140, NoleggiareGateway(nowhere, account)),
    ):
        order = gateway._order(booking(id, who.first_name, who.last_name))
        read = ElementTree.fromstring(etree.tostring(order))  # noqa: S314 - our own document
        if id == 126:
            comma_free = who.last_name.replace(",", " ")
            assert xml.words(read, "Name") == f"{comma_free},{who.first_name}"
        else:
            assert xml.words(read, "GivenName") == who.first_name
            assert xml.words(read, "Surname") == who.last_name


FAILURES: dict[Kind, type[ProviderError]] = {
    "refuse": ProviderRefused,
    "error": ProviderUnavailable,
    "limit": ProviderUnavailable,
    "down": ProviderUncertain,
    "lost": ProviderUncertain,
    "hang": ProviderUncertain,
    "malformed": ProviderUncertain,
}


@EVERY
async def test_every_way_to_fail_is_told_apart(id: int, world: World) -> None:
    factory = SupplierGatewayFactory(settings.read().suppliers, seconds=0.6)
    for kind, error in FAILURES.items():
        world.faults.add(PROVIDERS[id], "book", kind, times=1, seconds=0.9)
        with pytest.raises(error) as caught:
            await Selector(factory).for_supplier(id).book(booking(id))
        if isinstance(caught.value, ProviderUnavailable):
            assert caught.value.spends is (kind != "limit")
    await factory.close()


@pytest.mark.parametrize(("id", "module"), [(28, mexgroup), (128, hertz)], ids=["mex", "hertz"])
async def test_a_token_that_ended_is_renewed_once(
    id: int, module: object, world: World, selector: Selector
) -> None:
    tokens = getattr(module, "tokens")  # noqa: B009 - two modules of one shape
    await selector.for_supplier(id).book(booking(id))
    tokens(world).clear()
    await selector.for_supplier(id).book(booking(id))
    assert world.ledger.count(PROVIDERS[id], "book") == 2
    assert world.calls[f"{PROVIDERS[id]}:login"] == 2


@EVERY
async def test_a_wrong_password_keeps_the_bookings_instead_of_killing_them(
    id: int, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEXGROUP_PASSWORD", "old")
    monkeypatch.setenv("NIZA_PASSWORD", "old")
    monkeypatch.setenv("HERTZ_PASSWORD", "old")
    monkeypatch.setenv("NOLEGGIARE_PASSWORD", "old")
    monkeypatch.setenv("INFINITY_REQUESTOR_ID", "0")
    factory = SupplierGatewayFactory(settings.read().suppliers, seconds=5)
    with pytest.raises(ProviderUnavailable, match="login"):
        await Selector(factory).for_supplier(id).book(booking(id))
    await factory.close()


@EVERY
async def test_every_supplier_finds_what_it_booked_by_our_code_alone(
    id: int, world: World, selector: Selector
) -> None:
    gateway, provider = selector.for_supplier(id), PROVIDERS[id]
    order = booking(id)
    other = dataclasses.replace(order, code="RES-0000000000")
    assert await gateway.find(order) is None
    world.faults.add(provider, "book", "lost", times=1)
    with pytest.raises(ProviderUncertain):
        await gateway.book(order)
    found = await gateway.find(order)
    [entry] = world.ledger.find(provider, "book")
    assert (entry.key, found) == (order.code, SupplierBookingResult(entry.detail["confirmation"]))
    assert await gateway.find(other) is None


@EVERY
@pytest.mark.parametrize("kind", ["error", "down", "malformed", "limit"])
async def test_a_look_up_that_is_not_answered_is_no_proof_of_absence(
    id: int, kind: Kind, world: World, selector: Selector
) -> None:
    world.faults.add(PROVIDERS[id], "find", kind, times=1)
    with pytest.raises(ProviderUnavailable):
        await selector.for_supplier(id).find(booking(id))


@pytest.mark.parametrize("id", [28, 140], ids=["mexgroup", "noleggiare"])
async def test_a_supplier_that_cancels_no_longer_has_the_booking(
    id: int, world: World, selector: Selector
) -> None:
    gateway, order = selector.for_supplier(id), booking(id)
    made = await gateway.book(order)
    await gateway.cancel(order, made.supplier_reservation_code)
    assert world.ledger.count(PROVIDERS[id], "cancel", order.code) == 1
    assert await gateway.find(order) is None
    with pytest.raises(ProviderRefused):
        await gateway.cancel(order, made.supplier_reservation_code)


async def test_noleggiare_has_bookings_that_it_has_not_decided_on(
    world: World, selector: Selector
) -> None:
    gateway = selector.for_supplier(140)
    assert await gateway.find(booking(140)) is None
    world.faults.add("noleggiare", "book", "lost", times=1)
    with pytest.raises(ProviderUncertain):
        await gateway.book(booking(140))
    found = await gateway.find(booking(140))
    assert found is not None
    [entry] = world.ledger.find("noleggiare", "book")
    assert found.supplier_reservation_code == entry.detail["confirmation"]
    noleggiare.bookings(world)["RES-7K2M9QXW4T"].status = "Pending"
    with pytest.raises(ProviderUnavailable, match="pending"):
        await gateway.find(booking(140))
    noleggiare.bookings(world)["RES-7K2M9QXW4T"].status = "Failed"
    assert await gateway.find(booking(140)) is None


async def test_the_breaker_makes_a_result_of_every_answer(world: World, selector: Selector) -> None:
    gateway = selector.for_supplier(28)
    made = await async_supplier_breaker(gateway.book, booking(28))
    [entry] = world.ledger.find("mexgroup", "book")
    assert (made.status, made.why) == (BookingStatus.SUCCESS, "")
    assert made.code() == made.supplier_reservation_code == entry.detail["confirmation"]
    for kind, status in (
        ("refuse", BookingStatus.REFUSED),
        ("error", BookingStatus.UNAVAILABLE),
        ("lost", BookingStatus.UNCERTAIN),
    ):
        world.faults.add("mexgroup", "book", cast("Kind", kind), times=1)
        result = await async_supplier_breaker(gateway.book, booking(28))
        assert (result.status, result.supplier_reservation_code) == (status, "")
        assert "Mex Group" in result.why
        with pytest.raises(ProviderError, match="Mex Group"):
            result.code()


# Suppliers of the suppliers' file

STRIPE = {"STRIPE_SECRET_KEY": "sk_test_x", "STRIPE_WEBHOOK_SECRET": "whsec_x"}

AVIS = """
from relevo.apps.cars.gateways import Booking, Kind, SupplierBookingResult, SupplierGateway


class Avis(SupplierGateway):
    async def book(self, booking: Booking) -> SupplierBookingResult:
        return SupplierBookingResult(f"AV-{booking.code}-{self._account['USER']}")


KIND = Kind(name="avis", prefix="AVIS", build=Avis, needs=("URL", "USER"), fields=("rate",))
"""


def listed(path: Path, *rows: Mapping[str, object]) -> dict[str, str]:
    path.write_text(json.dumps(rows))
    return {**STRIPE, "CARS_SUPPLIERS": str(path)}


async def test_a_gateway_is_one_file_outside_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_avis.py").write_text(AVIS)
    monkeypatch.syspath_prepend(tmp_path)
    row = {"id": 16, "name": "Avis", "gateway": "my_avis:KIND"}
    environ = listed(tmp_path / "suppliers.json", row)
    made = settings.read({**environ, "AVIS_URL": "http://avis.example", "AVIS_USER": "ana"})
    assert not made.askable
    factory = SupplierGatewayFactory(made.suppliers, seconds=5)
    order = dataclasses.replace(booking(28), snapshot={"rate": "A"})
    result = await Selector(factory).for_supplier(16).book(order)
    assert result.supplier_reservation_code == f"AV-{order.code}-ana"
    await factory.close()


@pytest.mark.parametrize(
    ("gateway", "said"),
    [
        ("avis", "no gateway is called 'avis'"),
        ("no_such_module:KIND", "cannot be imported"),
        ("relevo.apps.cars.gateways.ota:KIND", "is no Kind"),
    ],
)
def test_a_gateway_that_is_none_is_named(gateway: str, said: str, tmp_path: Path) -> None:
    environ = listed(tmp_path / "s.json", {"id": 16, "name": "Avis", "gateway": gateway})
    with pytest.raises(SettingsError, match=said):
        settings.read(environ)
    assert settings.powers(environ) == (frozenset(), frozenset())


async def test_two_accounts_of_one_protocol_have_their_own_address_and_login(
    world: World, tmp_path: Path
) -> None:
    rows = [
        {"id": 28, "name": "Mex", "gateway": "mexgroup"},
        {"id": 29, "name": "Mex Two", "gateway": "mexgroup", "environ": "MEX_TWO"},
    ]
    environ = {**os.environ, **listed(tmp_path / "s.json", *rows)}
    environ |= {
        "MEX_TWO_URL": environ["MEXGROUP_URL"],
        "MEX_TWO_USER": "second",
        "MEX_TWO_PASSWORD": "wrong",
    }
    made = settings.read(environ)
    assert made.suppliers[29].account["USER"] == "second"
    assert (made.askable, made.cancellable) == (frozenset({28}), frozenset({28, 29}))
    assert settings.powers(environ) == (made.askable, made.cancellable)
    factory = SupplierGatewayFactory(made.suppliers, seconds=5)
    await Selector(factory).for_supplier(28).book(booking(28))
    with pytest.raises(ProviderUnavailable, match="Mex Two refuses our login"):
        await Selector(factory).for_supplier(29).book(booking(28))
    await factory.close()


def test_two_rows_share_no_login_by_accident(tmp_path: Path) -> None:
    rows = [{"id": id, "name": "Mex", "gateway": "mexgroup"} for id in (28, 29)]
    with pytest.raises(SettingsError, match="28 and 29 would share the account of MEXGROUP"):
        settings.read(listed(tmp_path / "s.json", *rows))
    twins = [{**row, "id": 28, "environ": f"MEX_{row['id']}"} for row in rows]
    with pytest.raises(SettingsError, match="two suppliers have the id 28"):
        settings.read(listed(tmp_path / "s.json", *twins))


# Answers that no simulator gives


class Answering:
    """The suppliers, all of them answering the same thing."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        monkeypatch.setenv("STRIPE_SECRET_KEY", "sk_test_x")
        monkeypatch.setenv("STRIPE_WEBHOOK_SECRET", "whsec_x")
        for kind in ("MEXGROUP", "NIZA", "INFINITY", "NOLEGGIARE", "HERTZ"):
            for name in (
                *("URL", "AUTH_URL", "USER", "PASSWORD", "CLIENT_ID", "COMPANY_CODE"),
                *("CUSTOMER_CODE", "REQUESTOR_ID", "COMPANY"),
            ):
                monkeypatch.setenv(f"{kind}_{name}", "http://supplier.example/x")
        monkeypatch.setenv("MEXGROUP_FIND", "/find")
        monkeypatch.setenv("NIZA_FIND", "getReservations")
        monkeypatch.setenv("INFINITY_FIND", "OTA_VehRetResRQ")
        monkeypatch.setenv("HERTZ_FIND", "/Booking")

    async def book(self, id: int, body: bytes, status: int = 200) -> str:
        return await self._ask(id, body, status, lambda gateway: gateway.book(booking(id)))

    async def find(self, id: int, body: bytes) -> str:
        return await self._ask(id, body, 200, lambda gateway: gateway.find(booking(id)))

    async def _ask(
        self,
        id: int,
        body: bytes,
        status: int,
        ask: Callable[[SupplierGateway], Awaitable[SupplierBookingResult | None]],
    ) -> str:
        def plain(body: bytes, status: int = 200) -> httpx2.Response:
            return httpx2.Response(status, stream=httpx2.ByteStream(body))

        def answer(request: httpx2.Request) -> httpx2.Response:
            if "login" in request.url.path:
                return plain(b'{"type":"success","data":{"token":"t"}}')
            if b"grant_type" in request.content:
                return plain(b'{"access_token":"t"}')
            return plain(body, status)

        original = httpx2.AsyncClient

        def client(**options: object) -> httpx2.AsyncClient:
            return original(transport=httpx2.MockTransport(answer))

        self._patch.setattr(httpx2, "AsyncClient", client)
        factory = SupplierGatewayFactory(settings.read().suppliers, seconds=5)
        try:
            result = await ask(Selector(factory).for_supplier(id))
            return "" if result is None else result.supplier_reservation_code
        finally:
            self._patch.setattr(httpx2, "AsyncClient", original)
            await factory.close()


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    return Answering(monkeypatch)


def ota(inside: str, *, space: str = "http://www.opentravel.org/OTA/2003/05") -> bytes:
    return (
        '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
        f'<OTA_VehResRS xmlns="{space}">{inside}</OTA_VehResRS></s:Body></s:Envelope>'
    ).encode()


def reserved(status: str, *numbers: tuple[str, str]) -> str:
    ids = "".join(f'<ConfID Type="{type}" ID="{id}"/>' for type, id in numbers)
    return (
        f'<Success/><VehResRSCore><VehReservation ReservationStatus="{status}"><VehSegmentCore>'
        f"{ids}</VehSegmentCore></VehReservation></VehResRSCore>"
    )


@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("Failed", ProviderRefused),
        ("Cancelled", ProviderRefused),
        ("Expired", ProviderRefused),
        ("Pending", ProviderUncertain),
        ("Waitlisted", ProviderUncertain),
        ("Perhaps", ProviderUncertain),
    ],
)
async def test_success_with_a_bad_status_is_no_success(
    status: str, error: type[ProviderError], answering: Answering
) -> None:
    with pytest.raises(error):
        await answering.book(140, ota(reserved(status, ("14", "AV1"))))


@pytest.mark.parametrize("status", ["Confirmed", "Reserved", "RESERVED"])
async def test_the_reservation_number_is_the_one_of_type_14(
    status: str, answering: Answering
) -> None:
    numbers = ("15", "CANCEL"), ("4", "OTHER"), ("14", "AV1ABCD23E"), ("24", "")
    assert await answering.book(140, ota(reserved(status, *numbers))) == "AV1ABCD23E"
    assert await answering.book(140, ota(reserved(status, *numbers[:2]))) == "OTHER"


@pytest.mark.parametrize(
    ("type", "error"),
    [("1", ProviderUnavailable), ("12", ProviderUnavailable), ("3", ProviderRefused)],
)
async def test_an_ota_error_heals_or_not_by_its_type(
    type: str, error: type[ProviderError], answering: Answering
) -> None:
    inside = f'<Errors><Error Type="{type}" ShortText="no car"/></Errors>'
    with pytest.raises(error, match="no car"):
        await answering.book(140, ota(inside + reserved("Confirmed", ("14", "AV1"))))


@EVERY
@pytest.mark.parametrize("status", [401, 403])
async def test_a_closed_door_keeps_the_bookings_too(
    id: int, status: int, answering: Answering
) -> None:
    with pytest.raises(ProviderUnavailable, match="login"):
        await answering.book(id, b"", status)


NIZA = (
    '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
    "<Create_ReservationResponse><Error>%s</Error></Create_ReservationResponse>"
    "</s:Body></s:Envelope>"
)


@pytest.mark.parametrize(
    "words",
    [
        "INVALID LOGIN",
        "Wrong username or password",
        "User not found",
        "Not authorized",
        "Access denied for company 9999",
        "Utilizador ou palavra-passe inválidos",
        "Usuario o contraseña incorrectos",
    ],
)
async def test_niza_tells_a_wrong_login_in_words_of_its_own(
    words: str, answering: Answering
) -> None:
    with pytest.raises(ProviderUnavailable, match=f"login .*{words}"):
        await answering.book(126, (NIZA % words).encode())
    with pytest.raises(ProviderUnavailable, match=f"login .*{words}"):
        await answering.book(126, (FAULT % "Client").replace("words", words).encode(), 500)


@pytest.mark.parametrize(
    "words",
    ["NO RATE IS AVAILABLE", "Station closed", "Driver is too young", "GROUP A IS SOLD OUT"],
)
async def test_niza_may_refuse_one_booking_alone(words: str, answering: Answering) -> None:
    with pytest.raises(ProviderRefused, match=words):
        await answering.book(126, (NIZA % words).encode())


FAULT = (
    '<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body><s:Fault>'
    "<faultcode>s:%s</faultcode><faultstring>words</faultstring></s:Fault></s:Body></s:Envelope>"
)
LAUGHS = '<!DOCTYPE a [<!ENTITY b "ha"><!ENTITY c "&b;&b;&b;">]>'
GOOD = ota(reserved("Confirmed", ("14", "AV1"))).decode()


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("id", [126, 140], ids=["niza", "noleggiare"])
async def test_b40_a_fault_is_read_before_its_status(
    id: int, status: int, answering: Answering
) -> None:
    with pytest.raises(ProviderRefused, match="words"):
        await answering.book(id, (FAULT % "Client").encode(), status)
    with pytest.raises(ProviderUnavailable, match="words"):
        await answering.book(id, (FAULT % "Server").encode(), status)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((LAUGHS + GOOD).encode(), id="entities"),
        pytest.param(('<!DOCTYPE a SYSTEM "http://127.0.0.1/x">' + GOOD).encode(), id="doctype"),
        pytest.param(b"<a>" * 200_000, id="deep"),
        pytest.param(b"<a>" * 100 + b"</a>" * 100, id="too-deep"),
        pytest.param(b"<a>" + b"<b/>" * 1_000_000 + b"</a>", id="many"),
        pytest.param(b"<a>" + b"x" * 6_000_000 + b"</a>", id="large"),
        pytest.param(GOOD.encode("utf-16"), id="utf-16"),
        pytest.param(('<?xml version="1.0" encoding="utf-7"?>' + GOOD).encode(), id="utf-7"),
        pytest.param(GOOD.encode()[:-30], id="truncated"),
        pytest.param(GOOD.replace("</s:Body>", "</s:Body><s:Body/>").encode(), id="two-bodies"),
        pytest.param(ota("", space="urn:other"), id="empty"),
        pytest.param(ota(reserved("Confirmed", ("14", "A")), space="urn:x"), id="namespace"),
        pytest.param(b"<html><body>Request blocked</body></html>", id="page"),
        pytest.param(b'{"ok": true}', id="json"),
        pytest.param(b"", id="nothing"),
    ],
)
@pytest.mark.parametrize("id", [126, 106, 140], ids=["niza", "infinity", "noleggiare"])
async def test_b40_bad_xml_is_never_a_confirmation(
    id: int, body: bytes, answering: Answering
) -> None:
    with pytest.raises((ProviderUnavailable, ProviderUncertain)):
        await answering.book(id, body)


@pytest.mark.parametrize(
    ("id", "body"),
    [
        (28, b'{"type":"success","data":{}}'),
        (28, b'{"type":"success","data":{"noConfirmation":null}}'),
        (28, b'{"type":"success","data":{"noConfirmation":""}}'),
        (28, b'{"type":"success","data":{"noConfirmation":"A\\nB"}}'),
        (28, b'{"type":"success","data":{"noConfirmation":"%s"}}' % (b"A" * 10_240)),
        (28, b'{"type":"success","data":{"noConfirmation":true}}'),
        (28, b'{"data":{"noConfirmation":"MX1"}}'),
        (28, b'{"type":"error","type":"success","data":{"noConfirmation":"MX1"}}'),
        (28, b"[]"),
        (128, b'{"ok":true}'),
        (128, b'{"id":null}'),
        (128, b'{"id":"7","error":"no model"}'),
        (126, b"<a><ReservationNumber/></a>"),
    ],
)
async def test_b42_no_number_no_success(id: int, body: bytes, answering: Answering) -> None:
    with pytest.raises(ProviderUncertain):
        await answering.book(id, body)


@pytest.mark.parametrize(
    ("id", "body"),
    [
        (28, b'{"type":"success","data":null}'),
        (28, b'{"type":"success"}'),
        (28, b'{"type":"success","data":[{"reference":"RES-OTHER","noConfirmation":"MX1"}]}'),
        (28, b'{"type":"success","data":[{"noConfirmation":"MX1"}]}'),
        (28, b'{"type":"success","data":[{"reference":"RES-7K2M9QXW4T"}]}'),
        (128, b"{}"),
        (128, b'[{"id":1}]'),
        (128, b'[{"id":1,"externalReference":"RES-OTHER"}]'),
        (126, (NIZA % "").encode()),
        (106, b"<OTA_VehResRS/>"),
    ],
)
async def test_an_answer_to_another_question_is_no_proof_of_absence(
    id: int, body: bytes, answering: Answering
) -> None:
    with pytest.raises(ProviderUnavailable):
        await answering.find(id, body)


@pytest.mark.parametrize("status", [502, 504])
@pytest.mark.parametrize(
    ("id", "body"),
    [
        (28, b'{"type":"error","message":"upstream timed out"}'),
        (128, b'{"message": "Endpoint request timed out"}'),
    ],
    ids=["mexgroup", "hertz"],
)
async def test_a_gateway_that_gave_up_waiting_has_not_refused(
    id: int, body: bytes, status: int, answering: Answering
) -> None:
    with pytest.raises(ProviderUncertain):
        await answering.book(id, body, status)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 1),
        ("-1", 1),
        ("20", 20),
        ("1e9", 30),  # no number of RFC 9110
        ("99999999999", 3600),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 1),
        ("Wed, 21 Oct 2195 07:28:00 GMT", 3600),
        ("soon", 30),
    ],
)
def test_b44_retry_after_is_kept_within_reason(value: str, seconds: int) -> None:
    headers = httpx2.Headers({"retry-after": value})
    with pytest.raises(ProviderUnavailable) as raised:
        Reply("Them", 429, headers, b"", True).check()
    wait = raised.value.retry_after
    assert wait is not None
    assert wait.total_seconds() == seconds


@pytest.mark.parametrize(
    ("status", "acts", "error"),
    [
        (303, True, ProviderUncertain),  # what was posted was done
        (303, False, ProviderUnavailable),
        (307, True, ProviderUnavailable),
        (503, True, ProviderUnavailable),
        (504, True, ProviderUncertain),
        (504, False, ProviderUnavailable),
        (429, True, ProviderUnavailable),
        (400, True, ProviderRefused),
        (401, True, ProviderCredentials),
        (409, True, ProviderUncertain),  # with what was asked for before, perhaps
        (408, True, ProviderUncertain),
        (408, False, ProviderUnavailable),
    ],
)
def test_what_a_status_means_for_a_call_that_acts(
    status: int, acts: bool, error: type[Exception]
) -> None:
    with pytest.raises(error):
        Reply("Them", status, httpx2.Headers(), b"", acts).check()


async def test_b43_no_redirect_is_followed_and_nothing_endless_is_read(world: World) -> None:
    import asyncio

    told: list[bytes] = []

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        told.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 307 x\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        while not writer.is_closing():
            writer.write(b"1\r\na\r\n")
            await asyncio.sleep(0.02)

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        try:
            while not writer.is_closing():
                writer.write(b"10000\r\n" + b"a" * 65_536 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            pass

    for serve, error in (
        (redirect, ProviderUnavailable),
        (drip, ProviderUncertain),
        (flood, ProviderUncertain),
    ):
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Outside("Them", f"http://127.0.0.1:{port}", seconds=0.5) as outside:
            with pytest.raises(error):
                (await outside.call("POST", "/book", json={}, acts=True)).check()
        server.close()
    assert len(told) == 1


def test_a_document_with_noise_in_front_is_still_read() -> None:
    root = parse_xml("\ufeff \r\nnoise <a>ñ\x0b</a>".encode())
    assert root.text == "ñ"
    with pytest.raises(Unreadable):
        parse_xml(b"x" * 2_000 + b"<a/>")


def test_settings_name_everything_that_is_missing_and_no_value() -> None:
    with pytest.raises(SettingsError) as caught:
        settings.read({"MEXGROUP_URL": "http://secret-host", "STRIPE_SECRET_KEY": "sk_live_1"})
    said = str(caught.value)
    assert "STRIPE_WEBHOOK_SECRET" in said
    assert "MEXGROUP_PASSWORD" in said
    assert "secret-host" not in said


def test_nothing_secret_is_in_the_settings_words() -> None:
    made = settings.read(
        {
            "STRIPE_SECRET_KEY": "sk_live_canary",
            "STRIPE_WEBHOOK_SECRET": "whsec_canary",
            "MEXGROUP_URL": "http://mex",
            "MEXGROUP_USER": "canary",
            "MEXGROUP_PASSWORD": "canary",
        }
    )
    assert "canary" not in repr(made)
    assert made.is_live
    assert dataclasses.is_dataclass(made)
