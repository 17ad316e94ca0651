"""A delivery whose row cannot be read any more: it is shown as such, and hides no other."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx2
import msgspec
import pytest

from relevo import Answer, App, Delivery, Intake, Relevo, sources
from relevo.cli.look import story_text
from relevo.cli.tables import at
from relevo.desk import Desk, view
from relevo.ids import new_id
from relevo.store import Arrival, Kept, Letterbox, Store
from relevo.testing import ManualClock, deliver
from tests.conformance.fresh import STORES, fresh
from tests.edges.site import ACCEPT
from tests.edges.test_dashboard_stores import visitor

ENDPOINT = "shop:/hooks/paid"
GOOD = msgspec.msgpack.encode(Answer.json({"ok": True}))
BODY = b'{"id": "evt_1"}'
SECRET = "a-secret-of-the-shop"

DAMAGED = {
    "answer of garbage": {"answer": b"\xc1\xff"},
    "answer of another kind": {"answer": msgspec.msgpack.encode({"status": 200, "body": "text"})},
    "answer with a status that is none": {"answer": msgspec.msgpack.encode({"status": 9})},
    "headers of garbage": {"headers": b"{\xff"},
    "headers of another kind": {"headers": b'{"a": 1}'},
}


def app() -> App:
    shop = App("shop")

    @shop.webhook(
        "/hooks/paid",
        verify=sources.shared_secret(SECRET, header="x-secret"),
        key=lambda delivery: delivery.json["id"],
    )
    async def paid(delivery: Delivery, ctx: Intake) -> None: ...

    return shop


def arrival(key: str, **more: bytes) -> Arrival:
    told = {"answer": GOOD, "headers": b'[["content-type","application/json"]]', **more}
    return Arrival(
        Kept(id=new_id(), endpoint=ENDPOINT, key=key, path="/hooks/paid", body=BODY, **told)
    )


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name", STORES)
async def test_a_damaged_delivery_breaks_no_list(
    name: str,
    damage: dict[str, bytes],
    tmp_path: Path,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RELEVO_ADMIN_PASSWORD", raising=False)
    [field] = damage
    async with fresh(name, clock, tmp_path) as store:
        kept = [arrival("evt_0"), arrival("evt_1", **damage), arrival("evt_2")]
        await store.receive(kept)
        id = kept[1].kept.id
        relevo = Relevo(store, apps=[app()], clock=clock)
        await relevo.asgi().start()
        relevo.is_open = True
        async with visitor(relevo) as client:
            listed = await json_at(client, "/api/deliveries")
            assert [row["key"] for row in listed["items"]] == ["evt_2", "evt_1", "evt_0"]
            assert [row.get("unreadable") for row in listed["items"]] == [None, [field], None]
            assert listed["items"][1][field] is None
            shown = await json_at(client, f"/api/deliveries/{id}")
            assert shown["unreadable"] == [field]
            story = await json_at(client, "/api/trace", q=id)
            assert [row["unreadable"] for row in story["deliveries"]] == [[field]]
            for path in ("/deliveries", f"/deliveries/{id}"):
                page = await client.get(path, headers=ACCEPT)
                assert page.status_code == 200, page.text[-2_000:]
                assert "evt_1" in page.text
        again = await deliver(relevo, "/hooks/paid", body=BODY, id="evt_1")
        assert (again.status, again.body) == (200, b'{"ok":true}')
        relevo.is_open = False


async def json_at(client: httpx2.AsyncClient, path: str, **query: str) -> dict[str, object]:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "change",
    [
        "relevo_deliveries set jobs = 'zz'",
        "relevo_deliveries set headers = 5",
        "relevo_deliveries set query = x'ff', path = x'ff', method = x'ff', reason = x'ff'",
        "relevo_deliveries set received_at = 'soon'",
        "relevo_deliveries set received_at = 9000000000000000000",
        "relevo_deliveries set status = 'x'",
        "relevo_delivered set answer = 'x', status = 'x', repeats = 'x'",
        "relevo_delivered set received_at = 'soon', repeated_at = 9000000000000000000",
    ],
)
async def test_a_row_of_sqlite_changed_by_hand_breaks_no_list(
    change: str, tmp_path: Path, clock: ManualClock
) -> None:
    """Its columns hold whatever is written to them."""
    async with fresh("sqlite", clock, tmp_path) as store:
        kept = [arrival(f"evt_{number}") for number in range(3)]
        await store.receive(kept)
        [path] = tmp_path.glob("*.db")
        with closing(sqlite3.connect(path)) as hand, hand:
            hand.execute("update CHANGE where id = ?".replace("CHANGE", change), (kept[1].kept.id,))
        await look(store, kept[1].kept.id)


@pytest.mark.parametrize("name", STORES)
async def test_a_moment_that_is_none_breaks_no_list(
    name: str, tmp_path: Path, clock: ManualClock
) -> None:
    async with fresh(name, clock, tmp_path) as store:
        kept = [arrival(f"evt_{number}") for number in range(3)]
        kept[1] = Arrival(msgspec.structs.replace(kept[1].kept, received_at=9 * 10**18))
        await store.receive(kept)
        await look(store, kept[1].kept.id)


async def look(store: Store, id: str) -> None:
    """By list, search, id and trace, as JSON and on a terminal."""
    desk = Desk(store)
    for where in (Letterbox(), Letterbox(text="evt_")):
        found, _ = await desk.deliveries(where)
        assert len(found) == 3
        assert len(json.dumps(view([desk.masked_delivery(each) for each in found]))) > 0
        assert [at(each.received_at) for each in found]
    view(desk.masked_delivery(await desk.delivery(id)))
    assert (await desk.trace(id)).deliveries
    story_text(await desk.trace(id))
