"""The providers' own libraries and our sources judge the same calls, and agree."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from tests.unit import node_oracles
from tests.unit.node_oracles import NodeOracle
from tests.unit.oracles import ORACLES, Call, Oracle, current, made


def compared(oracle: Oracle, judged: Iterator[tuple[Call, bool]]) -> Counter[str]:
    """How many calls were taken, refused, and refused by us alone, by the reason."""
    seen: Counter[str] = Counter()
    for call, theirs in judged:
        refusal = oracle.ours(call)
        if theirs and refusal is not None:
            reason = oracle.reason(call, refusal)
            assert reason in oracle.stricter, (reason, refusal.why, told(call))
            seen[reason] += 1
        else:
            assert theirs is (refusal is None), (refusal and refusal.why, told(call))
            seen["taken" if theirs else "refused"] += 1
    assert seen["taken"] > seen.total() / 10  # else nothing was compared
    assert seen["refused"] > seen.total() / 10
    return seen


def told(call: Call) -> str:
    return f"at={call.at!r} {call.target} {call.headers} twice={call.twice} {call.body!r}"


@pytest.mark.parametrize("make", ORACLES, ids=lambda make: make.name)
@pytest.mark.parametrize(
    ("seed", "count"), [(1, 2_000), pytest.param(2, 20_000, marks=pytest.mark.soak)]
)
def test_no_forged_call_is_taken_and_no_good_one_refused(
    make: Callable[[], Oracle], seed: int, count: int
) -> None:
    oracle, chance = make(), random.Random(seed)
    made_calls = (made(oracle, chance, current()) for _ in range(count))
    seen = compared(oracle, ((call, oracle.theirs(call)) for call in made_calls))
    if count > 2_000:  # what is told of ours is so, but some of it is rare
        assert oracle.stricter <= seen.keys(), seen


@pytest.mark.parametrize("make", node_oracles.ORACLES, ids=lambda make: make.name)
def test_what_a_library_of_node_said_is_said_here(make: Callable[[], NodeOracle]) -> None:
    oracle = make()
    judged = zip(node_oracles.calls(oracle), node_oracles.verdicts(oracle), strict=True)
    assert compared(oracle, judged).total() == node_oracles.COUNT
