"""Whether a long queue, or a long history, slows the claims and the drain."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bench.measure import Aim, Pipe, Row, apart, percentile
from bench.work import PATIENCE, Kept, app, drain, fill, new_jobs, rate
from relevo import Relevo
from relevo.job import Ending, State
from relevo.store import Want

if TYPE_CHECKING:
    from bench.places import Place

SECTION = "backlog"
FEW, SOME = 1_000, 10_000
CLAIM, TIMES = 100, 60
LEASE = 15_000
FLAT = Aim("ratio", "<=", 2.0)
LIMITS = {"redis": 10.0}


async def _claims(pipe: Pipe, url: str) -> list[float]:
    """Milliseconds of each claim; what is taken is settled and put back, so the backlog stays."""
    async with Relevo(url, apps=[app()]) as relevo:
        store, wants = relevo.store, [Want(queue=Kept.__relevo__.queue)]
        times: list[float] = []
        for _ in range(TIMES):
            began = time.perf_counter()
            claim = await store.claim(wants, CLAIM, "bench", LEASE)
            times.append((time.perf_counter() - began) * 1e3)
            assert len(claim.leases) == CLAIM
            await store.settle([Ending(lease=lease, state=State.DONE) for lease in claim.leases])
            await store.insert(new_jobs(Kept, CLAIM))
        return times


def measure(place: Place, many: int, rounds: int, say: Callable[[str], None]) -> Iterator[Row]:
    """Rows of the table."""
    few: list[float] = []
    some: list[float] = []
    for _ in range(rounds):
        with place.fresh() as url:
            say(f"claims at {FEW:,}")
            apart(fill, url, Kept, FEW)
            few += apart(_claims, url)
            apart(fill, url, Kept, SOME - FEW)
            say(f"drain of {SOME:,}")
            some.append(rate(drain(url, SOME)[0]))

    with place.fresh() as url:
        say(f"filling with {many:,}")
        apart(fill, url, Kept, many, timeout=PATIENCE)
        say(f"claims at {many:,}")
        yield from _claim_rows(place, f"{many:,} ready", apart(_claims, url), few)
        say(f"drain of {many:,}")
        line, _ = drain(url, many)
        tenth = many // 10
        for name, first in (("first", 0), ("middle", many // 2), ("last", many - tenth)):
            yield Row(
                section=SECTION,
                name=f"drain at {many:,} ready, {name} tenth",
                unit="jobs/s",
                ours=[rate(line, first, first + tenth)],
                other=some,
                against=f"drain of {SOME:,}",
                aim=Aim("ratio", ">=", 0.8),
            )
        say(f"filling with {many:,} scheduled")
        apart(fill, url, Kept, many, 3_600_000, timeout=PATIENCE)
        apart(fill, url, Kept, FEW)
        say("claims beside a long history")
        beside = f"{many:,} done and {many:,} scheduled beside"
        yield from _claim_rows(place, beside, apart(_claims, url), few)
        apart(fill, url, Kept, SOME - FEW)
        say("drain beside a long history")
        yield Row(
            section=SECTION,
            name=f"drain of {SOME:,} with {beside}",
            unit="jobs/s",
            ours=[rate(drain(url, SOME)[0])],
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
