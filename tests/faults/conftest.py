"""Every kind of store, with the long forms apart, and a ledger beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.fresh import STORES
from tests.faults.ledger import Ledger
from tests.matrix import Recorder

# A cluster is the same store on more servers: its fault tests are long forms.
STORES_HERE = [
    pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.soak])
    if one.id == "cluster"
    else one
    for one in STORES
]


def short_on(*names: str) -> list[Any]:
    """Every store; on all but these the test is a long form."""
    return [
        one
        if one.id in names
        else pytest.param(*one.values, id=one.id, marks=[*one.marks, pytest.mark.soak])
        for one in STORES
    ]


@pytest.fixture(params=STORES_HERE)
def store_name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ledger(tmp_path: Path, matrix: Recorder) -> Iterator[Ledger]:
    kept = Ledger(tmp_path / "ledger")
    yield kept
    kept.close()
    if kept.verdict is not None:
        lost, doubled = kept.verdict
        matrix.record(lost=lost, doubled=doubled)
