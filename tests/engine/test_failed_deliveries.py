"""A signed delivery is never lost to a mistake of ours: it is kept, retried and handled once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace
from sqlalchemy import text

import relevo.ingress.gate as gate_module
import relevo.intake.handling as handling_module
from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Intake,
    Key,
    MisuseError,
    PayloadError,
    Reject,
    SettingsError,
    sources,
)
from relevo.desk import Person, Role
from relevo.ids import new_id
from relevo.job import State
from relevo.pairs import Headers
from relevo.route import Use
from relevo.store import By, DeliveryState, Edit, Filter, Kept, Letterbox, QueueMode
from relevo.testing import ManualClock, call, deliver, drain
from tests.conformance.fresh import SQL_STORES
from tests.engine.conftest import Start

HOOK = "/hooks/shop"
RETRY = "test:webhooks:retry"
ANN = Person("ann", Role.OPERATOR)


class Save(Command, queue="test:orders:save"):
    order: str


async def save(order: Save) -> None: ...


class Pay(Command, queue="test:orders:pay"):
    order: str


Hook = Callable[..., Awaitable[Any]]


class Shop:
    """A webhook whose function, and key, can be broken and mended."""

    def __init__(self, start: Start, **options: Any) -> None:
        self.is_broken = True
        self.key_is_broken = False
        self.runs: list[str] = []
        self.app = App("test", workers=[save])
        options.setdefault("source", sources.github("a secret"))
        options.setdefault("key", self.key)
        self.app.webhook(HOOK, **options)(self.hook())
        self.relevo = start(self.app)

    def key(self, delivery: Delivery) -> str:
        return delivery.json["nowhere" if self.key_is_broken else "id"]

    def hook(self) -> Hook:
        async def hook(delivery: Delivery, ctx: Intake) -> Any:
            await self.run(delivery, ctx)

        return hook

    async def run(self, delivery: Delivery, ctx: Intake) -> None:
        self.runs.append(delivery.json["id"])
        await ctx.enqueue(Save(order=delivery.json["id"]))
        if self.is_broken:
            raise RuntimeError("a mistake in the function")

    async def send(self, id: str = "e1", **fields: Any) -> int:
        return (await deliver(self.relevo, HOOK, json={"id": id, **fields}, id=id)).status

    async def kept(self, **where: Any) -> list[Kept]:
        found, _ = await self.relevo.store.deliveries(Letterbox(**where), limit=200)
        return found[::-1]

    async def saved(self) -> list[str]:
        page = await self.relevo.store.page(Filter(queue="test:orders:save"), limit=200)
        return sorted(job.payload.decode() for job in page.jobs)

    async def handlers(self, *states: State) -> int:
        return await self.relevo.store.count(Filter(queue=RETRY, states=frozenset(states)))


async def test_what_a_mistake_has_met_is_handled_once_it_is_mended(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo:
        some = [shop.send(f"e{number:03}") for number in range(150)]
        assert set(await asyncio.gather(*some)) == {200}

        failed = await shop.kept(state=DeliveryState.FAILED)
        assert len(failed) == 150
        assert {one.reason for one in failed} == {
            "its function failed: RuntimeError: a mistake in the function"
        }
        assert await shop.saved() == []
        assert await shop.send("e007") == 200  # the provider sends one again: counted, no more
        assert await shop.handlers(State.SCHEDULED) == 150

        shop.is_broken = False
        await drain(shop.relevo, skip_waits=True)

        assert len(await shop.saved()) == 150 == len(set(await shop.saved()))
        handled = await shop.kept(state=DeliveryState.ACCEPTED)
        assert len(handled) == 150
        assert [one.repeats for one in handled if one.key == "e007"] == [1]
        assert {one.reason for one in handled} == {""}
        assert await shop.handlers(State.DONE) == 150


async def test_a_repetition_after_the_mending_starts_nothing_beside_the_retry(
    start: Start,
) -> None:
    shop = Shop(start)
    async with shop.relevo:
        await shop.send()
        shop.is_broken = False

        assert await shop.send() == 200
        assert await shop.saved() == []
        await drain(shop.relevo, skip_waits=True)
        assert await shop.send() == 200

        assert len(await shop.saved()) == 1
        [came] = await shop.kept()
        assert (came.state, came.repeats) == (DeliveryState.ACCEPTED, 2)


async def test_a_function_that_stays_broken_ends_among_the_dead_letters(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo:
        await shop.send()
        [came] = await shop.kept()
        edit = Edit(id=came.jobs[0], attempts=3)
        assert await shop.relevo.store.edit([edit], By("ann")) == [True]
        await drain(shop.relevo, skip_waits=True)

        assert await shop.handlers(State.DEAD) == 1
        [group] = await shop.relevo.store.groups()
        assert (group.queue, group.message) == (RETRY, "a mistake in the function")
        assert (await shop.kept())[0].state is DeliveryState.FAILED
        shop.is_broken = False
        await shop.relevo.store.retry([came.jobs[0]], By("ann"))
        await drain(shop.relevo)
        assert len(await shop.saved()) == 1


async def test_no_mistake_ends_the_retry_at_once(start: Start) -> None:
    """A worker that raises a PayloadError has a dead job, and no mended code could help it."""

    class Strict(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            if self.is_broken:
                self.runs.append("broken")
                raise PayloadError("5m")  # a text that no wait must be made of
            await super().run(delivery, ctx)

    shop = Strict(start)
    async with shop.relevo:
        await shop.send()
        await drain(shop.relevo, skip_waits=True, until=lambda: len(shop.runs) > 2)
        [job] = (await shop.relevo.store.page(Filter(queue=RETRY))).jobs
        assert job.failure is not None
        assert job.failure.type == "PayloadError"
        shop.is_broken = False
        await drain(shop.relevo, skip_waits=True)

        assert len(await shop.saved()) == 1


async def test_two_deliveries_that_only_the_key_tells_apart_are_both_handled(
    start: Start,
) -> None:
    """Both have one provider id, and the broken key function finds the key of neither."""
    shop = Shop(start)
    shop.is_broken, shop.key_is_broken = False, True
    async with shop.relevo as relevo:
        for id in ("e1", "e2", "e2"):
            assert (await deliver(relevo, HOOK, json={"id": id}, id="a guid")).status == 200
        assert [one.repeats for one in await shop.kept()] == [0, 1]

        shop.key_is_broken = False
        await drain(relevo, skip_waits=True)
        for id in ("e1", "e2"):
            await deliver(relevo, HOOK, json={"id": id}, id="a guid")

        assert len(await shop.saved()) == 2
        assert [one.key for one in await shop.kept()] == ["e1", "e2"]


async def test_a_key_that_is_masked_is_none(start: Start) -> None:
    """Else all deliveries whose key was not found in time would be the same one."""
    field = ["nowhere"]
    shop = Shop(start, key=lambda d: d.json[field[0]])
    shop.is_broken = False
    async with shop.relevo as relevo:
        for id in ("e1", "e2"):
            await shop.send(id, token=f"sk_live_4eC39HqLyjWDarjtT1zdp7{id}")
        field[0] = "token"

        async def tried() -> bool:
            jobs = (await relevo.store.page(Filter(queue=RETRY))).jobs
            return all(job.attempt > 1 or job.state is State.DONE for job in jobs)

        await drain(relevo, skip_waits=True, until=tried)

        assert [one.state for one in await shop.kept()] == [DeliveryState.FAILED] * 2
        for job in (await relevo.store.page(Filter(queue=RETRY))).jobs:
            assert job.failure is not None
            assert "its key is masked" in job.failure.message


async def test_where_the_answer_is_acted_on_a_failure_is_told_as_one(start: Start) -> None:
    shop = Shop(start, source=sources.slack_commands("a secret"), key=lambda d: d.form["id"])

    async def send() -> int:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return (await deliver(shop.relevo, HOOK, body="id=e1", headers=headers)).status

    async with shop.relevo:
        assert await send() == 500
        assert await send() == 500  # the same answer

        [came] = await shop.kept()
        assert (came.state, came.status, came.repeats) == (DeliveryState.FAILED, 500, 1)


async def test_a_key_that_could_not_be_found_is_known_once_it_is(start: Start) -> None:
    shop = Shop(start)
    shop.is_broken, shop.key_is_broken = False, True
    async with shop.relevo:
        assert [await shop.send() for _ in range(2)] == [200, 200]
        [came] = await shop.kept()
        assert (came.state, came.repeats) == (DeliveryState.FAILED, 1)
        assert came.reason == '/hooks/shop has no key for this: no field "nowhere" in the body'

        shop.key_is_broken = False
        await drain(shop.relevo, skip_waits=True)
        assert await shop.send() == 200

        assert len(await shop.saved()) == 1
        [came] = await shop.kept()
        assert (came.key, came.state) == ("e1", DeliveryState.ACCEPTED)


async def test_a_failed_delivery_that_came_again_under_its_key_is_not_handled_twice(
    start: Start,
) -> None:
    shop = Shop(start)
    shop.is_broken, shop.key_is_broken = False, True
    async with shop.relevo:
        await shop.send()
        shop.key_is_broken = False
        await shop.send()
        assert len(await shop.saved()) == 1

        await drain(shop.relevo, skip_waits=True)

        assert len(await shop.saved()) == 1
        failed, came = await shop.kept()
        assert failed.state is DeliveryState.IGNORED
        assert failed.reason == f"the same as delivery {came.id}"


async def test_the_key_that_was_found_is_kept_for_the_retry(start: Start) -> None:
    """Also one from a header that is not stored."""
    shop = Shop(start, key=lambda d: d.headers["x-shop-id"])
    async with shop.relevo:
        sent = await deliver(shop.relevo, HOOK, json={"id": "e1"}, headers={"x-shop-id": "h1"})
        assert sent.status == 200
        shop.is_broken = False
        await drain(shop.relevo, skip_waits=True)

        [came] = await shop.kept()
        assert (came.key, came.state) == ("h1", DeliveryState.ACCEPTED)
        assert len(await shop.saved()) == 1


async def test_a_function_that_refuses_a_failed_delivery_ends_it(start: Start) -> None:
    class Picky(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            await super().run(delivery, ctx)
            raise Reject(422, "not_ours", "it is another shop's")

    shop = Picky(start)
    async with shop.relevo:
        await shop.send()
        shop.is_broken = False
        await drain(shop.relevo, skip_waits=True)

        [came] = await shop.kept()
        assert came.state is DeliveryState.IGNORED
        assert came.reason == "refused by its function: it is another shop's"
        assert await shop.saved() == []


async def test_a_draining_queue_leaves_a_failed_delivery_for_later(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo:
        await shop.send()
        shop.is_broken = False
        store = shop.relevo.store
        await store.set_mode(["test:orders:save"], QueueMode.DRAINING, By("ann"))
        await drain(shop.relevo, skip_waits=True, until=lambda: len(shop.runs) > 2)
        assert (await shop.kept())[0].state is DeliveryState.FAILED
        await store.set_mode(["test:orders:save"], QueueMode.OPEN, By("ann"))
        await drain(shop.relevo, skip_waits=True)

        assert len(await shop.saved()) == 1


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_rows_of_a_failed_delivery_are_written_once(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows, its jobs and its state are one commit, also when its job dies right after it."""

    class Paid(Shop):
        def hook(self) -> Hook:
            async def hook(delivery: Delivery, ctx: Intake, tx: Any) -> None:
                await tx.execute(text("insert into paid values ('e1')"))
                await self.run(delivery, ctx)

            return hook

    shop = Paid(start)
    async with shop.relevo as relevo:
        async with relevo.transaction() as tx:
            await tx.execute(text("drop table if exists paid"))
            await tx.execute(text("create table paid (name text)"))
        assert await shop.send() == 200
        shop.is_broken = False
        real = relevo.handling.resolve
        died: list[str] = []

        async def resolve(kept: Kept, job: str) -> Any:
            taken = await real(kept, job)
            if not died:
                died.append(job)
                raise RuntimeError("the process died here")
            return taken

        monkeypatch.setattr(relevo.handling, "resolve", resolve)
        await drain(relevo, skip_waits=True)

        assert died
        assert len(await shop.saved()) == 1
        async with relevo.transaction() as tx:
            assert list((await tx.execute(text("select name from paid"))).scalars()) == ["e1"]


async def test_a_person_lets_a_failed_delivery_in_and_its_job_ends(start: Start) -> None:
    shop = Shop(start)
    async with shop.relevo as relevo:
        await shop.send()
        [came] = await shop.kept()
        with pytest.raises(MisuseError, match="a mistake in the function"):
            await relevo.desk.replay(came.id, ANN, relevo.handling)
        shop.is_broken = False

        dry = await relevo.desk.replay(came.id, ANN, relevo.handling, dry_run=True)
        assert [order.queue for order in dry.orders] == ["test:orders:save"]
        done = await relevo.desk.replay(came.id, ANN, relevo.handling)

        assert (done.id, done.generation) == (came.id, 0)
        assert await shop.handlers(State.CANCELLED) == 1
        await drain(relevo, skip_waits=True)
        assert len(await shop.saved()) == 1
        assert (await shop.kept())[0].state is DeliveryState.ACCEPTED


async def test_a_retry_waits_where_the_secret_is_missing(start: Start, clock: ManualClock) -> None:
    secrets = ["a secret"]

    def source(use: Use) -> sources.Source:
        if not secrets:
            raise SettingsError("set SHOP_SECRET")
        return sources.github(secrets[0])

    shop = Shop(start, source=source)
    async with shop.relevo as relevo:
        await shop.send()
        shop.is_broken = False
        secrets.clear()
        await drain(relevo, skip_waits=True)

        assert await shop.handlers(State.PARKED) == 1
        [job] = (await relevo.store.page(Filter(queue=RETRY))).jobs
        assert job.failure is not None
        assert "set SHOP_SECRET" in job.failure.message
        assert job.attempt == 0
        secrets.append("a secret")
        await relevo.release_known()
        await drain(relevo, skip_waits=True)
        assert len(await shop.saved()) == 1


async def test_a_job_waits_for_a_delivery_that_is_stored_behind_it(start: Start) -> None:
    """A store without transactions has the job first; one whose delivery is gone does no harm."""
    shop = Shop(start)
    async with shop.relevo as relevo:
        gone = Delivery(id=new_id(), path="/hooks/x", received_at=datetime.now(UTC))
        job = relevo.handling.job("test", gone, is_later=True)
        await relevo.store.insert([replace(job, queue=RETRY)])

        async def waits() -> bool:
            [found] = await relevo.store.find([job.id])
            return found is not None and found.state is State.SCHEDULED

        await drain(relevo, until=waits)
        await drain(relevo, skip_waits=True)

        [found] = await relevo.store.find([job.id])
        assert found is not None
        assert found.state is State.CANCELLED
        assert found.failure is not None
        assert "it was pruned or erased" in found.failure.message


# later


async def test_a_function_may_run_after_the_answer(start: Start) -> None:
    shop = Shop(start, later=True)
    async with shop.relevo as relevo:
        assert await shop.send() == 200
        assert shop.runs == []
        [came] = await shop.kept()
        assert (came.state, came.reason) == (DeliveryState.ACCEPTED, "")
        [job] = (await relevo.store.page(Filter(queue="test:webhooks:later"))).jobs
        assert came.jobs == (job.id,)

        edit = Edit(id=job.id, attempts=2)
        await relevo.store.edit([edit], By("ann"))
        await drain(relevo, skip_waits=True)
        [came] = await shop.kept()
        assert (came.state, came.jobs) == (DeliveryState.FAILED, (job.id,))
        assert "a mistake in the function" in came.reason
        assert await relevo.store.count(Filter(states=frozenset({State.DEAD}))) == 1

        shop.is_broken = False
        await relevo.store.retry([job.id], By("ann"))
        await drain(relevo, skip_waits=True)
        assert await shop.send() == 200
        [came] = await shop.kept()
        assert (came.state, came.reason, came.repeats) == (DeliveryState.ACCEPTED, "", 1)
        assert len(await shop.saved()) == 1


async def test_a_replay_of_what_still_waits_runs_its_function_once(start: Start) -> None:
    """Its own job then finds nothing to do."""
    shop = Shop(start, later=True)
    shop.is_broken = False
    async with shop.relevo as relevo:
        await shop.send()
        [came] = await shop.kept()
        dry = await relevo.desk.replay(came.id, ANN, relevo.handling, dry_run=True)
        assert dry.generation == 0
        done = await relevo.desk.replay(came.id, ANN, relevo.handling)
        assert (done.id, done.generation) == (came.id, 0)
        await drain(relevo, skip_waits=True)
        assert shop.runs == ["e1"] * 2  # the rehearsal is one
        assert len(await shop.saved()) == 1
        [came] = await shop.kept()
        assert came.jobs == (done.orders[0].id,)

        again = await relevo.desk.replay(came.id, ANN, relevo.handling)
        assert again.generation == 1
        assert len(shop.runs) == 3


@pytest.mark.parametrize("how", ["it is slow", "it cancels itself"])
async def test_a_later_function_that_is_broken_off_has_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    class Slow(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            if how == "it is slow":
                await asyncio.sleep(60)
            raise asyncio.CancelledError

    monkeypatch.setattr(handling_module, "HANDLE_SECONDS", 0.02)
    shop = Slow(start, later=True)
    async with shop.relevo as relevo:
        await shop.send()
        [came] = await shop.kept()
        await relevo.store.edit([Edit(id=came.jobs[0], attempts=1)], By("ann"))
        await drain(relevo, skip_waits=True)

        [came] = await shop.kept()
        assert came.state is DeliveryState.FAILED
        assert "Error" in came.reason
        assert await relevo.store.count(Filter(states=frozenset({State.DEAD}))) == 1


async def test_a_failure_does_not_hide_that_a_body_is_masked(start: Start) -> None:
    shop = Shop(start, later=True)
    async with shop.relevo as relevo:
        await shop.send(note="sk_live_4eC39HqLyjWDarjtT1zdp7dc")
        await drain(relevo, skip_waits=True, until=lambda: len(shop.runs) > 1)

        [came] = await shop.kept()
        assert came.reason == (
            "its function failed: RuntimeError: a mistake in the function; "
            "masked in its body: note (a provider's key); a replay gets it masked"
        )


# another body under a known key


async def test_another_body_under_a_known_key_is_kept_and_told(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(start)
    shop.is_broken = False
    async with shop.relevo as relevo:
        for status in ("queued", "sent", "sent", "delivered"):
            assert await shop.send(status=status) == 200

        first, sent, delivered = await shop.kept(key="e1")
        assert (first.state, first.repeats, first.differs) == (DeliveryState.ACCEPTED, 3, True)
        assert [sent.state, delivered.state] == [DeliveryState.DIFFERS] * 2
        assert sent.reason == f"its key came before with another body, in delivery {first.id}"
        assert sent.thread == first.id
        [whole] = await relevo.store.delivery([sent.id])
        assert whole is not None
        assert b"sent" in whole.body
        assert sum("with another body" in each.message for each in caplog.records) == 1
        assert len(await shop.saved()) == 1

        replayed = await relevo.desk.replay(sent.id, ANN, relevo.handling)
        assert replayed.id == sent.id
        assert len(await shop.saved()) == 2
        with pytest.raises(MisuseError):  # it is accepted now: a replay is another generation
            assert (await relevo.desk.replay(sent.id, ANN, relevo.handling)).generation == 1
            raise MisuseError("as said")


async def test_a_hundred_other_bodies_of_one_key_are_kept_and_more_are_counted(
    start: Start,
) -> None:
    shop = Shop(start)
    shop.is_broken = False
    async with shop.relevo:
        for number in range(103):
            assert await shop.send(number=number) == 200

        assert len(await shop.kept(state=DeliveryState.DIFFERS)) == 100
        [first] = await shop.kept(state=DeliveryState.ACCEPTED)
        assert first.repeats == 102


async def test_another_body_may_be_a_delivery_of_its_own(start: Start) -> None:
    shop = Shop(start, on_differing="handle")
    shop.is_broken = False
    async with shop.relevo:
        for status in ("queued", "sent", "sent", "delivered", "queued"):
            assert await shop.send(status=status) == 200

        assert len(await shop.saved()) == 3
        assert shop.runs.count("e1") >= 3
        came = await shop.kept(key="e1")
        assert {one.state for one in came} == {DeliveryState.ACCEPTED}
        assert sorted(one.repeats for one in came) == [0, 1, 4]


class Transactional(Shop):
    """A webhook whose rows and whose delivery are one commit."""

    def hook(self) -> Hook:
        async def hook(delivery: Delivery, ctx: Intake, tx: Any) -> None:
            await self.run(delivery, ctx)

        return hook


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_another_body_that_comes_at_the_same_moment_is_kept_too(start: Start) -> None:
    shop = Transactional(start)
    shop.is_broken = False
    async with shop.relevo:
        bodies = [shop.send(status=status) for status in ("queued", "sent", "queued")]
        assert await asyncio.gather(*bodies) == [200, 200, 200]

        came = await shop.kept(key="e1")
        assert sorted(one.state for one in came) == ["accepted", "differs"]
        assert max(one.repeats for one in came) == 2
        assert len(await shop.saved()) == 1


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_repetitions_of_another_body_are_counted(start: Start) -> None:
    shop = Transactional(start, on_differing="handle")
    shop.is_broken = False
    async with shop.relevo:
        for status in ("queued", "sent", "sent", "delivered", "queued"):
            assert await shop.send(status=status) == 200

        assert len(await shop.saved()) == 3
        assert sorted(one.repeats for one in await shop.kept(key="e1")) == [0, 1, 4]


async def test_another_body_whose_function_takes_too_long_is_kept_as_failed(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            self.runs.append(delivery.json["status"])
            await ctx.enqueue(Save(order=delivery.json["status"]))
            if self.runs.count("sent") == 2:  # for the body that differs
                await asyncio.sleep(60)

    monkeypatch.setattr(gate_module, "FUNCTION_SECONDS", 0.2)
    monkeypatch.setattr(gate_module, "LOOK_SECONDS", 0.02)
    shop = Slow(start, on_differing="handle")
    async with shop.relevo:
        assert await shop.send(status="queued") == 200
        assert await shop.send(status="sent") == 200

        [failed] = await shop.kept(state=DeliveryState.FAILED)
        assert failed.generation < 0
        await drain(shop.relevo, skip_waits=True)
        assert len(await shop.saved()) == 2


async def test_another_body_is_handled_whatever_its_key_looks_like(start: Start) -> None:
    shop = Shop(start, on_differing="handle", key=lambda d: f"id:{d.json['id']}")
    async with shop.relevo:
        for status in ("queued", "sent"):
            assert await shop.send(status=status) == 200
        shop.is_broken = False
        await drain(shop.relevo, skip_waits=True)

        assert len(await shop.saved()) == 2
        assert {one.state for one in await shop.kept()} == {DeliveryState.ACCEPTED}


async def test_another_body_with_a_spent_token_is_refused(start: Start) -> None:
    """Mailgun's signature covers a token and not the event, which anyone could change."""
    shop = Shop(start, source=sources.mailgun("a key"), on_differing="handle")
    shop.is_broken = False
    async with shop.relevo as relevo:
        door = relevo.receiver.doors[HOOK]
        pairs = Headers([("content-type", "application/json")])
        now = relevo.clock.now()
        bare = Delivery(path=HOOK, headers=pairs, body=b'{"id":"e1"}', received_at=now)
        signed = door.scheme.sign(bare, now)
        forged = replace(signed, id=new_id(), body=signed.body.replace(b"{", b'{"paid":true,', 1))

        answers = [(await call(relevo.asgi(), each)).status for each in (signed, forged, signed)]

        assert answers == [200, door.rules.refused, 200]
        assert len(await shop.saved()) == 1
        assert await shop.kept(state=DeliveryState.DIFFERS) == []


async def test_a_replay_of_another_body_makes_no_effect_again(start: Start) -> None:
    """Nor does a replay of that replay."""
    made: list[str] = []

    async def pay(order: Pay, ctx: Context) -> None:
        async def call(key: Key) -> None:
            made.append(order.order)

        await ctx.once("pay", call)

    class Paying(Shop):
        async def run(self, delivery: Delivery, ctx: Intake) -> None:
            await ctx.enqueue(Pay(order=delivery.json["status"]))

    def with_pay(*apps: App) -> Any:
        apps[0].worker(pay)
        return start(*apps)

    shop = Paying(with_pay, on_differing="handle")
    async with shop.relevo as relevo:
        for status in ("queued", "sent"):
            await shop.send(status=status)
        await drain(relevo, skip_waits=True)
        first, other = [one.id for one in await shop.kept(key="e1")]

        for id in (first, other):
            again = await relevo.desk.replay(id, ANN, relevo.handling)
            await relevo.desk.replay(again.id, ANN, relevo.handling)
        await drain(relevo, skip_waits=True)

        assert sorted(made) == ["queued", "sent"]


async def test_a_provider_s_own_counters_are_no_difference(start: Start) -> None:
    shop = Shop(start, source=sources.stripe("whsec_1"), key=None)
    shop.is_broken = False
    async with shop.relevo:
        for pending in (2, 1, 0):
            assert await shop.send("evt_1", pending_webhooks=pending) == 200

        [came] = await shop.kept()
        assert (came.repeats, came.differs) == (2, False)


async def test_an_answer_that_the_provider_takes_for_a_failure_is_ours(start: Start) -> None:
    class Late(Shop):
        def hook(self) -> Hook:
            async def hook(delivery: Delivery) -> Any:
                return 202, "later"

            return hook

    shop = Late(start, source=sources.paddle("a secret"), key=lambda d: d.json["id"])
    async with shop.relevo:
        assert await shop.send() == 200

        [came] = await shop.kept()
        assert came.state is DeliveryState.FAILED
        assert "answered 202, which paddle takes for a failure" in came.reason
