"""Whether a long queue, or a long history, slows the claims and the drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Aim, Pipe, Row, apart, in_turns, percentile
from bench.work import PATIENCE, Kept, app, drain, fill, new_jobs
from relevo import Relevo
from relevo.job import Ending, State
from relevo.store import Want

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "backlog"
FEW, SOME = 1_000, 10_000
CLAIM, TIMES = 100, 60
SLICES = 9
WARM = 0.1  # the share of a drain that is not counted, so that starting up weighs nothing
LEASE = 15_000
FLAT = Aim("ratio", "<=", 2.0)
LIMITS = {"redis": 10.0}


async def _claims(pipe: Pipe, url: str) -> list[float]:
    """Milliseconds of each claim; what is taken is settled and put back, so the backlog stays.

    The first is not counted: it connects, and has the statement planned.
    """
    async with Relevo(url, apps=[app()]) as relevo:
        store, wants = relevo.store, [Want(queue=Kept.__relevo__.queue)]
        times: list[float] = []
        for _ in range(1 + TIMES):
            began = time.perf_counter()
            claim = await store.claim(wants, CLAIM, "bench", LEASE)
            times.append((time.perf_counter() - began) * 1e3)
            assert len(claim.leases) == CLAIM
            await store.settle([Ending(lease=lease, state=State.DONE) for lease in claim.leases])
            await store.insert(new_jobs(Kept, CLAIM))
        return times[1:]


def measure(place: Place, many: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table: a short queue and a long one side by side, turn and turn about."""
    with place.fresh() as short, place.fresh() as long:
        say(f"filling with {many:,}")
        apart(fill, short, Kept, FEW)
        apart(fill, long, Kept, many, timeout=PATIENCE)
        say(f"claims at {many:,} and at {FEW:,}")
        few, lots = _side_by_side(rounds, short, long)
        yield from _claim_rows(place, f"{many:,} ready", lots, few)
        apart(fill, short, Kept, SOME - FEW)

        slices: list[list[float]] = []
        whole: list[float] = []
        some: list[float] = []
        left = many
        for number in range(SLICES):
            say(f"drain of {many:,}, slice {number + 1} of {SLICES}")
            end = left - left // (SLICES - number)
            count = min(SOME, (left - end) // (rounds + 1))
            slices.append([])
            for _ in range(rounds):  # as many of the one as of the other: only what waits differs
                part = drain(long, count)  # a worker takes some more with it
                left -= part.settled
                slices[-1].append(part.rate(WARM))
                part = drain(short, count)
                some.append(part.rate(WARM))
                apart(fill, short, Kept, part.settled)
            part = drain(long, max(1, left - end))
            left -= part.settled
            whole.append(part.rate(WARM))
        third = SLICES // 3
        for name, parts in (
            ("first", slices[:third]),
            ("middle", slices[third:-third]),
            ("last", slices[-third:]),
        ):
            rates = [rate for part in parts for rate in part]
            yield _drain_row(f"drain of {SOME:,} out of {many:,} ready, {name} third", rates, some)
        yield Row(
            section=SECTION,
            name=f"drain of {many:,} ready, all of the way",
            unit="jobs/s",
            ours=whole,
        )

        say(f"filling with {many:,} scheduled")
        apart(fill, long, Kept, many, 3_600_000, timeout=PATIENCE)
        beside = f"{many:,} done and {many:,} scheduled beside"
        apart(fill, long, Kept, SOME)
        ours: list[float] = []
        some = []
        for _ in range(rounds):
            say("drain beside a long history")
            for url, rates in ((long, ours), (short, some)):
                rates.append(drain(url, SOME).rate(WARM))
                apart(fill, url, Kept, SOME)
        yield _drain_row(f"drain of {SOME:,} with {beside}", ours, some)
        for url in (long, short):
            drain(url, SOME)
            apart(fill, url, Kept, FEW)
        say("claims beside a long history")
        few, lots = _side_by_side(rounds, short, long)
        yield from _claim_rows(place, beside, lots, few)


def _side_by_side(rounds: int, short: str, long: str) -> list[list[float]]:
    taken = in_turns(rounds, lambda: apart(_claims, short), lambda: apart(_claims, long))
    return [[time for times in part for time in times] for part in taken]


def _drain_row(name: str, ours: list[float], some: list[float]) -> Row:
    return Row(
        section=SECTION,
        name=name,
        unit="jobs/s",
        ours=ours,
        other=some,
        against=f"drain of {SOME:,}",
        aim=Aim("ratio", ">=", 0.8),
    )


def _claim_rows(place: Place, where: str, ours: list[float], few: list[float]) -> Iterator[Row]:
    yield Row(
        section=SECTION,
        name=f"claim of {CLAIM} with {where}, p50",
        unit="ms",
        ours=ours,
        other=few,
        against=f"claim at {FEW:,}",
        aim=FLAT,
    )
    yield Row(
        section=SECTION,
        name=f"claim of {CLAIM} with {where}, p99",
        unit="ms",
        ours=[percentile(ours, 0.99)],
        other=[percentile(few, 0.99)],
        against=f"claim at {FEW:,}",
        aim=Aim("figure", "<=", LIMITS.get(place.name, 20.0)),
    )
