"""C23: what providers sent is sealed too, in the store, beside it and in the spool."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import relevo.ingress.spool as spool_module
from relevo import Answer, Relevo, SealError, SealKeys
from relevo.desk import Person, Role
from relevo.sealing import new_key
from relevo.store import DeliveryState, Kept, Letterbox, Store
from relevo.stores.sealed import sealed
from relevo.testing import ManualClock, deliver, drain, until
from tests.conformance.steps import add
from tests.edges import doors
from tests.edges.box import Box
from tests.edges.doors import ODD, SIGNED, TX, jobs
from tests.edges.test_ingress import OK
from tests.edges.test_ingress_spool import Away, is_empty
from tests.engine.test_canary import mentions

ANN = Person("ann", Role.ADMIN)
OLD, NEW = new_key(), new_key()
CANARY = "canary-ana"
LOCAL = {"host": "127.0.0.1:8700"}

Start = Callable[..., Any]


@pytest.fixture
async def start(store: Store, clock: ManualClock, tmp_path: Path) -> AsyncGenerator[Start]:
    """Engines with the keys they are given; a database beside the stores that are none."""
    beside = None if store.name in ("sqlite", "postgres") else f"sqlite:///{tmp_path / 'side.db'}"
    async with AsyncExitStack() as stack:

        async def make(*keys: str, is_alone: bool = False) -> Relevo:
            engine = Relevo(
                store,
                apps=[doors.app()],
                clock=clock,
                database=None if is_alone else beside,
                spool=str(tmp_path / "spool.db"),
                seal=SealKeys(*keys) if keys else None,
            )
            await engine.open()
            stack.push_async_callback(engine.rest)
            return engine

        yield make


async def said(relevo: Relevo) -> int:
    """How often the canary stands in what is stored, whichever database it is in."""
    store: Any = relevo.store
    places = {store.dsn: store, getattr(store, "fast", store).dsn: getattr(store, "fast", store)}
    return sum([await mentions(each, CANARY) for each in places.values()])


async def only(relevo: Relevo, key: str) -> Kept:
    [found], _ = await relevo.store.deliveries(Letterbox(key=key, state=DeliveryState.ACCEPTED))
    [kept] = await relevo.store.delivery([found.id])
    assert kept is not None
    return kept


@pytest.mark.parametrize("is_alone", [False, True], ids=["beside", "alone"])
async def test_c23_a_delivery_is_sealed_and_replayed(start: Start, is_alone: bool) -> None:
    """C23: what came, what was answered, and the jobs of it; people see it as it was."""
    relevo = await start(NEW, is_alone=is_alone)
    wish = {"id": "e1", "do": "answer", "say": CANARY}
    head = {"user-agent": CANARY}
    first = await deliver(relevo, ODD, json=wish, headers=head, query=f"who={CANARY}")
    assert await deliver(relevo, ODD, json=wish, query=f"who={CANARY}") == first
    assert await deliver(relevo, SIGNED, json={"id": "e2", "note": CANARY}) == OK
    await drain(relevo)
    assert await said(relevo) == 0

    kept = await only(relevo, "e1")
    assert first == Answer.json({"said": CANARY}, 202)
    assert (kept.repeats, kept.differs) == (1, False)
    assert (kept.query, kept.body.count(CANARY.encode())) == (f"who={CANARY}", 1)
    assert CANARY.encode() in kept.headers
    shown = relevo.desk.masked_delivery(kept)
    assert shown.id == kept.id

    came = await only(relevo, "e2")
    again = await relevo.desk.replay(came.id, ANN, relevo.handling)
    assert [CANARY.encode() in order.payload for order in again.orders] == [True]
    await drain(relevo)
    assert await jobs(relevo) == ["e2", "e2"]
    assert await said(relevo) == 0


async def test_c23_another_body_is_noticed_whether_sealed_or_not(start: Start) -> None:
    """The same bytes are the same across switching on, rotating and switching off."""
    engines = [await start(), await start(OLD), await start(NEW, OLD), await start()]
    await deliver(engines[0], SIGNED, json={"id": "plain", "note": "x"})
    await deliver(engines[1], SIGNED, json={"id": "sealed", "note": "x"})
    for relevo in engines:
        for key in ("plain", "sealed"):
            assert await deliver(relevo, SIGNED, json={"id": key, "note": "x"}) == OK
            assert not (await only(relevo, key)).differs
    for relevo, key in ((engines[2], "plain"), (engines[0], "sealed")):
        await deliver(relevo, SIGNED, json={"id": key, "note": "y"})
        assert (await only(relevo, key)).differs


async def test_c23_a_transaction_keeps_its_delivery_sealed(start: Start) -> None:
    relevo = await start(NEW)
    assert await deliver(relevo, TX, json={"id": "e1", "note": CANARY}) == OK
    assert await deliver(relevo, TX, json={"id": "e1", "note": CANARY}) == OK
    assert CANARY.encode() in (await only(relevo, "e1")).body
    assert await said(relevo) == 0


async def test_c23_without_the_key_a_delivery_is_shown_but_not_replayed(start: Start) -> None:
    """And whoever sends it again gets what is said today, if it is as good as it was then."""
    relevo = await start(OLD)
    wish = {"id": "e1", "do": "answer", "say": CANARY}
    await deliver(relevo, ODD, json=wish)
    await deliver(relevo, SIGNED, json={"id": "e2"})

    for other in (await start(NEW), await start()):
        assert await deliver(other, ODD, json=wish) == Answer.json({"said": CANARY}, 202)
        empty = Answer(202, b"", {"content-type": "application/json"})
        assert await deliver(other, ODD, json={"id": "e1", "do": "nothing"}) == empty
        came = await only(other, "e2")
        page = await deliver(
            other, f"/deliveries/{came.id}", method="GET", sign=False, headers=LOCAL
        )
        assert page.status == 200
        assert b"relevo-sealed" in page.body
        with pytest.raises(SealError, match=SealKeys(OLD).names[0]):
            await other.desk.replay(came.id, ANN, other.handling)


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_c23_what_waits_in_the_spool_is_sealed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is carried by whoever has the key, and stays where it is until then."""
    monkeypatch.setattr(spool_module, "AGAIN", 0.02)
    monkeypatch.setattr(spool_module, "LOOK", 0.05)
    relevo = await start(OLD)
    away = Away(relevo, monkeypatch)
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1", "note": CANARY}) == OK
    with sqlite3.connect(tmp_path / "spool.db") as file:
        [(data,)] = file.execute("select data from spool").fetchall()
    file.close()
    assert data.startswith(b"relevo-sealed:")
    await relevo.rest()
    away.come_back()

    for keys in ((), (NEW,)):
        stranger = await start(*keys)
        await stranger.asgi().start()
        assert await stranger.asgi().gate.spool._is_stuck()
        assert await stranger.asgi().gate.spool.waiting() == 1
        await stranger.rest()
    both = await start(NEW, OLD)
    await both.asgi().start()
    await until(lambda: is_empty(both))
    assert await jobs(both) == ["e1"]


# the command line


def test_c23_the_program_seals_with_the_keys_of_its_environment(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23, C20: it prints a key once, when asked to make one, and never again."""
    key = box("seal-key").out.strip()
    assert SealKeys(key).names
    monkeypatch.setenv("RELEVO_SEAL_KEYS", key)
    payload = b'{"order":"%b"}' % CANARY.encode()
    id = box.do(lambda store: add(sealed(store, SealKeys(key)), payload=payload))
    assert CANARY in box("jobs", "show", id, "--reveal").out
    assert CANARY.encode() not in box.path.read_bytes()
    monkeypatch.delenv("RELEVO_SEAL_KEYS")
    assert "relevo-sealed:" in box("jobs", "show", id, "--reveal").out
    monkeypatch.setenv("RELEVO_SEAL_KEYS", f"{NEW},{key}")
    assert CANARY in box("jobs", "show", id, "--reveal").out

    told = box("doctor")
    assert "is sealed" in told.out
    blind = box("forget", "--text", CANARY, "--note", "n", "--dry-run")
    assert (blind.code, "cannot be searched" in blind.err) == (1, True)
    shown = box("settings")
    assert "RELEVO_SEAL_KEYS" in shown.out
    assert key not in told.out + told.err + shown.out + shown.err


def test_a_key_that_is_none_stops_the_program(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_SEAL_KEYS", "canary-no-key")
    answer = box("jobs", "ls")
    assert answer.code == 2
    assert "RELEVO_SEAL_KEYS cannot be used" in answer.err
    assert "canary" not in answer.out + answer.err
