"""Many deliveries that failed or differ are seen by their error, and handled again by a person."""

from __future__ import annotations

import asyncio
import time

import pytest

from relevo import Delivery, Intake, MisuseError, sources
from relevo.desk import DeliveryQuery, Person, Replays, Role
from relevo.errors import DefinitionError, NotAllowed
from relevo.job import State, Verdict
from relevo.store import DeliveryState, Letterbox
from relevo.testing import deliver, drain
from tests.engine.conftest import Start
from tests.engine.test_failed_deliveries import ANN, HOOK, Shop

ENDPOINT = f"test:{HOOK}"
FAILED = DeliveryQuery()


class Choosy(Shop):
    """A shop whose function fails on some orders only, each with its own words."""

    wrong = frozenset({"e1", "e2", "e3"})

    async def run(self, delivery: Delivery, ctx: Intake) -> None:
        id = delivery.json["id"]
        if self.is_broken or id in self.wrong:
            raise RuntimeError(f"order {id[1:]} has no address")
        await super().run(delivery, ctx)


async def test_failed_deliveries_are_told_by_endpoint_and_error(start: Start) -> None:
    shop = Choosy(start)
    async with shop.relevo as relevo:
        for number in range(12):
            await shop.send(f"e{number}")
        shop.key_is_broken = True
        await shop.send("e50")

        found = await relevo.desk.delivery_groups()

        assert [(each.count, each.endpoint) for each in found.groups] == [
            (12, ENDPOINT),
            (1, ENDPOINT),
        ]
        assert found.groups[0].error == "RuntimeError: order 11 has no address"
        assert "no key for this" in found.groups[1].error
        assert found.groups[0].first_at <= found.groups[0].last_at
        assert (found.count, found.is_cut) == (13, False)
        counts = await relevo.desk.delivery_counts()
        assert (counts[DeliveryState.FAILED].count, counts[DeliveryState.FAILED].is_cut) == (
            13,
            False,
        )
        assert not (await relevo.desk.delivery_groups(endpoint="test:/hooks/other")).groups


async def test_all_that_failed_are_handled_after_the_fix(start: Start) -> None:
    """Oldest first; those that fail again are told by their error, and stop nothing."""
    shop = Choosy(start)
    async with shop.relevo as relevo:
        for number in range(10):
            await shop.send(f"e{number}")
        shop.is_broken = False
        seen: list[Replays] = []

        dry = await relevo.desk.replay_where(FAILED, ANN, relevo.handling, dry_run=True)
        assert [one.key for one in dry.deliveries] == [f"e{number}" for number in range(10)]
        assert not shop.runs
        done = await relevo.desk.replay_where(
            FAILED, ANN, relevo.handling, "mended", progress=seen.append
        )

        assert (done.matched, done.handled, done.failed, done.skipped) == (10, 7, 3, 0)
        [error] = done.errors
        assert (error.count, error.error) == (3, "RuntimeError: order 1 has no address")
        assert [one.handled + one.failed for one in seen] == list(range(11))
        assert shop.runs == ["e0", *(f"e{number}" for number in range(4, 10))]
        assert await shop.handlers(State.CANCELLED) == 7
        await drain(relevo, skip_waits=True, until=lambda: len(shop.runs) == 7)
        assert len(await shop.saved()) == 7
        rows, _ = await relevo.store.audits(limit=50)
        assert sorted(row.verb for row in rows if row.verb.startswith("replay")) == [
            *["replay"] * 7,
            "replay many",
        ]
        [row] = [row for row in rows if row.verb == "replay many"]
        assert row.note == "mended; state failed; 7 of 10 handled, 3 failed again, 0 skipped"


async def test_a_call_handles_so_many_and_the_next_one_goes_on(start: Start) -> None:
    shop = Choosy(start)
    async with shop.relevo as relevo:
        for number in range(7):
            await shop.send(f"e{number}")
        shop.is_broken = False
        cursor, handled, calls = None, 0, 0
        while True:
            done = await relevo.desk.replay_where(
                FAILED, ANN, relevo.handling, limit=3, cursor=cursor
            )
            handled, calls, cursor = handled + done.handled, calls + 1, done.cursor
            if cursor is None:
                break
        assert (handled, calls) == (4, 3)
        with pytest.raises(DefinitionError):
            await relevo.desk.replay_where(
                DeliveryQuery(state=DeliveryState.DIFFERS),
                ANN,
                relevo.handling,
                cursor=(
                    await relevo.desk.replay_where(
                        FAILED, ANN, relevo.handling, limit=1, dry_run=True
                    )
                ).cursor,
            )


async def test_a_query_means_an_endpoint_an_age_and_an_error(start: Start) -> None:
    shop = Choosy(start)
    async with shop.relevo as relevo:
        for number in range(4):
            await shop.send(f"e{number}")
        now = await relevo.store.now()

        async def matched(**query: object) -> int:
            query_ = DeliveryQuery(**query)  # pyright: ignore[reportArgumentType]
            found = await relevo.desk.replay_where(query_, ANN, relevo.handling, dry_run=True)
            return found.matched

        [group] = (await relevo.desk.delivery_groups()).groups
        assert await matched(endpoint=ENDPOINT, since=now - 60_000, error="no address") == 4
        assert await matched(group=group.fingerprint) == 4
        assert await matched(error="order 2") == 1
        for none in (
            {"endpoint": "test:/hooks/other"},
            {"since": now + 1_000},
            {"until": now - 60_000},
            {"error": "another"},
            {"group": "0" * 12},
            {"state": DeliveryState.DIFFERS},
        ):
            assert await matched(**none) == 0, none


async def test_accepted_ones_are_replayed_once_each_and_replays_are_not(start: Start) -> None:
    shop = Shop(start)
    shop.is_broken = False
    async with shop.relevo as relevo:
        for number in range(3):
            await shop.send(f"e{number}")
        query = DeliveryQuery(state=DeliveryState.ACCEPTED)
        for generations in (2, 3):
            done = await relevo.desk.replay_where(query, ANN, relevo.handling)
            assert (done.matched, done.handled) == (3, 3)
            assert len(await shop.kept(key="e1")) == generations


async def test_refused_ones_are_handled_unless_nobody_signed_them_or_they_came_later(
    start: Start,
) -> None:
    shop = Shop(start)
    shop.is_broken = False
    async with shop.relevo as relevo:
        for body in (b"[", b"{"):  # signed well, and no JSON
            assert (await deliver(relevo, HOOK, body=body)).status == 400
        query = DeliveryQuery(state=DeliveryState.REFUSED)
        done = await relevo.desk.replay_where(query, ANN, relevo.handling)
        assert (done.matched, done.handled, done.failed) == (2, 0, 2)


async def test_bodies_that_differ_are_handled_together(start: Start) -> None:
    shop = Shop(start)
    shop.is_broken = False
    async with shop.relevo as relevo:
        for status in ("queued", "sent", "delivered"):
            await shop.send(status=status)
        [group] = (await relevo.desk.delivery_groups((DeliveryState.DIFFERS,))).groups
        assert group.count == 2
        first, sent, _ = await shop.kept(key="e1")
        seen = await relevo.desk.delivery_view(first.id)
        assert [one.state for one in seen.others] == [DeliveryState.DIFFERS] * 2
        assert (await relevo.desk.delivery_view(sent.id)).first == first.id

        query = DeliveryQuery(state=DeliveryState.DIFFERS)
        done = await relevo.desk.replay_where(query, ANN, relevo.handling)

        assert (done.handled, done.matched) == (2, 2)
        assert len(await shop.saved()) == 3


async def test_a_replay_of_many_that_is_stopped_is_written_down(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        for number in range(5):
            await shop.send(f"e{number}")
        shop.is_broken = False

        def stop(done: Replays) -> None:
            if done.handled == 2:
                task.cancel()

        task = asyncio.create_task(
            relevo.desk.replay_where(FAILED, ANN, relevo.handling, progress=stop)
        )
        with pytest.raises(asyncio.CancelledError):
            await task
        rows, _ = await relevo.store.audits(target="deliveries")
        assert rows[0].note.endswith("2 of 5 handled, 0 failed again, 0 skipped")
        assert len(await shop.kept(state=DeliveryState.FAILED)) == 3


async def test_many_are_replayed_no_faster_than_a_rate(start: Start) -> None:
    """F54: the first at once; a rate that is none is refused before anything is handled."""
    shop = Shop(start)
    async with shop.relevo as relevo:
        for number in range(4):
            await shop.send(f"e{number}")
        shop.is_broken = False
        shop.runs.clear()
        with pytest.raises(DefinitionError, match="is not a rate"):
            await relevo.desk.replay_where(FAILED, ANN, relevo.handling, rate="quick")
        assert not shop.runs
        began = time.monotonic()
        done = await relevo.desk.replay_where(FAILED, ANN, relevo.handling, rate="5/s")
        assert (done.handled, time.monotonic() - began > 0.59) == (4, True)


async def test_a_viewer_handles_nothing(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        with pytest.raises(NotAllowed):
            await relevo.desk.replay_where(FAILED, Person("vi", Role.VIEWER), relevo.handling)


async def test_a_delivery_tells_of_its_jobs_as_they_were(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        await shop.send()
        [came] = await shop.kept()
        seen = await relevo.desk.delivery_view(came.id)
        assert seen.handler is not None
        assert (seen.handler.verdict, seen.handler.state) == (Verdict.NEW, State.SCHEDULED)
        assert seen.handler.run_at > came.received_at

        shop.is_broken = False
        await relevo.desk.replay(came.id, ANN, relevo.handling)
        seen = await relevo.desk.delivery_view(came.id)
        assert seen.handler is None
        assert [order.verdict for order in seen.orders] == [Verdict.NEW]
        await relevo.store.deliveries(Letterbox())


async def test_the_function_s_own_misuse_is_a_failure_and_no_skip(start: Start) -> None:
    class Wrong(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            if self.is_broken:
                raise RuntimeError("a mistake")
            raise MisuseError("it calls what it must not")

    shop = Wrong(start, source=sources.github("a secret"))
    async with shop.relevo as relevo:
        await shop.send()
        shop.is_broken = False
        done = await relevo.desk.replay_where(FAILED, ANN, relevo.handling)
        assert (done.failed, done.skipped) == (1, 0)
        assert done.errors[0].error == "MisuseError: it calls what it must not"


async def test_a_trace_finds_what_failed_was_refused_or_differs_by_the_provider_s_id(
    start: Start,
) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        shop.is_broken, shop.key_is_broken = False, True
        await shop.send("order-1")
        shop.key_is_broken = False
        assert (await deliver(relevo, HOOK, body=b"[1", id="order-2")).status == 400
        for status in ("queued", "sent", "delivered"):
            await shop.send("order-3", status=status)

        async def states(text: str) -> list[DeliveryState]:
            return [one.state for one in (await relevo.desk.trace(text)).deliveries]

        assert await states("order-1") == [DeliveryState.FAILED]
        assert await states("order-2") == [DeliveryState.REFUSED]
        differ = [DeliveryState.ACCEPTED, DeliveryState.DIFFERS, DeliveryState.DIFFERS]
        assert await states("order-3") == differ
        [_, sent, _] = await shop.kept(key="order-3")
        assert await states(sent.id) == differ


async def test_deliveries_are_counted_by_endpoint_and_state(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        for _ in range(2):
            await shop.send("e1")
        shop.is_broken = False
        await shop.send("e2")
        await shop.send("e2", status="sent")
        await deliver(relevo, HOOK, body=b"[1")
        counts = relevo.telemetry.deliveries
        assert counts == {
            (ENDPOINT, DeliveryState.FAILED): 1,
            (ENDPOINT, DeliveryState.ACCEPTED): 1,
            (ENDPOINT, DeliveryState.DIFFERS): 1,
            (ENDPOINT, DeliveryState.REFUSED): 1,
        }
        await drain(relevo, skip_waits=True)
        assert counts[ENDPOINT, DeliveryState.ACCEPTED] == 2
