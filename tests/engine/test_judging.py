"""What a provider's answer means for the job that asked, and for the jobs beside it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relevo import App, Command, DefinitionError, ErrorRow, Relevo

Start = Callable[..., Relevo]


class Ship(Command, queue="shop:parcels:ship"):
    number: int


async def ship(order: Ship) -> None: ...


async def test_an_app_s_rows_are_those_of_its_queues(start: Start) -> None:
    busy = ErrorRow("carrier.Busy", "wait", retry_after="30s")
    relevo = start(App("shop", workers=[ship], errors=[busy]), App("other", errors={}))

    assert relevo.error_rows("shop:parcels:ship") == (busy,)
    assert relevo.error_rows("shop:a-queue-that-is-not-ours") == (busy,)
    assert relevo.error_rows("other:any:queue") == ()
    assert relevo.error_rows("nobody:any:queue") == ()


def test_a_row_that_is_none_is_refused_where_it_is_written() -> None:
    with pytest.raises(DefinitionError, match="no row of the table of errors"):
        App("shop", errors=[ValueError])  # pyright: ignore[reportArgumentType] - on purpose
