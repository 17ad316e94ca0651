"""The states of deliveries, and what a job writes down once it has run a delivery's function."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.errors import MisuseError
from relevo.ids import new_id
from relevo.job import Verdict
from relevo.store import (
    DELIVERY_KEEP,
    REFUSED_KEEP,
    Arrival,
    By,
    DeliveryState,
    Kept,
    Letterbox,
    QueueMode,
    SqlStore,
    Store,
)
from relevo.testing import ManualClock
from tests.conformance.fresh import AT_ONCE, SQL_STORES
from tests.conformance.steps import DAY, HOUR, OTHER, count, job, legible
from tests.conformance.test_receive import SOURCE, accept, full, kept, listed, newest, receive
from tests.conformance.test_receive import rejected as refused
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

KNOWN = [state for state in DeliveryState if state is not DeliveryState.REFUSED]


def failed(handler: str, key: str = "k", **fields: Any) -> Kept:
    """A delivery whose function failed, and whose handler job has this id."""
    said = {"state": DeliveryState.FAILED, "reason": "its function failed: KeyError: 'id'"}
    return kept(key, **{**said, "jobs": (handler,), **fields})


async def fail(store: Store, key: str = "k", **fields: Any) -> tuple[Kept, str]:
    """Store a failed delivery with the job that is to handle it; answers both."""
    handler = job(OTHER)
    came = failed(handler.id, key, **fields)
    answer = await receive(store, came, handler)
    assert answer.verdict is Verdict.NEW
    return came, handler.id


def resolved(came: Kept, *jobs: Any, **fields: Any) -> Arrival:
    """What its function made of a delivery at last."""
    said = {"state": DeliveryState.ACCEPTED, "reason": "", "jobs": tuple(each.id for each in jobs)}
    values = {name: getattr(came, name) for name in Kept.__struct_fields__}
    return Arrival(Kept(**{**values, **said, **fields}), tuple(jobs))


@pytest.mark.parametrize("state", KNOWN)
async def test_a_state_is_kept_and_its_key_is_known(store: Store, state: DeliveryState) -> None:
    came = kept(state=state, reason="so it was")
    await accept(store, came)

    again = await receive(store, kept(), job())

    assert (again.verdict, again.kept.id, again.kept.state) == (Verdict.DONE, came.id, state)
    stored = await full(store, came.id)
    assert (stored.state, stored.reason, stored.key) == (state, "so it was", "k")
    assert (stored.body, stored.repeats) == (came.body, 1)
    assert (await newest(store, "k")).state is state
    assert await count(store) == 0


async def test_deliveries_are_listed_by_state(store: Store) -> None:
    ids = {state: await accept(store, kept(state.value, state=state)) for state in KNOWN}
    ids[DeliveryState.REFUSED] = await accept(store, refused())

    for state in DeliveryState:
        assert await listed(store, state=state) == ids[state]
        found = await listed(store, endpoint=SOURCE, state=state, text="1")
        assert found in (ids[state], [*legible(store, *ids[state])])  # sealed, it is chance
    every = [id for state in [*KNOWN, DeliveryState.REFUSED] for id in ids[state]]
    assert await listed(store) == every[::-1]


async def test_a_mixed_batch_keeps_each_in_its_state(store: Store) -> None:
    some = [kept(f"k{n}", state=state) for n, state in enumerate([*KNOWN, *KNOWN])]
    jobs = [job() for _ in some]

    answers = await store.receive(
        [Arrival(one, (order,)) for one, order in zip(some, jobs, strict=True)]
    )

    assert [answer.verdict for answer in answers] == [Verdict.NEW] * len(some)
    found = await store.delivery([one.id for one in some])
    assert [one and one.state for one in found] == [one.state for one in some]
    assert [one and one.jobs for one in found] == [(order.id,) for order in jobs]


async def test_another_body_under_a_known_key_is_told(store: Store) -> None:
    await accept(store, kept(body=b"one"))

    alike, other = [(await receive(store, kept(body=body))).differs for body in (b"one", b"two")]

    assert (alike, other) == (False, True)
    stored = await newest(store, "k")
    assert (stored.repeats, stored.differs) == (2, True)


async def test_what_is_compared_may_be_less_than_the_body(store: Store) -> None:
    """A provider that counts its attempts inside the body repeats the same delivery."""
    first = Arrival(kept(body=b'{"a":1,"try":1}'), (), b'{"a":1}')
    again = Arrival(kept(body=b'{"a":1,"try":2}'), (), b'{"a":1}')
    other = Arrival(kept(body=b'{"a":2,"try":2}'), (), b'{"a":2}')

    answers = [(await store.receive([each]))[0] for each in (first, again, other)]

    assert [answer.differs for answer in answers] == [False, False, True]


async def test_another_body_is_a_generation_of_its_own(store: Store) -> None:
    first, other = kept(body=b"one"), kept(body=b"two", state=DeliveryState.DIFFERS, generation=-7)
    await accept(store, first, other)

    again = await receive(
        store, kept(body=b"two", state=DeliveryState.DIFFERS, generation=-7), job()
    )

    assert (again.verdict, again.kept.id) == (Verdict.DONE, other.id)
    assert (await newest(store, "k")).id == first.id
    assert await listed(store, key="k") == [other.id, first.id]
    assert (await full(store, other.id)).generation == -7
    assert await count(store) == 0


async def test_a_refused_delivery_is_found_by_its_key_and_keeps_no_other_out(
    store: Store, clock: ManualClock
) -> None:
    ids = await accept(store, *[refused(key="k", body=b"%d" % n) for n in range(2)])
    assert await store.delivered(SOURCE, ["k"]) == [None]
    other = await accept(store, refused(key="other"), kept("another"))

    [known] = await accept(store, kept("k"))

    assert await listed(store, key="k") == [known, *ids[::-1]]
    assert await listed(store, key="k", state=DeliveryState.REFUSED) == ids[::-1]
    assert await listed(store, key="other", endpoint=SOURCE) == other[:1]
    assert (await full(store, ids[0])).key == "k"
    assert (await full(store, ids[0])).repeats == 0
    assert (await newest(store, "k")).id == known
    clock.advance(f"{REFUSED_KEEP + HOUR}ms")
    while await store.prune(dead_keep=90 * DAY):
        pass
    assert await listed(store, key="k") == [known]


# resolve


async def test_a_failed_delivery_is_resolved_with_its_jobs(store: Store) -> None:
    came, handler = await fail(store)
    await receive(store, kept())
    made = job()

    answer = await store.resolve(handler, resolved(came, made, answer=b"well", status=201))

    assert answer.verdict is Verdict.NEW
    assert (answer.kept.id, answer.kept.state) == (came.id, DeliveryState.ACCEPTED)
    stored = await full(store, came.id)
    assert (stored.state, stored.reason) == (DeliveryState.ACCEPTED, "")
    assert (stored.jobs, stored.answer, stored.status) == ((made.id,), b"well", 201)
    assert (stored.body, stored.headers, stored.repeats) == (came.body, came.headers, 1)
    assert await count(store, queue=made.queue) == 1
    again = await receive(store, kept(), job())
    assert (again.verdict, again.kept.answer) == (Verdict.DONE, b"well")
    assert again.kept.id == came.id
    assert await listed(store, state=DeliveryState.FAILED) == []
    assert await listed(store, state=DeliveryState.ACCEPTED) == [came.id]


async def test_a_delivery_is_resolved_once(store: Store) -> None:
    came, handler = await fail(store)
    await store.resolve(handler, resolved(came, first := job()))

    answer = await store.resolve(handler, resolved(came, job(), reason="late"))

    assert (answer.verdict, answer.kept.jobs) == (Verdict.DONE, (first.id,))
    assert await count(store, queue=first.queue) == 1
    assert (await full(store, came.id)).reason == ""


async def test_the_same_resolution_twice_stores_its_jobs_once(store: Store) -> None:
    """Where the answer was lost, the handler runs again and gives its jobs the same ids."""
    came, handler = await fail(store)
    arrival = resolved(came, made := job())
    await store.resolve(handler, arrival)

    answer = await store.resolve(handler, arrival)

    assert answer.verdict is Verdict.DONE
    assert await count(store, queue=made.queue) == 1


async def test_only_the_job_that_stands_for_a_delivery_resolves_it(store: Store) -> None:
    came, handler = await fail(store)

    answer = await store.resolve(new_id(), resolved(came, job()))

    assert answer.verdict is Verdict.DONE
    stored = await full(store, came.id)
    assert (stored.state, stored.jobs) == (DeliveryState.FAILED, (handler,))


@pytest.mark.parametrize("state", [DeliveryState.FAILED, DeliveryState.DIFFERS])
async def test_a_person_resolves_a_delivery_that_has_no_job(
    store: Store, state: DeliveryState
) -> None:
    came, done = kept(state=state), kept("done")
    await accept(store, came, done)

    answers = [await store.resolve("", resolved(each, job())) for each in (came, done, came)]

    assert [answer.verdict for answer in answers] == [Verdict.NEW, Verdict.DONE, Verdict.DONE]
    assert (await full(store, came.id)).state is DeliveryState.ACCEPTED


async def test_a_delivery_that_is_gone_is_not_resolved(store: Store) -> None:
    handler = job(OTHER)

    answer = await store.resolve(handler.id, resolved(failed(handler.id), job()))

    assert answer.verdict is Verdict.DONE
    assert await count(store) == 0


async def test_a_delivery_that_is_not_resolved_yet_keeps_its_job(store: Store) -> None:
    """The function of one that is handled later fails for the first time."""
    handler = job(OTHER)
    came = kept(jobs=(handler.id,))
    await receive(store, came, handler)
    still = resolved(came, state=DeliveryState.FAILED, reason="no", jobs=(handler.id,))

    assert (await store.resolve(handler.id, still)).verdict is Verdict.NEW

    stored = await full(store, came.id)
    assert (stored.state, stored.reason) == (DeliveryState.FAILED, "no")
    assert stored.jobs == (handler.id,)
    ended = await store.resolve(handler.id, resolved(came, made := job()))
    assert ended.verdict is Verdict.NEW
    assert (await full(store, came.id)).jobs == (made.id,)


@pytest.mark.parametrize("state", [DeliveryState.ACCEPTED, DeliveryState.IGNORED])
async def test_a_resolved_delivery_gets_the_key_that_was_not_found_before(
    store: Store, state: DeliveryState
) -> None:
    came, handler = await fail(store, "body:1234")

    await store.resolve(handler, resolved(came, job(), key="evt_1", state=state))

    for key in ("evt_1", "body:1234"):
        again = await receive(store, kept(key))
        assert (again.verdict, again.kept.id) == (Verdict.DONE, came.id)
    stored = await full(store, came.id)
    assert (stored.key, stored.state) == ("evt_1", state)
    assert (await newest(store, "evt_1")).id == came.id
    assert await listed(store, key="evt_1") == [came.id]


async def test_repeats_are_counted_under_both_keys(store: Store) -> None:
    came, handler = await fail(store, "body:1234")
    await receive(store, kept("body:1234", body=b"other"))

    await store.resolve(handler, resolved(came, key="evt_1"))

    stored = await full(store, came.id)
    assert (stored.repeats, stored.differs) == (1, True)
    await receive(store, kept("evt_1"))
    assert (await full(store, came.id)).repeats == 2


async def test_a_delivery_that_is_refused_at_last_stays_known(
    store: Store, clock: ManualClock
) -> None:
    came, handler = await fail(store)
    no = resolved(came, state=DeliveryState.REFUSED, reason="no", answer=b"no", status=422)

    assert (await store.resolve(handler, no)).verdict is Verdict.NEW

    assert await listed(store, state=DeliveryState.REFUSED) == [came.id]
    assert await listed(store, key="k") == [came.id]
    for _ in range(2):
        again = await receive(store, kept(), job())
        assert (again.verdict, again.kept.id) == (Verdict.DONE, came.id)
        assert (again.kept.status, again.kept.answer) == (422, b"no")
        clock.advance(f"{REFUSED_KEEP + HOUR}ms")
        while await store.prune(dead_keep=90 * DAY):
            pass
        assert await store.delivery([came.id]) == [None]
    assert await count(store, queue="app:module:work") == 0


async def test_a_key_that_another_delivery_has_stays_with_that(store: Store) -> None:
    first = kept("evt_1")
    await accept(store, first)
    came, handler = await fail(store, "body:1234")

    await store.resolve(handler, resolved(came, key="evt_1"))

    assert (await newest(store, "evt_1")).id == first.id


async def test_a_draining_queue_leaves_a_delivery_as_it_is(store: Store) -> None:
    came, handler = await fail(store)
    made = job("app:module:draining")
    await store.set_mode([made.queue], QueueMode.DRAINING, By("ana"))

    answer = await store.resolve(handler, resolved(came, made))

    assert answer.verdict is Verdict.CLOSED
    stored = await full(store, came.id)
    assert (stored.state, stored.jobs) == (DeliveryState.FAILED, (handler,))
    assert await count(store, queue=made.queue) == 0
    await store.set_mode([made.queue], QueueMode.OPEN, By("ana"))
    assert (await store.resolve(handler, resolved(came, made))).verdict is Verdict.NEW


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_job_that_joins_another_stands_for_the_delivery(store: Store) -> None:
    there = job(key="k", unique="unfinished")
    await store.insert([there])
    came, handler = await fail(store)

    await store.resolve(handler, resolved(came, job(key="k", unique="unfinished")))

    assert (await full(store, came.id)).jobs == (there.id,)


async def test_a_delivery_is_resolved_in_a_transaction(
    store: Store, session: Session | None
) -> None:
    came, handler = await fail(store)
    made = job()
    if session is None:
        with pytest.raises(MisuseError):
            await store.resolve_within(object(), handler, resolved(came, made))
        return
    await session.begin()
    undone = await store.resolve_within(session.connection, handler, resolved(came, made))
    assert undone.verdict is Verdict.NEW
    await session.rollback()
    assert (await full(store, came.id)).state is DeliveryState.FAILED

    await session.begin()
    answer = await store.resolve_within(session.connection, handler, resolved(came, made))
    await session.commit()

    assert answer.verdict is Verdict.NEW
    stored = await full(store, came.id)
    assert (stored.state, stored.jobs) == (DeliveryState.ACCEPTED, (made.id,))
    assert await count(store, queue=made.queue) == 1


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_delivery_is_resolved_with_letters(store: SqlStore) -> None:
    came, handler = await fail(store)
    made = job()

    answer = await store.resolve_posted(handler, resolved(came, made))
    late = await store.resolve_posted(handler, resolved(came, job()))

    assert (answer.verdict, late.verdict) == (Verdict.NEW, Verdict.DONE)
    assert (await full(store, came.id)).jobs == (made.id,)
    letters = await store.letters(carried=False)
    assert [letter.job.id for letter in letters] == [made.id]


# upkeep


async def test_failed_deliveries_stay_as_long_as_dead_jobs(
    store: Store, clock: ManualClock
) -> None:
    came, _ = await fail(store)
    ignored = kept("other", state=DeliveryState.IGNORED)
    await accept(store, ignored)
    clock.advance(f"{DELIVERY_KEEP + HOUR}ms")

    while await store.prune(dead_keep=90 * DAY):
        pass

    assert await store.delivery([ignored.id]) == [None]
    assert (await full(store, came.id)).body == came.body
    clock.advance(f"{60 * DAY}ms")
    while await store.prune(dead_keep=90 * DAY):
        pass
    assert await store.delivery([came.id]) == [None]
    again = await receive(store, kept())
    assert (again.verdict, again.kept.id) == (Verdict.DONE, came.id)


async def test_deliveries_of_every_state_are_erased(store: Store) -> None:
    ids = await accept(store, *[kept(state.value, state=state) for state in KNOWN], refused())

    assert await store.erase([], ids, By("ana"), act=new_id()) == (0, len(ids))

    assert await store.delivery(ids) == [None] * len(ids)
    found, _ = await store.deliveries(Letterbox())
    assert found == []
