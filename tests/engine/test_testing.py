"""relevo.testing keeps its own promises."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from relevo import App, Command, Context, Relevo, constant
from relevo.errors import StoreUnavailable
from relevo.ids import new_id
from relevo.store import Store
from relevo.stores import open_store
from relevo.testing import (
    FaultyProvider,
    FaultyStore,
    ManualClock,
    ProviderFault,
    drain,
    sweep,
)


class Ship(Command, queue="test:faults:ship", attempts=9, backoff=constant("1s")):
    order: str


async def test_a_drain_fails_at_once_when_nothing_is_left_to_do(store: Store) -> None:
    async def ship(order: Ship) -> None: ...

    async with Relevo(store, apps=[App("test", workers=[ship])]) as relevo:
        await relevo.enqueue(Ship("A-1"))
        began = time.monotonic()

        with pytest.raises(AssertionError, match=r"nothing is left to do.*never"):

            def never() -> bool:
                return False

            await drain(relevo, until=never)

    assert time.monotonic() - began < 10


async def test_a_faulty_store_opens_and_closes(store: Store) -> None:
    faulty = FaultyStore(store.spawn(), at=1)
    await faulty.open()
    with pytest.raises(StoreUnavailable):
        await faulty.recall("kind", ["name"])
    assert faulty.is_spent
    assert await faulty.recall("kind", ["name"]) == [None]
    await faulty.close()


async def test_a_sweep_fails_before_and_after_every_call(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []

    async def story(wrap: Callable[[Store], FaultyStore]) -> None:
        clock = ManualClock()
        labels: Counter[str] = Counter()
        url = f"sqlite:///{tmp_path / new_id()}.db"
        faulty = wrap(open_store(url, clock=clock))
        seen.append((faulty._when, faulty._at))  # pyright: ignore[reportPrivateUsage]

        async def ship(order: Ship, ctx: Context) -> None:
            async def label(key: str) -> str:
                labels[key] += 1
                return key

            await ctx.once("label", label, repeatable=True)

        app = App("test", workers=[ship])
        async with Relevo(faulty.as_store(), apps=[app], clock=clock) as relevo:
            id = new_id()
            for _ in range(2):  # who has no answer asks again
                try:
                    await relevo.enqueue_as(id, Ship("A-1"))
                except StoreUnavailable:
                    continue
                break
            await drain(relevo, skip_waits=True, lease="500ms")
        assert len(labels) == 1

    faults = await sweep(story)

    assert faults >= 8
    assert seen[:4] == [("before", 1), ("after", 1), ("before", 2), ("after", 2)]


@pytest.mark.parametrize(
    ("faults", "status", "asked"),
    [
        ([None], 200, 1),
        (["lost"], None, 1),
        (["error"], 503, 0),
        (["error after"], 503, 1),
        (["slow"], None, 1),
        (["twice"], 200, 2),
    ],
)
async def test_a_provider_fails_as_it_is_told(
    faults: list[ProviderFault], status: int | None, asked: int
) -> None:
    async def take(request: Request) -> Response:
        return Response(await request.body() + request.url.query.encode())

    site = Starlette(routes=[Route("/book", take, methods=["POST"])])
    async with FaultyProvider(site, faults, slow="20s") as provider, httpx.AsyncClient() as client:
        try:
            answer = await client.post(f"{provider.url}/book?n=1", content=b"A", timeout=1)
        except httpx.HTTPError:
            assert status is None
        else:
            assert answer.status_code == status
            assert answer.content == (b"An=1" if status == 200 else b"")
        assert len(provider.calls) == asked
        assert (await client.post(f"{provider.url}/book", content=b"B")).content == b"B"
