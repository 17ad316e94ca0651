"""A provider that never failed while our own worker died: F58."""

from __future__ import annotations

from pathlib import Path

from relevo import Relevo, State
from relevo.store import Filter, Store
from relevo.testing import until
from tests.faults import apps
from tests.faults.fleet import Fleet
from tests.faults.ledger import Ledger


async def test_f58_a_killed_worker_does_not_open_the_breaker_of_who_answered(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    """Eight reservations were under way; they are held, and new ones are made at once."""
    relevo = Relevo(store, apps=[apps.app(ledger)])

    async def count(state: State) -> int:
        return await store.count(Filter(queue="fault:provider:reserve", states=frozenset({state})))

    async def are_held() -> bool:
        return await count(State.HELD) == 8

    async def are_done() -> bool:
        return await count(State.DONE) == 5

    ledger.write("provider", 0, "hangs")
    with Fleet(store.dsn, ledger, tmp_path, lease="1s") as fleet:
        [first] = fleet.hire()
        fleet.wait_for(1)
        await relevo.enqueue_many(apps.Reserve(n) for n in range(8))
        await until(lambda: len(ledger.facts("effect")) == 8, timeout="20s", what="all call")
        fleet.kill(first)
        ledger.write("provider", 0, "up")
        fleet.hire()
        await until(are_held, timeout="20s", what="all are held")
        await relevo.enqueue_many(apps.Reserve(n) for n in range(100, 105))
        await until(are_done, timeout="5s", what="the new ones are made")

    assert [circuit.state for _, circuit, _ in await relevo.breakers.all()] in ([], ["closed"])
    effects = ledger.counts("effect")
    assert set(effects.values()) == {1}
    ledger.verdict = (13 - len(effects), 0)
    await relevo.rest()
