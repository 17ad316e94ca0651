"""While the store is away deliveries wait in a file, and go the usual way when it is back."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import relevo.ingress.spool as spool_module
from relevo import (
    Answer,
    App,
    Delivery,
    Relevo,
    StoreUnavailable,
    sources,
    storewatch,
    webhook,
)
from relevo.ids import new_id
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.testing import ManualClock, deliver, drain, until
from tests.edges import doors
from tests.edges.doors import ODD, SECRET, SIGNED, STRIPE, TX, jobs, kept
from tests.edges.test_ingress import OK, code
from tests.faults.disk import small_disk


@pytest.fixture
def relevo_apps() -> list[App]:
    return [doors.app()]


class Away:
    """Takes the store away, and brings it back."""

    VERBS = ("receive", "delivered", "receive_within", "remember")

    def __init__(self, relevo: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
        self._relevo = relevo
        self._patch = monkeypatch
        self.calls = 0
        self.real = {verb: getattr(relevo.store, verb) for verb in (*self.VERBS, "now")}

    def go(self) -> None:
        async def gone(*_: Any) -> Any:
            self.calls += 1
            raise StoreUnavailable("the store is away")

        async def not_probed(*_: Any) -> Any:
            raise StoreUnavailable("the store is away")

        for verb in (*self.VERBS, "now"):
            verb_gone = not_probed if verb == "remember" else gone
            self._patch.setattr(self._relevo.store, verb, verb_gone)
        self._patch.setattr(self._relevo.receiver._arrivals, "_flush", gone)

    def come_back(self) -> None:
        for verb, real in self.real.items():
            self._patch.setattr(self._relevo.store, verb, real)
        self._patch.setattr(self._relevo.receiver._arrivals, "_flush", self.real["receive"])


@pytest.fixture
def away(relevo: Relevo, monkeypatch: pytest.MonkeyPatch) -> Away:
    monkeypatch.setattr(spool_module, "AGAIN", 0.02)
    monkeypatch.setattr(storewatch, "AGAIN", 0.01)
    monkeypatch.setattr(spool_module, "LOOK", 0.05)
    return Away(relevo, monkeypatch)


@pytest.fixture
async def waiting(relevo: Relevo) -> AsyncGenerator[Any]:
    yield relevo.asgi().gate.spool.waiting


async def is_empty(relevo: Relevo) -> bool:
    return await relevo.asgi().gate.spool.waiting() == 0


@pytest.mark.parametrize("path", [SIGNED, TX])
async def test_a_delivery_waits_out_the_store_and_happens_once(
    relevo: Relevo, away: Away, path: str, tmp_path: Path
) -> None:
    away.go()
    assert await deliver(relevo, path, json={"id": "e1"}) == OK
    assert await deliver(relevo, path, json={"id": "e1"}) == OK  # the provider sends it again
    assert await deliver(relevo, path, json={"id": "e2"}) == OK
    assert away.calls <= 3, "whoever comes next need not wait for the same deadline"
    assert await relevo.asgi().gate.spool.waiting() == 3
    assert stat.S_IMODE((tmp_path / "relevo-spool.db").stat().st_mode) == 0o600
    health = await deliver(relevo, "/health", method="GET", sign=False)
    assert (health.status, health.body) == (200, b'{"status":"degraded"}')
    assert (await deliver(relevo, "/ready", method="GET", sign=False)).status == 200

    away.come_back()
    await until(lambda: is_empty(relevo))
    assert await deliver(relevo, path, json={"id": "e1"}) == OK
    await drain(relevo)

    assert await jobs(relevo) == ["e1", "e2"]
    found, _ = await relevo.store.deliveries(Letterbox())
    assert sorted((one.key, one.repeats) for one in found) == [("e1", 2), ("e2", 0)]


async def test_what_waits_outlives_the_process(
    relevo: Relevo, away: Away, tmp_path: Path, clock: ManualClock
) -> None:
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK
    await relevo.close()

    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    again = Relevo(url, apps=[doors.app()], clock=clock)
    again.asgi()
    async with again:
        await until(lambda: is_empty(again))
        assert await jobs(again) == ["e1"]


async def test_what_another_process_spools_is_found_without_a_restart(
    relevo: Relevo, away: Away, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old process of a deploy writes to the file after the new one has looked."""
    monkeypatch.setattr(spool_module, "LOOK", 0.05)
    await relevo.asgi().start()
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    async with Relevo(url, apps=[doors.app()], clock=clock) as old:
        Away(old, monkeypatch).go()
        assert await deliver(old, SIGNED, json={"id": "e1"}) == OK
        await until(lambda: _is_taken(relevo, "e1"))
    assert await jobs(relevo) == ["e1"]


async def test_a_process_ends_when_its_spool_is_empty_or_says_what_waits(
    relevo: Relevo, away: Away, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = relevo.asgi().gate
    monkeypatch.setattr(spool_module, "LOOK", 60.0)
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK
    await gate.finish(0.1)
    assert await gate.spool.waiting() == 1
    away.come_back()
    await gate.finish(10)
    assert await gate.spool.waiting() == 0
    assert await jobs(relevo) == ["e1"]

    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e2"}) == OK
    with caplog.at_level("ERROR", logger="relevo"):
        await relevo.close()
    assert "1 deliveries that were answered wait in" in caplog.text


async def test_forgeries_are_refused_while_the_store_is_away(relevo: Relevo, away: Away) -> None:
    away.go()

    assert code(await deliver(relevo, SIGNED, json={"id": "e1"}, sign=False))[0] == 401
    assert await relevo.asgi().gate.spool.waiting() == 0


async def test_the_signature_is_not_looked_at_again_when_it_has_grown_old(
    relevo: Relevo, away: Away, clock: ManualClock
) -> None:
    away.go()
    assert await deliver(relevo, STRIPE, json={"id": "e1"}) == OK
    clock.advance("2h")
    away.come_back()

    await until(lambda: is_empty(relevo))
    assert await jobs(relevo) == ["e1"]


async def test_what_is_refused_after_its_answer_waits_where_people_see_it(
    relevo: Relevo, away: Away
) -> None:
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e0"}) == OK
    assert await deliver(relevo, ODD, json={"id": "e1", "do": "reject"}) == OK
    assert await deliver(relevo, ODD, json={"id": "e2", "do": "raise"}) == OK
    assert await deliver(relevo, SIGNED, json={"id": "e3"}) == OK
    away.come_back()

    async def is_settled() -> bool:
        states = DeliveryState.FAILED, DeliveryState.REFUSED
        return await kept(relevo) == 2 and [await kept(relevo, each) for each in states] == [1, 1]

    await until(is_settled)
    [refused], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.REFUSED))
    assert "room 99" in refused.reason
    [failed], _ = await relevo.store.deliveries(Letterbox(state=DeliveryState.FAILED))
    assert (failed.key, len(failed.jobs)) == ("e2", 1)
    assert await relevo.asgi().gate.spool.waiting() == 0


async def test_a_key_that_fails_while_the_store_is_away_is_a_failure_of_ours(
    relevo: Relevo, away: Away
) -> None:
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": None}) == OK
    away.come_back()

    await until(lambda: is_empty(relevo))
    [failed], _ = await relevo.store.deliveries(Letterbox())
    assert failed.state is DeliveryState.FAILED


async def test_a_mistake_in_a_query_is_no_store_that_is_away(relevo: Relevo) -> None:
    assert await deliver(relevo, TX, json={"id": "e1", "do": "query"}) == OK

    assert await kept(relevo, DeliveryState.FAILED) == 1
    assert await relevo.asgi().gate.spool.waiting() == 0


async def test_one_that_the_store_never_takes_does_not_hold_up_the_others(
    relevo: Relevo, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "odd"}) == OK
    assert await deliver(relevo, SIGNED, json={"id": "e2"}) == OK
    real = away.real["receive"]

    async def choosy(arrivals: Any) -> Any:
        if any(arrival.kept.key == "odd" for arrival in arrivals):
            raise StoreUnavailable("not this one")
        return await real(arrivals)

    away.come_back()
    monkeypatch.setattr(relevo.receiver._arrivals, "_flush", choosy)

    await until(lambda: _is_taken(relevo, "e2"))
    assert await relevo.asgi().gate.spool.waiting() == 1


async def test_a_spool_that_fails_while_it_is_emptied_is_emptied_later(
    relevo: Relevo, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what was answered nothing waits for the next start: not for a lock, not for a bad row."""
    spool = relevo.asgi().gate.spool
    endpoint = relevo.receiver.doors[SIGNED].endpoint
    damaged = msgspec.msgpack.encode(Kept(id=new_id(), endpoint=endpoint, key="e0", headers=b"?"))
    for row in (b"\xc1", damaged):
        await spool._do(
            lambda db, row=row: db.execute("insert into spool (data) values (?)", (row,))
        )
    real, locked = spool._read, [StoreUnavailable("locked")] * 3

    async def read(after: int) -> Any:
        if locked:
            raise locked.pop()
        return await real(after)

    monkeypatch.setattr(spool, "_read", read)
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK
    away.come_back()

    await until(lambda: _is_taken(relevo, "e1"))
    assert locked == []
    await until(lambda: _waits(relevo, 2))  # what cannot be read stays for people


async def test_a_delete_that_fails_leaves_the_spool_open_for_the_next(
    relevo: Relevo, away: Away, tmp_path: Path
) -> None:
    """What was given to the store and could not be taken out yet holds up no other delivery."""
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK
    refuse = "create trigger refuse before delete on spool begin select raise(fail, 'full'); end"
    with closing(sqlite3.connect(tmp_path / "relevo-spool.db", isolation_level=None)) as other:
        other.execute(refuse)
        away.come_back()
        await until(lambda: _is_taken(relevo, "e1"))
        away.go()
        assert await deliver(relevo, SIGNED, json={"id": "e2"}) == OK
        other.execute("drop trigger refuse")
    away.come_back()

    await until(lambda: is_empty(relevo))
    await drain(relevo)
    assert await jobs(relevo) == ["e1", "e2"]


async def test_one_that_comes_at_the_very_end_of_a_pass_is_not_left_behind(
    relevo: Relevo, away: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = relevo.asgi().gate.spool
    away.go()
    assert await deliver(relevo, SIGNED, json={"id": "e1"}) == OK
    real, late = spool._read, ["e2"]

    async def read(after: int) -> Any:
        rows = await real(after)
        if not rows and late:
            away.go()
            assert await deliver(relevo, SIGNED, json={"id": late.pop()}) == OK
            away.come_back()
        return rows

    monkeypatch.setattr(spool, "_read", read)
    away.come_back()

    await until(lambda: _is_taken(relevo, "e2"))


async def asked(delivery: Delivery) -> Answer:
    return Answer.json({"said": delivery.json["id"]})


async def learned(delivery: Delivery):
    return {"said": delivery.json["id"]}


async def at_times(delivery: Delivery) -> Answer | None:
    return None


@pytest.mark.parametrize(
    ("function", "answer", "is_first", "status"),
    [
        (asked, None, False, 503),
        (learned, None, True, 503),
        (learned, None, False, 200),  # nothing tells yet
        (at_times, None, True, 200),
        (asked, Answer.json({"ok": True}), True, 200),
    ],
)
async def test_an_answer_that_only_the_function_has_is_never_given_for_it(
    function: Callable[..., Any],
    answer: Answer | None,
    is_first: bool,
    status: int,
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signed = sources.hmac_header("X-Signature", SECRET)
    hook = webhook("/hooks/a", function, verify=signed, key=lambda d: d.json["id"], answer=answer)
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    async with Relevo(url, apps=[App("shop", webhooks=[hook])], clock=clock) as engine:
        if is_first:
            assert (await deliver(engine, "/hooks/a", json={"id": "e0"})).status == 200
        Away(engine, monkeypatch).go()
        for _ in range(2):
            told = await deliver(engine, "/hooks/a", json={"id": "e1"})
            assert told.status == status
        assert await engine.asgi().gate.spool.waiting() == (2 if status == 200 else 0)


async def test_what_would_not_be_known_again_is_503_and_nothing_is_promised(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key is in a header that is not kept: the spool could do nothing with it later."""
    signed = sources.hmac_header("X-Signature", SECRET)
    by_header = webhook("/hooks/h", doors.saving, verify=signed, key=lambda d: d.headers["x-id"])
    shop = App("shop", workers=[doors.save], webhooks=[by_header])
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    async with Relevo(url, apps=[shop], clock=clock) as engine:
        headers = {"x-id": "e1"}
        assert await deliver(engine, "/hooks/h", json={"id": "e1"}, headers=headers) == OK
        Away(engine, monkeypatch).go()
        answer = await deliver(engine, "/hooks/h", json={"id": "e2"}, headers={"x-id": "e2"})

        assert code(answer) == (503, "unavailable")
        assert await engine.asgi().gate.spool.waiting() == 0


async def _waits(relevo: Relevo, count: int) -> bool:
    return await relevo.asgi().gate.spool.waiting() == count


async def _is_taken(relevo: Relevo, key: str) -> bool:
    return bool((await relevo.store.deliveries(Letterbox(key=key)))[0])


async def test_without_a_spool_it_is_503_and_nothing_is_promised(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'relevo.db'}"
    async with Relevo(url, apps=[doors.app()], clock=clock, spool="off") as engine:
        Away(engine, monkeypatch).go()
        answer = await deliver(engine, SIGNED, json={"id": "e1"})

    assert code(answer) == (503, "unavailable")
    assert answer.headers["retry-after"] == "5"
    assert not (tmp_path / "relevo-spool.db").exists()


async def test_f20_a_spool_that_cannot_be_written_is_503(
    relevo: Relevo, away: Away, tmp_path: Path
) -> None:
    (tmp_path / "relevo-spool.db").mkdir()
    away.go()

    assert code(await deliver(relevo, SIGNED, json={"id": "e1"})) == (503, "unavailable")
    assert (await deliver(relevo, "/ready", method="GET", sign=False)).status == 503
    health = await deliver(relevo, "/health", method="GET", sign=False)
    assert (health.status, health.body) == (503, b'{"status":"not ok"}')


async def test_c21_the_spool_holds_no_secret(relevo: Relevo, away: Away, tmp_path: Path) -> None:
    away.go()
    await deliver(relevo, SIGNED, json={"id": "e1"}, headers={"authorization": SECRET})
    await relevo.close()

    data = b"".join(path.read_bytes() for path in tmp_path.glob("relevo-spool.db*"))
    assert b"e1" in data
    assert SECRET.encode() not in data
    with sqlite3.connect(tmp_path / "relevo-spool.db") as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


async def test_f20_a_full_disk_is_not_ready_until_it_is_freed(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, unmade: Callable[[str], None]
) -> None:
    """Neither the store nor the spool beside it takes anything: a load balancer is to know."""
    monkeypatch.setattr("relevo.front.HEALTH_SECONDS", -1.0)
    monkeypatch.setattr(storewatch, "RARELY", -1.0)
    monkeypatch.setattr(storewatch, "AGAIN", 0.01)
    with small_disk(16 << 20) as disk:
        if disk is None:
            unmade("only root may mount a small disk")
            return
        async with Relevo(
            f"sqlite:///{disk.path}/relevo.db", apps=[doors.app()], clock=clock
        ) as engine:
            states: list[tuple[int, bytes, int]] = []

            async def look() -> None:
                ready = await deliver(engine, "/ready", method="GET", sign=False)
                health = await deliver(engine, "/health", method="GET", sign=False)
                states.append((ready.status, health.body, health.status))

            await look()
            disk.weigh_down(disk.left() - 65_536)
            await look()
            assert code(await deliver(engine, SIGNED, json={"id": "e1"})) == (503, "unavailable")
            disk.free()
            await engine.watch.back()
            await look()
            assert await deliver(engine, SIGNED, json={"id": "e1"}) == OK
    well = (200, b'{"status":"ok"}', 200)
    assert states == [well, (503, b'{"status":"not ok"}', 503), well]


async def test_a_store_that_answers_others_is_busy_and_not_away(
    relevo: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that waits in a long queue tells nothing while the queue goes on."""
    monkeypatch.setattr(storewatch, "PATIENCE", 0.05)
    watch = storewatch.StoreWatch(relevo.store, relevo.clock)
    gate, real = asyncio.Event(), relevo.store.remember

    async def queued(notes: Any) -> list[bool]:
        await gate.wait()
        return await real(notes)

    monkeypatch.setattr(relevo.store, "remember", queued)
    watch.doubt()
    for _ in range(20):
        watch.heard += 1
        await asyncio.sleep(0.02)
        assert not watch.is_away
    await until(lambda: watch.is_away)  # now it answers nobody
    gate.set()
    await watch.back()
    assert not watch.is_away
    await watch.close()
