"""Workers whose wall clocks are wrong: F28."""

from __future__ import annotations

import time
from datetime import datetime
from pathlib import Path

from relevo import Relevo
from relevo.store import Store
from tests.faults import apps
from tests.faults.apps import Nap, Print
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger
from tests.faults.verdict import drained, judged

HOUR = 3_600.0
WRONG = (-2 * HOUR, -5.0, 5.0, 2 * HOUR)
SLACK = 3.0
"""Seconds that a busy machine may add, and still less than the smallest error of a clock."""


async def test_f28_wrong_clocks_neither_steal_leases_nor_move_due_times(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """Four workers, hours apart: time is the store's."""
    relevo = Relevo(store, apps=[apps.app(ledger)])
    with Fleet(store.dsn, ledger, tmp_path, lease="2s", concurrency=10) as fleet:
        for seconds in WRONG:
            fleet.hire(clock=seconds)
        fleet.wait_for(4)
        # Longer than a lease, so that whoever thinks that it has lapsed takes them.
        naps = [await relevo.enqueue(Nap(1_000 + n, 2_500)) for n in range(12)]
        due: dict[int, float] = {}
        for number in range(40):
            delay = 0.5 + number * 0.05
            due[number] = time.monotonic() + delay
            await relevo.enqueue(Print(number), delay=f"{round(delay * 1_000)}ms")
        await drained(store, 30, fleet.check)
        for member, seconds in zip(fleet.members, WRONG, strict=True):
            said = min(line["at"] for line in member.lines())
            assert abs(_seconds_off(said) - seconds) < 60, "the clock was not shifted at all"
    await relevo.rest()

    await judged(store, ledger, range(40), lease=2)
    started = {fact.number: fact.at for fact in ledger.facts("start")}
    late = [started[number] - due[number] for number in due]
    assert min(late) > -0.05, "ran early"
    assert max(late) < 1 + SLACK, f"ran {max(late):.1f} s late"
    assert {number: n for number, n in ledger.counts("start").items() if n > 1} == {}
    for job in await store.find([nap.id for nap in naps]):
        assert job is not None
        assert (job.attempt, [run.outcome for run in job.history]) == (1, ["done"])


def _seconds_off(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() - time.time()
