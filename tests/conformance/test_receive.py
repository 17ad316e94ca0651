"""Deliveries: kept once with their jobs, answered alike however often they come."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from relevo.errors import MisuseError, RelevoError
from relevo.ids import new_id
from relevo.job import After, State, Verdict
from relevo.store import (
    DELIVERY_KEEP,
    REFUSED_KEEP,
    Arrival,
    DeliveryState,
    Kept,
    Letterbox,
    Reception,
    SqlStore,
    Store,
)
from relevo.stores.redis.store import RedisStore
from relevo.testing import ManualClock
from tests.conformance.conftest import Handles
from tests.conformance.fresh import AT_ONCE, SQL_STORES
from tests.conformance.steps import (
    DAY,
    HOUR,
    OTHER,
    SECOND,
    WORK,
    about,
    add,
    count,
    drain,
    job,
    legible,
    look,
    states,
    take,
    take_one,
)
from tests.conformance.test_bad_input import ALIKE, CURSORS, STRANGE, is_shown
from tests.conformance.test_within import Session
from tests.conformance.test_within import session as session

SOURCE = "app:/hooks/pay"
FIRST = b"first answer"


def kept(key: str | None = "k", **fields: Any) -> Kept:
    return Kept(
        **{
            "id": new_id(),
            "endpoint": SOURCE,
            "key": key,
            "path": "/hooks/pay",
            "query": "a=1&token=***",
            "headers": b'[["content-type","application/json"]]',
            "body": b'{"n":1}',
            "answer": FIRST,
            "status": 202,
            **fields,
        }
    )


def rejected(**fields: Any) -> Kept:
    return kept(
        **{
            "key": None,
            "state": DeliveryState.REFUSED,
            "reason": "the signature is not theirs",
            "answer": b"no",
            "status": 401,
            **fields,
        },
    )


async def receive(store: Store, one: Kept, *jobs: Any) -> Reception:
    (answer,) = await store.receive([Arrival(one, jobs)])
    return answer


async def accept(store: Store, *some: Kept) -> list[str]:
    """Keep deliveries that nobody has seen; answers their ids."""
    answers = await store.receive([Arrival(one) for one in some])
    assert [answer.verdict for answer in answers] == [Verdict.NEW] * len(some)
    return [one.id for one in some]


async def full(store: Store, id: str) -> Kept:
    (found,) = await store.delivery([id])
    assert found is not None
    return found


async def newest(store: Store, key: str, source: str = SOURCE) -> Kept:
    (found,) = await store.delivered(source, [key])
    assert found is not None
    return found


async def listed(store: Store, **where: Any) -> list[str]:
    found, _ = await store.deliveries(Letterbox(**where))
    return [one.id for one in found]


# in


async def test_a_delivery_is_kept_with_its_jobs(store: Store) -> None:
    came = kept(thread="t-1")
    one, two = job(cause=came.id, thread="t-1"), job(OTHER, cause=came.id)

    answer = await receive(store, came, one, two)

    assert answer.verdict is Verdict.NEW
    assert answer.kept.id == came.id
    assert answer.kept.jobs == (one.id, two.id)
    assert abs(answer.kept.received_at - await store.now()) < 10 * SECOND
    assert await full(store, came.id) == msgspec.structs.replace(
        came, jobs=(one.id, two.id), received_at=answer.kept.received_at
    )
    assert (await look(store, one.id)).cause == came.id
    assert {lease.id for lease in await take(store, 5, WORK, OTHER)} == {one.id, two.id}


async def test_a_delivery_may_have_no_jobs(store: Store) -> None:
    came = kept()

    assert (await receive(store, came)).verdict is Verdict.NEW

    assert (await full(store, came.id)).jobs == ()
    assert await count(store) == 0
    assert await store.receive([]) == []


async def test_the_moment_it_came_is_the_stores_unless_told(
    store: Store, clock: ManualClock
) -> None:
    clock.advance("1h")
    now, spooled = kept("now"), kept("spooled", received_at=1_700_000_000_123)

    answers = await store.receive([Arrival(now), Arrival(spooled)])

    assert abs((await full(store, now.id)).received_at - await store.now()) < 10 * SECOND
    assert (await full(store, spooled.id)).received_at == 1_700_000_000_123
    assert answers[1].kept.received_at == 1_700_000_000_123


async def test_a_worker_wakes_for_what_a_delivery_brings(store: Store) -> None:
    await take(store)
    waiting = asyncio.create_task(store.wait([WORK], 10))
    await asyncio.sleep(0)
    new = job()

    await receive(store, kept(), new)

    async with asyncio.timeout(5):
        await waiting
    assert (await take_one(store)).id == new.id


async def test_the_same_delivery_again_stores_nothing(store: Store) -> None:
    """F43: at-least-once delivery is the provider's promise, exactly-once is ours."""
    came, new = kept(), job()
    await receive(store, came, new)

    again = await receive(store, kept(answer=b"other", status=500), job())

    assert again.verdict is Verdict.DONE
    assert again.kept.id == came.id
    assert (again.kept.answer, again.kept.status) == (FIRST, 202)
    assert again.kept.jobs == (new.id,)
    assert await count(store) == 1
    assert await listed(store) == [came.id]
    stored = await full(store, came.id)
    assert (stored.repeats, stored.differs) == (1, False)
    assert abs(stored.repeated_at - await store.now()) < 10 * SECOND


async def test_another_body_under_the_same_key_is_marked(store: Store) -> None:
    came = kept()
    await receive(store, came)

    again = await receive(store, kept(body=b'{"n":2}'), job())
    await receive(store, kept())

    assert (again.verdict, again.kept.answer) == (Verdict.DONE, FIRST)
    stored = await full(store, came.id)
    assert (stored.repeats, stored.differs, stored.body) == (2, True, b'{"n":1}')
    assert (await newest(store, "k")).differs
    assert await count(store) == 0


async def test_the_second_of_two_in_one_call_sees_the_first(store: Store) -> None:
    first, second, other = kept(), kept(answer=b"second", body=b"x"), kept("other")
    jobs = [job(), job(), job()]

    answers = await store.receive(
        [Arrival(one, (new,)) for one, new in zip([first, second, other], jobs, strict=True)]
    )

    assert [answer.verdict for answer in answers] == [Verdict.NEW, Verdict.DONE, Verdict.NEW]
    assert [answer.kept.id for answer in answers] == [first.id, first.id, other.id]
    assert answers[1].kept.answer == FIRST
    assert await states(store, *[new.id for new in jobs]) == [State.READY, None, State.READY]
    stored = await full(store, first.id)
    assert (stored.repeats, stored.differs) == (1, True)


async def test_sources_and_generations_are_apart(store: Store) -> None:
    ids = await accept(
        store,
        kept(),
        kept(endpoint="app:/hooks/other"),
        kept(generation=2, answer=b"replayed"),
        kept(generation=1),
    )

    assert len(set(ids)) == 4
    assert (await newest(store, "k")).answer == b"replayed"
    assert (await newest(store, "k")).generation == 2
    assert (await newest(store, "k", "app:/hooks/other")).id == ids[1]
    assert (await receive(store, kept(generation=1))).kept.id == ids[3]


async def test_rejected_ones_are_all_kept(store: Store) -> None:
    first, second = rejected(), rejected()

    ids = await accept(store, first, second)

    assert await listed(store, state=DeliveryState.REFUSED) == ids[::-1]
    stored = await full(store, first.id)
    assert stored.reason == "the signature is not theirs"
    assert (stored.status, stored.answer, stored.key, stored.repeats) == (401, b"no", None, 0)


async def test_a_draining_queue_takes_no_delivery(store: Store) -> None:
    await add(store, OTHER)
    await drain(store, OTHER)
    shut, open_ = kept("shut"), kept("open")
    jobs = [job(), job(OTHER), job()]

    answers = await store.receive([Arrival(shut, (jobs[0], jobs[1])), Arrival(open_, (jobs[2],))])

    assert [answer.verdict for answer in answers] == [Verdict.CLOSED, Verdict.NEW]
    assert answers[0].kept.id == shut.id
    assert await store.delivered(SOURCE, ["shut"]) == [None]
    assert await store.delivery([shut.id]) == [None]
    assert await states(store, *[new.id for new in jobs]) == [None, None, State.READY]


async def test_what_was_kept_before_the_drain_still_has_its_answer(store: Store) -> None:
    came = kept()
    await receive(store, came, job(OTHER))
    await drain(store, OTHER)

    again = await receive(store, kept(), job(OTHER))

    assert (again.verdict, again.kept.id, again.kept.answer) == (Verdict.DONE, came.id, FIRST)


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_a_job_that_stands_already_is_the_deliverys(store: Store) -> None:
    """Keys of jobs hold across deliveries: the one that lives is the one people are shown."""
    standing = await add(store, key="same")
    came, new = kept(), job()

    answer = await receive(store, came, job(key="same"), new)

    assert answer.verdict is Verdict.NEW
    assert answer.kept.jobs == (standing, new.id)
    assert (await full(store, came.id)).jobs == (standing, new.id)
    assert await count(store) == 2


async def test_a_delivery_whose_jobs_came_before_it_is_finished(store: Store) -> None:
    """Whoever died between the jobs and the delivery is finished by the next try."""
    new = job()
    await store.insert([new])

    answer = await receive(store, kept(), new)

    assert answer.verdict is Verdict.NEW
    assert answer.kept.jobs == (new.id,)
    assert await count(store) == 1


async def test_keys_lanes_bundles_and_flows_come_with_a_delivery(store: Store) -> None:
    child = job(lane="l", key="child", unique="forever", flow="f", node="child")
    parent = job(OTHER, after=(After(child.id),), flow="f", node="parent")
    pair = [job(bundle="b", key="b1"), job(bundle="b", key="b2")]

    answers = await store.receive(
        [
            Arrival(kept("flow"), (child, parent)),
            Arrival(kept("pair"), tuple(pair)),
        ]
    )

    assert [answer.verdict for answer in answers] == [Verdict.NEW] * 2
    assert await states(store, child.id, parent.id) == [State.READY, State.WAITING]
    assert await states(store, *[one.id for one in pair]) == [State.READY] * 2
    assert (await look(store, child.id)).lane == "l"


@pytest.mark.parametrize("store_name", AT_ONCE)
async def test_flows_come_beside_duplicates(store: Store) -> None:
    standing = await add(store, key="standing")
    await receive(store, kept("again"))
    child = job(lane="l", key="child", thread="t", meta=b"{}", delay=HOUR)
    parent = job(OTHER, after=(After(child.id),), priority=0)
    lost = job(key="lost")

    answers = await store.receive(
        [
            Arrival(kept("again"), (lost, job(OTHER, after=(After(lost.id),)))),
            Arrival(kept("flow"), (job(key="standing"), child, parent)),
            Arrival(kept("flow"), (job(key="lost"),)),
            Arrival(kept("none")),
        ]
    )

    assert [answer.verdict for answer in answers] == [
        Verdict.DONE,
        Verdict.NEW,
        Verdict.DONE,
        Verdict.NEW,
    ]
    assert answers[1].kept.jobs == (standing, child.id, parent.id)
    assert answers[2].kept.jobs == (standing, child.id, parent.id)
    assert answers[3].kept.jobs == ()
    assert await states(store, child.id, parent.id) == [State.SCHEDULED, State.WAITING]
    found = await look(store, child.id)
    assert (found.lane, found.key, found.thread, found.meta) == ("l", "child", "t", b"{}")
    assert await count(store) == 3


async def test_a_crowd_with_one_key_is_kept_once(store: Store, handles: Handles) -> None:
    """F43"""
    some = await handles(3)
    new = job()  # its id is made from the delivery: the same, whoever receives it
    arrivals = [Arrival(kept(), (new,)) for _ in range(24)]

    answers = await asyncio.gather(
        *(some[n % 3].receive([one]) for n, one in enumerate(arrivals)),
    )

    verdicts = [answer.verdict for (answer,) in answers]
    assert verdicts.count(Verdict.NEW) == 1
    assert verdicts.count(Verdict.DONE) == 23
    assert len({answer.kept.id for (answer,) in answers}) == 1
    assert await count(store) == 1
    assert (await newest(store, "k")).repeats == 23


async def test_crowds_with_the_same_keys_in_any_order_do_not_cross(
    store: Store, handles: Handles
) -> None:
    some = await handles(4)
    keys = [f"k{n}" for n in range(40)]

    answers = await asyncio.gather(
        *(
            handle.receive(
                [Arrival(kept(key), (job(key=key),)) for key in keys[:: 1 - 2 * (n % 2)]]
            )
            for n, handle in enumerate(some)
        )
    )

    verdicts = [answer.verdict for batch in answers for answer in batch]
    assert verdicts.count(Verdict.NEW) == 40
    assert verdicts.count(Verdict.DONE) == 120
    assert await count(store) == 40
    assert [one and one.repeats for one in await store.delivered(SOURCE, keys)] == [3] * 40


async def test_a_large_batch_is_kept_in_order(store: Store) -> None:
    arrivals = [Arrival(kept(f"k{n}", body=b"%d" % n), (job(),)) for n in range(300)]

    answers = await store.receive(arrivals)

    assert [answer.kept.id for answer in answers] == [one.kept.id for one in arrivals]
    found = await store.delivery([one.kept.id for one in arrivals])
    assert [one and one.body for one in found] == [b"%d" % n for n in range(300)]
    assert [one and one.jobs for one in found] == [(one.jobs[0].id,) for one in arrivals]


# within


async def test_a_delivery_commits_with_rows(store: Store, session: Session | None) -> None:
    if session is None:
        with pytest.raises(MisuseError):
            await store.receive_within(object(), Arrival(kept(), (job(),)))
        assert await store.delivered(SOURCE, ["k"]) == [None]
        return
    came, new = kept(), job()
    await session.begin()
    await session.write("mine")
    answer = await store.receive_within(session.connection, Arrival(came, (new,)))
    assert answer.verdict is Verdict.NEW
    assert answer.kept.jobs == (new.id,)
    assert await store.delivery([came.id]) == [None]
    await session.commit()

    assert (await full(store, came.id)).jobs == (new.id,)
    assert await states(store, new.id) == [State.READY]
    assert await session.texts() == ["mine"]


async def test_a_delivery_rolls_back_with_rows(store: Store, session: Session | None) -> None:
    if session is None:
        with pytest.raises(MisuseError):
            await store.receive_within(object(), Arrival(kept()))
        return
    came, new = kept(), job()
    await session.begin()
    await store.receive_within(session.connection, Arrival(came, (new,)))
    await session.rollback()

    assert await store.delivered(SOURCE, ["k"]) == [None]
    assert await states(store, new.id) == [None]
    assert (await receive(store, kept())).verdict is Verdict.NEW


async def test_a_duplicate_does_not_spoil_the_transaction(
    store: Store, session: Session | None
) -> None:
    if session is None:
        with pytest.raises(MisuseError):
            await store.receive_within(object(), Arrival(kept()))
        return
    came = kept()
    await receive(store, came)
    await session.begin()
    again = await store.receive_within(session.connection, Arrival(kept(), (job(),)))
    assert (again.verdict, again.kept.id, again.kept.answer) == (Verdict.DONE, came.id, FIRST)
    await session.write("goes on")
    await session.commit()

    assert await session.texts() == ["goes on"]
    assert await count(store) == 0


async def test_a_draining_queue_is_told_within(store: Store, session: Session | None) -> None:
    if session is None:
        with pytest.raises(MisuseError):
            await store.receive_within(object(), Arrival(kept()))
        return
    await add(store)
    await drain(store, WORK)
    await session.begin()
    answer = await store.receive_within(session.connection, Arrival(kept(), (job(),)))
    await session.commit()

    assert answer.verdict is Verdict.CLOSED
    assert await store.delivered(SOURCE, ["k"]) == [None]
    assert await count(store) == 1


# out


async def test_deliveries_are_found_by_their_keys(store: Store) -> None:
    one, two = await accept(store, kept("one"), kept("two"))

    found = await store.delivered(SOURCE, ["two", "none", "one", "two"])

    assert [each and each.id for each in found] == [two, None, one, two]
    assert [each and each.key for each in found] == ["two", None, "one", "two"]
    assert await store.delivered(SOURCE, []) == []
    assert await store.delivered("app:/elsewhere", ["one"]) == [None]
    assert await store.delivery([two, "nonsense", new_id(), one]) == [
        await full(store, two),
        None,
        None,
        await full(store, one),
    ]


async def test_deliveries_are_listed_newest_first(store: Store) -> None:
    # A millisecond apart: within one, each store orders two sources in its own way.
    now = await store.now()
    at = [now + n for n in range(6)]
    mine = await accept(store, *[kept(f"k{n}", received_at=at[n]) for n in range(3)])
    elsewhere: dict[str, Any] = {"endpoint": "app:/other"}
    other = await accept(store, kept("other", received_at=at[3], thread="t", **elsewhere))
    refused = await accept(
        store, rejected(received_at=at[4]), rejected(received_at=at[5], **elsewhere)
    )

    assert await listed(store) == [*refused[::-1], *other, *mine[::-1]]
    assert await listed(store, endpoint=SOURCE) == [refused[0], *mine[::-1]]
    assert await listed(store, state=DeliveryState.ACCEPTED) == [*other, *mine[::-1]]
    assert await listed(store, endpoint="app:/other", state=DeliveryState.REFUSED) == [refused[1]]
    assert await listed(store, endpoint=SOURCE, state=DeliveryState.ACCEPTED) == mine[::-1]
    assert await listed(store, key="k1") == [mine[1]]
    assert await listed(store, thread="t") == other
    assert await listed(store, thread="t", endpoint=SOURCE) == []
    found, cursor = await store.deliveries(Letterbox(endpoint=SOURCE))
    assert cursor is None
    assert {one.body for one in found} == {b""}
    assert found[1].answer == FIRST
    assert found[1].path == "/hooks/pay"


async def test_a_delivery_that_starts_its_thread_is_found_by_it(store: Store) -> None:
    id = new_id()
    await accept(store, kept("starts", id=id, thread=id), kept("none"), kept("other", thread=id))

    found = await listed(store, thread=id)

    assert len(found) == 2
    assert id in found
    assert (await full(store, id)).thread == id


async def test_deliveries_are_read_page_by_page(store: Store) -> None:
    ids = await accept(store, *[kept(f"k{n}") for n in range(7)])
    read: list[str] = []
    cursor = None
    while True:
        found, cursor = await store.deliveries(Letterbox(endpoint=SOURCE), cursor=cursor, limit=3)
        assert len(found) <= 3
        read += [one.id for one in found]
        if cursor is None:
            break

    assert read == ids[::-1]


async def test_a_page_of_deliveries_has_bounds(store: Store) -> None:
    """B60"""
    ids = set(await accept(store, *[kept(f"k{n}") for n in range(205)]))

    found, cursor = await store.deliveries(Letterbox(), limit=10**9)

    assert len(found) == 200
    rest, _ = await store.deliveries(Letterbox(), cursor=cursor, limit=10**9)
    assert {one.id for one in [*found, *rest]} == ids
    for limit in (0, -1, -(10**9)):
        with suppress(RelevoError):
            assert len((await store.deliveries(Letterbox(), limit=limit))[0]) == 1
    for bad in CURSORS:
        with about(bad), suppress(RelevoError):
            found, _ = await store.deliveries(Letterbox(), cursor=bad)
            assert {one.id for one in found} <= ids


async def test_deliveries_are_searched_literally(store: Store) -> None:
    """B60"""
    in_key, in_body, in_reason, quote = await accept(
        store,
        kept("RES-7K2M", body=b"nothing"),
        kept("a", body='{"code":"RES-7K2M","t":"50% caña"}'.encode()),
        rejected(reason="RES-7K2M is not ours", body=b"a_b"),
        kept("b", body=b"O'Brien \\ [x]*"),
    )

    async def search(text: str) -> set[str]:
        return set(await listed(store, text=text))

    assert await search("RES-7K2M") == {in_key, in_reason} | legible(store, in_body)
    assert await search("RES-7K2M is") == {in_reason}
    assert await search("caña") == legible(store, in_body)
    assert await search("50%") == legible(store, in_body)
    assert await search("a_b") == legible(store, in_reason)
    assert await search("O'Brien") == legible(store, quote)
    assert await search("\\") == legible(store, quote)
    assert await search("[x]*") == legible(store, quote)
    assert await search("nothing of the kind") == set()
    assert await listed(store, text="RES-7K2M", state=DeliveryState.REFUSED) == [in_reason]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_long_search_goes_on_from_page_to_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.stores.sqlite.deliveries.WALK", 4)
    monkeypatch.setattr("relevo.stores.postgres.deliveries.SEARCHED", 4)
    wanted = await accept(store, kept("first", body=b"needle"))
    await accept(store, *[kept(f"k{n}") for n in range(10)], *[rejected() for _ in range(3)])
    wanted += await accept(store, rejected(body=b"needle"), kept("last", body=b"a needle"))
    read: list[str] = []
    pages = 0
    cursor = None
    while cursor is not None or not pages:
        found, cursor = await store.deliveries(Letterbox(text="needle"), cursor=cursor)
        read += [one.id for one in found]
        pages += 1

    assert read == wanted[::-1]
    assert 2 < pages < 10


async def test_a_body_is_any_bytes(store: Store) -> None:
    bodies = [b"", b"\x00", b"\xff\xfe\x00a", bytes(range(256)), b"x" * 1_000_000]
    ids = await accept(store, *[kept(f"k{n}", body=body) for n, body in enumerate(bodies)])

    assert [one and one.body for one in await store.delivery(ids)] == bodies
    assert await listed(store, text="\x00\x01\x02nowhere") == []


async def test_keys_of_deliveries_are_never_confused(store: Store) -> None:
    """B27: two keys taken for one would lose a delivery."""
    keys = [*ALIKE, "", "x" * 1_000_000, "x" * 999_999]
    ids = await accept(store, *[kept(key) for key in keys])

    again = await store.receive([Arrival(kept(key)) for key in keys])

    assert [answer.verdict for answer in again] == [Verdict.DONE] * len(keys)
    assert [answer.kept.id for answer in again] == ids
    assert [one and one.id for one in await store.delivered(SOURCE, keys)] == ids
    for key, id in zip(keys, ids, strict=True):
        assert await listed(store, key=key) == [id], ascii(key[:20])


async def test_a_delivery_holds_any_text(store: Store) -> None:
    for n, text in enumerate(STRANGE):
        with about(text):
            one = kept(f"{n}{text}", path=text, query=text, thread=text, method=text)
            two = rejected(reason=text, endpoint=text)
            await accept(store, one, two)

            stored = await full(store, one.id)
            for shown in (stored.path, stored.query, stored.thread, stored.method):
                assert is_shown(shown, text)
            assert is_shown(stored.key, f"{n}{text}")
            stored = await full(store, two.id)
            assert is_shown(stored.reason, text)
            assert is_shown(stored.endpoint, text)
            assert await listed(store, endpoint=text) == [two.id]
            assert await listed(store, thread=text) == [one.id]
            assert await listed(store, key=text) == []


# upkeep


async def test_an_old_delivery_leaves_its_answer(store: Store, clock: ManualClock) -> None:
    """C21, C23: what people wrote is forgotten; that it came, and what was said, is not."""
    came, new = kept(reason="r", thread="t"), job()
    await receive(store, came, new)
    await take_one(store)
    clock.advance("1d")
    young = kept("young")
    await receive(store, young)
    clock.advance(f"{DELIVERY_KEEP - DAY - HOUR}ms")
    assert await store.prune(dead_keep=90 * DAY) == 0
    clock.advance("2h")

    assert await store.prune(dead_keep=90 * DAY) >= 1
    assert await store.prune(dead_keep=90 * DAY) == 0

    assert await listed(store) == [young.id]
    assert await listed(store, key="k") == []
    assert await listed(store, thread="t") == []
    assert await listed(store, text='"n"') == [*legible(store, young.id)]
    stored = await newest(store, "k")
    assert (stored.id, stored.answer, stored.status) == (came.id, FIRST, 202)
    assert (stored.key, stored.query, stored.body, stored.jobs) == (None, "", b"", ())
    again = await receive(store, kept(answer=b"other"), job(OTHER))
    assert (again.verdict, again.kept.id) == (Verdict.DONE, came.id)
    assert (again.kept.answer, again.kept.status) == (FIRST, 202)
    assert await count(store, queue=OTHER) == 0


async def test_rejected_ones_are_forgotten_wholly(store: Store, clock: ManualClock) -> None:
    """C23"""
    old = rejected()
    await accept(store, old)
    clock.advance(f"{REFUSED_KEEP - HOUR}ms")
    young, good = rejected(), kept()
    await accept(store, young, good)
    assert await store.prune(dead_keep=90 * DAY) == 0
    clock.advance("2h")

    assert await store.prune(dead_keep=90 * DAY) >= 1

    assert await store.delivery([old.id]) == [None]
    assert await listed(store) == [good.id, young.id]


async def test_a_prune_of_deliveries_takes_no_more_than_its_limit(
    store: Store, clock: ManualClock
) -> None:
    """F48"""
    await accept(store, *[kept(f"k{n}") for n in range(10)], *[rejected() for _ in range(10)])
    clock.advance(f"{DELIVERY_KEEP + HOUR}ms")

    left = 20
    for _ in range(5):
        pruned = await store.prune(dead_keep=90 * DAY, limit=6)
        assert 0 <= pruned <= 6
        assert left - 6 <= len(await listed(store)) <= left
        left = len(await listed(store))

    assert left == 0
    assert await store.prune(dead_keep=90 * DAY, limit=6) == 0
    assert None not in await store.delivered(SOURCE, [f"k{n}" for n in range(10)])


# posted: jobs as letters to a store that lives elsewhere


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_delivery_is_kept_with_its_letters(store: SqlStore) -> None:
    came, other, jobs = kept(), kept("other"), [job(), job(OTHER)]
    await store.receive_posted([Arrival(came, tuple(jobs))])

    again, new = await store.receive_posted(
        [Arrival(kept(), (job(),)), Arrival(other, (third := job(),))]
    )

    assert (again.verdict, again.kept.id, again.kept.answer) == (Verdict.DONE, came.id, FIRST)
    assert (new.verdict, new.kept.jobs) == (Verdict.NEW, (third.id,))
    assert [letter.job for letter in await store.letters(carried=False)] == [*jobs, third]
    assert (await full(store, came.id)).jobs == (jobs[0].id, jobs[1].id)
    assert await count(store) == 0


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_letters_of_a_delivery_commit_with_rows(store: SqlStore, session: Session) -> None:
    for is_meant in (False, True):
        await session.begin()
        answer = await store.receive_posted_within(
            session.connection, Arrival(kept(), (new := job(),))
        )
        assert answer.verdict is Verdict.NEW
        await (session.commit() if is_meant else session.rollback())
        letters = [letter.job for letter in await store.letters(carried=False)]
        assert letters == ([new] if is_meant else [])


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_only_an_open_letter_can_be_dropped(store: SqlStore) -> None:
    jobs = [job(), job(OTHER), job()]
    await store.post(jobs)
    over, dropped, left = (each.id for each in jobs)
    await store.mark_carried([dropped])
    await store.close_letters([over])

    await store.drop_letters([over, dropped])

    assert [letter.job.id for letter in await store.letters(carried=False)] == [left]
    assert await store.letters(carried=True) == []
    assert await store.closed([over, dropped, left]) == [True, False, False]


@pytest.mark.parametrize("store_name", SQL_STORES)
async def test_a_closed_letter_keeps_the_first_result_until_it_is_dropped(store: SqlStore) -> None:
    first, other, bare = job(), job(OTHER), job()
    await store.post([first, bare])
    ids = [first.id, other.id, bare.id]
    assert await store.close_letters(ids, {first.id: b"1", other.id: b"2"}) == [True] * 3
    assert await store.close_letters([first.id], {first.id: b"3"}) == [False]

    assert await store.results(ids) == {first.id: b"1", other.id: b"2"}
    await store.drop_results([first.id])
    assert await store.results(ids) == {other.id: b"2"}
    assert await store.closed(ids) == [True] * 3
    assert await store.letters(carried=False) == []


@pytest.mark.parametrize("number", [1, 2], ids=["a job", "two jobs"])
async def test_of_two_bodies_at_one_moment_one_stores_its_jobs(store: Store, number: int) -> None:
    """Each from a process of its own; the other differs, and nothing comes of it."""
    other = store.spawn()
    await other.open()
    try:
        for turn in range(20):
            both = [
                Arrival(
                    kept(f"k{turn}", body=body),
                    tuple(job(key=f"{turn} {body} {n}") for n in range(number)),
                )
                for body in (b"one", b"two")
            ]
            answers = await asyncio.gather(store.receive(both[:1]), other.receive(both[1:]))
            verdicts = sorted(str(one.verdict) for [one] in answers)
            assert verdicts == sorted(map(str, (Verdict.NEW, Verdict.DONE)))
            assert sum(one.differs for [one] in answers) == 1
            assert await count(store) == (turn + 1) * number
    finally:
        await other.close()


async def test_a_body_goes_on_when_the_other_died_on_the_way(store: Store) -> None:
    """And in one call, the first body of a key is the one that is kept."""
    if isinstance(store, RedisStore):  # it takes several steps
        dead = Arrival(kept("k", body=b"dead"))
        await store._receive("ask", {0: dead}, ["ab12"], [])
    answers = await store.receive(
        [Arrival(kept("k", body=body), (job(key=body.decode()),)) for body in (b"one", b"two")]
    )
    assert [one.verdict for one in answers] == [Verdict.NEW, Verdict.DONE]
    assert [one.differs for one in answers] == [False, True]
    assert await count(store) == 1
