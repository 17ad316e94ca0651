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
THIRD = 3  # pairs of drains in a third of the way, each round
WARM = 0.1  # the share of a drain that is not counted, so that starting up weighs nothing
LEASE = 15_000
FLAT, NEAR = Aim("ratio", "<=", 2.0), Aim("ratio", ">=", 0.8)
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

        # A pair at a time, evenly over all of the way: a table that doubles is slow for a stretch.
        pairs: list[float] = []
        whole: list[float] = []
        some: list[float] = []
        slices = 3 * THIRD * rounds
        left = many
        for number in range(slices):
            say(f"drain of {many:,}, slice {number + 1} of {slices}")
            end = left - left // (slices - number)
            part = drain(long, min(SOME, (left - end) // 2))  # a worker takes some more with it
            left -= part.settled
            pairs.append(part.rate(WARM))
            part = drain(short, min(SOME, part.settled))
            some.append(part.rate(WARM))
            apart(fill, short, Kept, part.settled)
            part = drain(long, max(1, left - end))
            left -= part.settled
            whole.append(part.rate(WARM))
        third = slices // 3
        for name, rates in (
            ("first", pairs[:third]),
            ("middle", pairs[third:-third]),
            ("last", pairs[-third:]),
        ):
            yield _drain_row(f"drain of {SOME:,} out of {many:,} ready, {name} third", rates, some)
        yield _drain_row(f"drain of {many:,} ready, all of the way", whole, some, aim=NEAR)

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
        yield _drain_row(f"drain of {SOME:,} with {beside}", ours, some, aim=NEAR)
        for url in (long, short):
            drain(url, SOME)
            apart(fill, url, Kept, FEW)
        say("claims beside a long history")
        few, lots = _side_by_side(rounds, short, long)
        yield from _claim_rows(place, beside, lots, few)


def _side_by_side(rounds: int, short: str, long: str) -> list[list[float]]:
    taken = in_turns(rounds, lambda: apart(_claims, short), lambda: apart(_claims, long))
    return [[time for times in part for time in times] for part in taken]


def _drain_row(name: str, ours: list[float], some: list[float], *, aim: Aim | None = None) -> Row:
    return Row(
        section=SECTION,
        name=name,
        unit="jobs/s",
        ours=ours,
        other=some,
        against=f"drain of {SOME:,}",
        aim=aim,
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
