"""Support's doors to the car rental: the panel and the command line."""

import json
import re
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import text

from relevo import Relevo
from relevo.apps.cars import app
from relevo.apps.cars.records import Records
from relevo.apps.cars.support import Support
from relevo.cli import run
from relevo.simulators import World
from relevo.simulators.traffic import cars as traffic
from relevo.testing import drain

CARD = {"payment_method": "pm_card_visa"}
EVIL = "<script>alert(1)</script>"


@pytest.fixture
async def relevo(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Relevo]:
    url = f"sqlite:///{tmp_path / 'cars.db'}"
    monkeypatch.setenv("RELEVO_STORE_URL", url)
    monkeypatch.delenv("MEXGROUP_FIND")
    async with Relevo(url, apps=[app]) as engine:
        yield engine


@pytest.fixture
async def client(relevo: Relevo) -> AsyncGenerator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=relevo.asgi())
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as opened:
        yield opened


async def held(client: httpx2.AsyncClient, relevo: Relevo, world: World) -> str:
    wish = next(traffic.wishes(1, (28,)))
    wish["customer"]["last_name"] = EVIL
    code = (await client.post("/reservations", json=wish)).json()["reservation_code"]
    await client.post(f"/reservations/{code}/pay", json=CARD)
    world.faults.add("mexgroup", "book", "lost", times=1)
    desk = Support(relevo.use(Records), relevo.desk)

    async def is_stuck() -> bool:
        return bool(await desk.ls(status="STUCK"))

    await drain(relevo, until=is_stuck)
    return code


async def test_the_panel_shows_what_waits_for_a_person_and_lets_them_decide(
    client: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    code = await held(client, relevo, world)
    shown = await client.get(f"/cars/{code}")
    assert shown.status_code == 200, shown.text
    assert "A person has to decide" in shown.text
    assert EVIL not in shown.text
    assert "&lt;script&gt;" in shown.text
    assert code in (await client.get("/cars?status=STUCK")).text
    listed = await client.get("/cars/reservations?status=STUCK")
    assert [each["reservation_code"] for each in listed.json()["reservations"]] == [code]
    token = re.findall(r'name="csrf" value="(\w+)"', shown.text)[0]
    forged = await client.post(f"/cars/{code}/confirm", data={"confirmation": "MX1"})
    assert forged.status_code == 403
    wrong = await client.post(f"/cars/{code}/retry", data={"csrf": token, "note": "again"})
    assert wrong.status_code == 409
    wrong = await client.post(f"/cars/{code}/confirm", data={"csrf": token})
    assert wrong.status_code == 400
    [booked] = world.ledger.find("mexgroup", "book")
    number = booked.detail["confirmation"]
    decided = await client.post(
        f"/cars/{code}/confirm", data={"csrf": token, "confirmation": number, "note": "seen there"}
    )
    assert decided.status_code == 303
    await drain(relevo)
    spanish = await client.get(f"/cars/{code}?lang=es")
    assert "Confirmada" in spanish.text
    assert number in spanish.text
    assert "seen there" in spanish.text
    late = await client.post(f"/cars/{code}/cancel", data={"csrf": token})
    assert late.status_code == 409


async def test_the_panel_lists_the_money_to_give_back(
    client: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    code = await held(client, relevo, world)
    token = re.findall(r'name="csrf" value="(\w+)"', (await client.get(f"/cars/{code}")).text)[0]
    blind = await client.post(f"/cars/{code}/cancel", data={"csrf": token, "note": "no car"})
    assert blind.status_code == 409
    assert "may hold the car" in blind.text
    chosen = {"csrf": token, "note": "no car", "at_supplier": "not_booked"}
    await client.post(f"/cars/{code}/cancel", data=chosen)
    assert code in (await client.get("/cars?status=TO_REFUND")).text
    assert "Give the money back" in (await client.get(f"/cars/{code}")).text
    told = await client.post(f"/cars/{code}/refunded", data={"csrf": token, "note": "re_1"})
    assert told.status_code == 303
    assert code not in (await client.get("/cars?status=TO_REFUND")).text


async def test_b60_questions_that_make_no_sense_are_refused_or_find_nothing(
    client: httpx2.AsyncClient,
) -> None:
    assert (await client.get("/cars?status=abc")).status_code == 400
    assert (await client.get("/cars?q=%25&cursor=x")).status_code == 200
    assert (await client.get("/cars?q=" + "a" * 5_000)).status_code == 200
    assert (await client.get("/cars/RES-NONE")).status_code == 404
    assert (await client.get("/cars/" + "a" * 1_000)).status_code == 404


async def test_c10_the_panel_is_behind_the_login(
    relevo: Relevo, client: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELEVO_ADMIN_PASSWORD", "a long enough password")
    for path in ("/cars", "/cars/reservations", "/cars/RES-NONE"):
        assert (await client.get(path)).status_code in (302, 401)
    for verb in ("retry", "confirm", "cancel", "refund", "refunded"):
        assert (await client.post(f"/cars/RES-NONE/{verb}", data={})).status_code in (302, 401, 403)
    assert (await client.post("/reservations", json={})).status_code == 422


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    def call(*args: str) -> tuple[int, str]:
        code = run(["cars", *args])
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


async def test_the_command_line_lists_shows_and_decides(
    client: httpx2.AsyncClient, relevo: Relevo, world: World, cli: Callable[..., tuple[int, str]]
) -> None:
    from asyncio import to_thread

    code = await held(client, relevo, world)
    status, out = await to_thread(cli, "ls", "--status", "STUCK", "--json")
    assert status == 0
    assert [each["code"] for each in json.loads(out)["reservations"]] == [code]
    [line] = (await to_thread(cli, "ls", "--status", "STUCK"))[1].splitlines()
    assert "HELD" in line
    assert f"relevo cars confirm {code}" in line
    assert f"relevo cars retry {code} --not-booked" in (await to_thread(cli, "show", code))[1]
    status, out = await to_thread(cli, "retry", code, "--note", "again")
    assert (status, "look there first" in out) == (1, True)
    status, out = await to_thread(cli, "ls", "--status", "stuck")
    assert (status != 0, "one of PENDING" in out) == (True, True)
    status, out = await to_thread(cli, "confirm", code, "--confirmation", "MX\n1")
    assert status == 2
    status, out = await to_thread(
        cli, "confirm", code, "--confirmation", "MX777", "--note", "by phone"
    )
    assert status == 0
    assert "CONFIRMED" in out
    status, out = await to_thread(cli, "show", code, "--json")
    shown = json.loads(out)
    assert (shown["status"], shown["supplier_reservation_code"]) == ("CONFIRMED", "MX777")
    assert [each["outcome"] for each in shown["requests"]] == ["uncertain"]
    status, out = await to_thread(cli, "show", code)
    assert "attempt 1, uncertain in" in out
    status, out = await to_thread(cli, "show", "RES-NONE")
    assert (status, out.count("\n")) == (1, 1)
    status, out = await to_thread(cli, "cancel", code, "--yes")
    assert status == 1


async def test_a_held_car_is_cancelled_at_the_supplier_and_paid_back_once(
    client: httpx2.AsyncClient, relevo: Relevo, world: World, cli: Callable[..., tuple[int, str]]
) -> None:
    from asyncio import to_thread

    code = await held(client, relevo, world)
    status, out = await to_thread(cli, "cancel", code, "--yes")
    assert (status, "--at-supplier" in out) == (1, True)
    status, out = await to_thread(cli, "cancel", code, "--yes", "--at-supplier")
    assert (status, "--confirmation" in out) == (1, True)
    [booked] = world.ledger.find("mexgroup", "book")
    number = booked.detail["confirmation"]
    status, out = await to_thread(
        cli, "cancel", code, "--yes", "--at-supplier", "--confirmation", number
    )
    assert (status, f"relevo cars refund {code}" in out) == (0, True)
    world.faults.add("stripe", "refund", "lost", times=1)
    for _ in range(2):
        status, out = await to_thread(cli, "refund", code, "--yes", "--note", "no car")
        assert status == 0, out

    async def is_over() -> bool:
        case = await Support(relevo.use(Records), relevo.desk).show(code)
        whats = {line.what for line in case.history}
        return {"REFUNDED", "SUPPLIER_CANCELLED"} <= whats

    await drain(relevo, until=is_over)
    assert world.ledger.count("mexgroup", "cancel", code) == 1
    assert world.ledger.count("stripe", "refund", code) == 1
    case = await Support(relevo.use(Records), relevo.desk).show(code)
    whats = [line.what for line in case.history]
    assert whats.count("REFUND_ORDERED") == whats.count("REFUNDED") == 1
    assert "SUPPLIER_CANCELLED" in whats
    status, out = await to_thread(cli, "refund", code, "--yes")
    assert (status, "no money" in out) == (1, True)


async def test_the_client_and_support_are_told(
    client: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    world.faults.add("client", "support", "lost", times=1)
    code = await held(client, relevo, world)
    wish = next(traffic.wishes(1, (140,)))
    fine = (await client.post("/reservations", json=wish)).json()["reservation_code"]
    await client.post(f"/reservations/{fine}/pay", json=CARD)

    async def is_told() -> bool:
        return len(world.ledger.find("client")) == 4

    await drain(relevo, until=is_told)
    told = {(each.operation, each.key, each.detail["type"]) for each in world.ledger.find("client")}
    assert told == {
        ("events", code, "reservation.paid"),
        ("events", fine, "reservation.paid"),
        ("events", fine, "reservation.confirmed"),
        ("support", code, "reservation.stuck"),
    }
    [stuck] = world.ledger.find("client", "support")
    assert stuck.detail["data"]["state"] == "HELD"


async def test_a_look_at_a_reservation_writes_nothing(
    client: httpx2.AsyncClient, relevo: Relevo, world: World
) -> None:
    code = await held(client, relevo, world)

    async def written() -> object:
        async with relevo.transaction() as tx:
            return (await tx.execute(text("pragma data_version"))).scalar_one(), [
                tuple(row) for row in (await tx.execute(text("select * from outbox_events"))).all()
            ]

    before = await written()
    shown = await client.get(f"/reservations/{code}")
    assert shown.json()["booking"]["status"] == "HELD"
    assert await written() == before
