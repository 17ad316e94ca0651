"""People and deaths in the middle of things: F36, F37, F38, F69."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from relevo import Flow, Relevo
from relevo.breaker import Circuit
from relevo.errors import CircuitOpen
from relevo.job import ENDED, Ending, Failure, Lease, State
from relevo.store import By, Edit, Filter, QueueMode, Store, Want
from relevo.testing import ManualClock, until
from tests.faults import apps
from tests.faults.apps import Call, Leaf, Piece, Print, Whole
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.verdict import SEEN, drained, judged, stuck
from tests.matrix import Recorder

ANA = By("ana", "to see what happens")
WANT = Want(queue=Print.__relevo__.queue)


# F38: what a person does while the job ends by itself


async def one_running(relevo: Relevo, store: Store) -> Lease:
    receipt = await relevo.enqueue(Print(1))
    [lease] = (await store.claim([WANT], 1, "w", 60_000)).leases
    assert lease.id == receipt.id
    return lease


def endings(lease: Lease) -> list[Ending]:
    failure = Failure(type="Test", message="it did not work", fingerprint="f")
    return [
        Ending(lease=lease, state=State.DONE),
        Ending(lease=lease, state=State.SCHEDULED, delay=60_000, failure=failure),
        Ending(lease=lease, state=State.DEAD, failure=failure),
        Ending(lease=lease, state=State.HELD, failure=failure),
    ]


async def race(store: Store, other: Store, relevo: Relevo, chance: random.Random) -> None:
    """A run ends and a person acts at the same moment; what is left is what one of them said."""
    lease = await one_running(relevo, store)
    ending = chance.choice(endings(lease))
    act = chance.choice(["cancel", "discard", "edit", "retry", "pause"])

    async def by_hand() -> bool:
        await asyncio.sleep(chance.uniform(0, 0.002))
        match act:
            case "cancel":
                [did] = await other.cancel([lease.id], ANA)
            case "discard":
                [did] = await other.discard([lease.id], ANA)
            case "edit":
                [did] = await other.edit([Edit(id=lease.id, payload=b'{"number":2}')], ANA)
            case "retry":
                [did] = await other.retry([lease.id], ANA)
            case _:
                [did] = await other.set_mode([lease.queue], QueueMode.PAUSED, ANA)
                await other.set_mode([lease.queue], QueueMode.OPEN, ANA)
        return did

    async def by_itself() -> bool:
        await asyncio.sleep(chance.uniform(0, 0.002))
        [settled] = await store.settle([ending])
        return settled

    did, settled = await asyncio.gather(by_hand(), by_itself())
    [job] = await store.find([lease.id])
    assert job is not None
    story = f"{act} {did}, {ending.state} {settled}, now {job.state}"
    outcomes = [run.outcome for run in job.history]
    match act:
        case "cancel":
            # Running jobs and those that wait can be cancelled, ended ones cannot.
            if did:
                assert job.state is State.CANCELLED, story
                assert not settled or ending.state not in ENDED, story
            else:
                assert settled, story
                assert job.state is ending.state, story
            # The history tells which won: a run that was cut off, or one that had its say first.
            ended = {"scheduled": "retry"}.get(ending.state, ending.state)
            assert outcomes == ([ended] if settled else ["cancelled"]), (story, outcomes)
        case "discard":
            assert settled, story
            wanted = State.CANCELLED if did else ending.state
            assert job.state is wanted, story
            assert not did or ending.state in (State.DEAD, State.HELD), story
        case "edit":
            assert settled, story
            assert job.state is ending.state, story
            assert (job.payload == b'{"number":2}') == did, story
        case "retry":
            assert settled, story
            assert job.state is (State.READY if did else ending.state), story
            assert not did or ending.state is not State.DONE, story
        case _:
            assert did and settled, story
            assert job.state is ending.state, story
    # Nobody else may end it with the old lease, whatever happened.
    assert await store.settle([Ending(lease=lease, state=State.DONE)]) == [False], story
    await store.cancel([lease.id], ANA)
    await store.discard([lease.id], ANA)


async def races(store: Store, ledger: Ledger, seeds: int) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    other = store.spawn()
    await other.open()
    try:
        for seed in range(seeds):
            try:
                await race(store, other, relevo, random.Random(seed))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        await other.close()
        await relevo.rest()


async def test_f38_a_person_and_a_run_that_ends_agree_on_who_won(
    store: Store, ledger: Ledger
) -> None:
    await races(store, ledger, 60)


@pytest.mark.soak
async def test_f38_five_hundred_seeds(store: Store, ledger: Ledger) -> None:
    await races(store, ledger, 500)


async def retried_twice(store: Store, ledger: Ledger, folder: Path, count: int) -> None:
    relevo = Relevo(store, apps=[apps.app(ledger)])
    failure = Failure(type="Test", message="away", fingerprint="away")
    for start in range(0, count, 1_000):
        size = min(1_000, count - start)
        await relevo.enqueue_many(Print(n, 0) for n in range(start, start + size))
        leases = (await store.claim([WANT], size, "w", 60_000)).leases
        dead = [Ending(lease=one, state=State.DEAD, failure=failure) for one in leases]
        assert all(await store.settle(dead))
    with Fleet(store.dsn, ledger, folder, concurrency=50) as fleet:
        fleet.hire(2)
        fleet.wait_for(2)
        where = Filter(states=frozenset({State.DEAD}))
        pressed = [_retry_all(store, where), _retry_all(store, where)]
        first, second = await asyncio.gather(*pressed)
        assert first + second == count
        await drained(store, 60, fleet.check)
    await relevo.rest()

    await judged(store, ledger, range(count), lease=2)
    assert set(ledger.counts("start").values()) == {1}


async def _retry_all(store: Store, where: Filter) -> int:
    retried, cursor = 0, None
    while True:
        page = await store.page(where, cursor=cursor, limit=200)
        retried += sum(await store.retry([job.id for job in page.jobs], ANA)) if page.jobs else 0
        cursor = page.cursor
        if cursor is None:
            return retried


async def test_f38_retry_all_pressed_twice_runs_each_once_more(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await retried_twice(store, ledger, tmp_path, 600)


@pytest.mark.soak
async def test_f38_retry_all_of_ten_thousand(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    await retried_twice(store, ledger, tmp_path, 10_000)


# F36: the process that probes a provider dies


async def probe_killed(
    store: Store, ledger: Ledger, folder: Path, matrix: Recorder, processes: int
) -> None:
    """Processes share a breaker; the one with the half-open probe is killed."""
    relevo = Relevo(store, apps=[apps.app(ledger)])

    async def circuit() -> Circuit:
        return next((found for _, found, _ in await relevo.breakers.all()), Circuit())

    async def is_(state: str) -> bool:
        return (await circuit()).state == state

    async def is_probed() -> bool:
        # Who had not heard that it opened may call too: only the breaker knows who probes.
        probe = (await circuit()).probe
        return any(fact.word == probe for fact in ledger.facts("probe"))

    ledger.write("provider", 0, "down")
    with Fleet(store.dsn, ledger, folder, lease="1s", concurrency=5) as fleet:
        fleet.hire(processes)
        fleet.wait_for(processes)
        calls = await relevo.enqueue_many(Call(n) for n in range(10))
        await until(lambda: is_("open"), timeout="20s", what="it opens")
        ledger.write("provider", 0, "hangs")
        await until(is_probed, timeout="20s", what="a probe")
        probe = (await circuit()).probe
        [pid] = {fact.pid for fact in ledger.facts("probe") if fact.word == probe}
        died = fleet.kill(next(one for one in fleet.members if one.pid == pid))
        ledger.write("provider", 0, "up")
        await until(lambda: is_("closed"), timeout="20s", what="another probe")
        recovery = time.monotonic() - died
        matrix.record(recovery=recovery)
        assert recovery < apps.COOLDOWN + 5
        await store.retry([call.id for call in calls], ANA)  # released at leisure otherwise
        await drained(store, 40, fleet.check)
        assert await store.count(Filter(states=SEEN)) == 0
    await relevo.rest()

    await judged(store, ledger, range(10), lease=1)


async def test_f36_a_probe_that_dies_with_its_process_is_followed_by_another(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    await probe_killed(store, ledger, tmp_path, matrix, 2)


@pytest.mark.soak
async def test_f36_four_processes_share_a_breaker(
    store: Store, ledger: Ledger, tmp_path: Path, matrix: Recorder
) -> None:
    await probe_killed(store, ledger, tmp_path, matrix, 4)


async def test_f36_a_probe_is_known_to_a_process_that_had_not_heard_of_it(
    store: Store, clock: ManualClock
) -> None:
    """The job that probes is taken over by a process whose knowledge is a moment old."""
    first, second = Relevo(store, clock=clock), Relevo(store, clock=clock)
    await first.breakers.turn("provider", "open", ANA)
    with pytest.raises(CircuitOpen):
        await second.breakers.admit("provider", "another")
    await first.breakers.turn("provider", "probe", ANA)

    await first.breakers.admit("provider", "probe")
    await second.breakers.admit("provider", "probe")

    with pytest.raises(CircuitOpen):
        await second.breakers.admit("provider", "another")
    for relevo in (first, second):
        await relevo.rest()


# F37: flows under kills


async def flow_under_kills(
    store: Store, ledger: Ledger, folder: Path, children: int, kills: int
) -> None:
    chance = random.Random(children)
    relevo = Relevo(store, apps=[apps.app(ledger)])
    flow, strict, lenient = Flow("good"), Flow("strict"), Flow("lenient")
    flow.add(Whole(10_000), after=[flow.add(Piece(n, 20), name=f"p{n}") for n in range(children)])
    bad = [strict.add(Piece(20_000 + n, 20, n == 3), name=f"p{n}") for n in range(6)]
    strict.add(Whole(20_100), name="whole", after=bad)
    fine = [
        lenient.add(Piece(30_000 + n, 20, n == 3), name=f"p{n}", on_failure="continue")
        for n in range(6)
    ]
    lenient.add(Whole(30_100), name="whole", after=fine)
    with Fleet(store.dsn, ledger, folder, lease="1s", concurrency=20) as fleet:
        fleet.hire(2)
        fleet.wait_for(2)
        await relevo.start(flow)
        failed = await relevo.start(strict)
        await relevo.start(lenient)
        for n in range(kills):
            least = children * (n + 1) // (kills + 2)
            await until(lambda least=least: len(ledger.counts("effect")) >= least, timeout="30s")
            fleet.kill(chance.choice(fleet.members))
            fleet.hire()
        await drained(store, 60, fleet.check)
    [parent] = await store.find([failed.jobs["whole"]])
    await relevo.rest()

    effects = ledger.counts("effect")
    wholes = {number: effects[number] for number in (10_000, 20_100, 30_100)}
    assert wholes == {10_000: 1, 20_100: 0, 30_100: 1}
    assert {effects[n] for n in range(children)} == {1}
    assert parent is not None and parent.failure is not None
    assert (parent.state, parent.failure.type) == (State.DEAD, "ChildFailed")
    assert await stuck(store, 1) == []


async def test_f37_a_parent_is_released_once_whatever_dies(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await flow_under_kills(store, ledger, tmp_path, children=150, kills=2)


@pytest.mark.soak
async def test_f37_a_thousand_children(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    await flow_under_kills(store, ledger, tmp_path, children=1_000, kills=10)


# F69: groups under kills


async def group_under_kills(
    store: Store, ledger: Ledger, folder: Path, members: int, kills: int
) -> None:
    """A tree of members, each adding two; the group is closed before the first has run."""
    chance = random.Random(members)
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, folder, lease="1s", concurrency=20) as fleet:
        fleet.hire(2)
        fleet.wait_for(2)
        group = await relevo.group("grove", then=Whole(0))
        await group.add(Leaf(1, members // 2 + 1))
        await group.close()
        for n in range(kills):
            least = members * (n + 1) // (kills + 2)
            await until(lambda least=least: len(ledger.counts("effect")) >= least, timeout="30s")
            fleet.kill(chance.choice(fleet.members))
            fleet.hire()
        await drained(store, 60, fleet.check)
    told = await group.progress()
    await relevo.rest()

    effects = ledger.counts("effect")
    assert effects[0] == 1
    assert {effects[n] for n in range(1, members + 2)} == {1}
    assert (told.members, told.done, told.live) == (members + 1, members + 1, 0)
    assert await stuck(store, 1) == []


async def test_f69_a_group_goes_on_once_whatever_dies(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    await group_under_kills(store, ledger, tmp_path, members=120, kills=2)


@pytest.mark.soak
async def test_f69_a_thousand_members(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    await group_under_kills(store, ledger, tmp_path, members=1_000, kills=10)
