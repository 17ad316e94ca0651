"""A fresh store of every kind that processes reach by its address, and a ledger beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from relevo.store import Store
from relevo.testing import ManualClock
from tests.conformance.fresh import STORES, fresh
from tests.faults.ledger import Ledger
from tests.matrix import Recorder


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


# A cluster is the same store on more servers: its fault tests are long forms.
STORES_HERE = [
    pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.soak])
    if one.id == "cluster"
    else one
    for one in STORES
]


@pytest.fixture(params=STORES_HERE)
async def store(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path
) -> AsyncIterator[Store]:
    async with fresh(request.param, clock, tmp_path) as opened:
        yield opened


@pytest.fixture
def ledger(tmp_path: Path, matrix: Recorder) -> Iterator[Ledger]:
    kept = Ledger(tmp_path / "ledger")
    yield kept
    kept.close()
    if kept.verdict is not None:
        lost, doubled = kept.verdict
        matrix.record(lost=lost, doubled=doubled)
