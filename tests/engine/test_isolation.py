"""A suspect that must run alone, beside runs that do not end soon."""

from __future__ import annotations

import asyncio

import pytest

from relevo import App, Command, Relevo
from relevo.job import Ending, State, Suspicion
from relevo.store import Store, Want
from relevo.testing import until, working


class Order(Command, queue="test:isolation:order"):
    name: str


async def test_a_suspect_neither_stops_its_process_nor_waits_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a long run goes on others begin; once it has ended the suspect runs."""
    monkeypatch.setattr("relevo.isolation.PATIENCE", 0.2)
    began: list[str] = []
    may_end = asyncio.Event()

    async def carry_out(order: Order) -> None:
        began.append(order.name)
        if order.name == "long":
            await may_end.wait()

    relevo = Relevo(store, apps=[App("test", workers=[carry_out])])
    suspect = await relevo.enqueue(Order("suspect"))
    [lease] = (await store.claim([Want(queue=Order.__relevo__.queue)], 1, "w", 60_000)).leases
    how = Ending(
        lease=lease, state=State.SCHEDULED, delay=500, spend=False, suspicion=Suspicion.ALONE
    )
    assert await store.settle([how]) == [True]
    await relevo.enqueue(Order("long"))
    async with working(relevo) as worker:
        await until(lambda: "long" in began)
        await until(lambda: worker.isolation.flight is not None, what="it has the suspect in hand")
        await relevo.enqueue(Order("other"))
        await until(lambda: "other" in began)
        assert "suspect" not in began

        may_end.set()

        async def is_done() -> bool:
            [job] = await store.find([suspect.id])
            return job is not None and job.state is State.DONE

        await until(is_done)
    assert began == ["long", "other", "suspect"]
