"""Values that are no JSON of their own: keys of numbers and UUIDs, amounts that are Decimals."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from relevo import App, Command, Context, DefinitionError, Done, Flow, Relevo, State, Verdict
from relevo.store import Filter
from relevo.testing import drain

Start = Callable[..., Relevo]
ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


class Ship(Command, queue="test:orders:ship", key="ship:{order}:{line}", unique="unfinished"):
    order: UUID
    line: int


class Pay(Command, queue="test:orders:pay"):
    amount: Decimal
    parts: list[Decimal] | None = None


async def carried(order: Ship) -> None: ...


async def test_a_key_of_a_number_or_a_uuid_is_its_text(start: Start) -> None:
    relevo = start(App("test", workers=[carried]))

    first = await relevo.enqueue(Ship(ID, 7))
    again = await relevo.enqueue(Ship(ID, 7))
    numbered = await relevo.enqueue(Ship(ID, 8), key=1234)
    named = await relevo.enqueue(Ship(ID, 9), key=ID)
    joined = await relevo.enqueue(Ship(ID, 10), key="1234")

    found = await relevo.store.find([first.id, numbered.id, named.id])
    assert [job and job.key for job in found] == [f"ship:{ID}:7", "1234", str(ID)]
    assert again.verdict is joined.verdict is Verdict.IN_PROGRESS
    assert joined.id == numbered.id


@pytest.mark.parametrize("key", [True, 1.5, b"x", ["x"], ""], ids=repr)
async def test_b34_any_other_key_is_refused(start: Start, key: Any) -> None:
    relevo = start(App("test", workers=[carried]))
    flow = Flow("one")
    flow.add(Ship(ID, 1))

    with pytest.raises(DefinitionError, match="a key is text, a whole number or a UUID"):
        await relevo.enqueue(Ship(ID, 1), key=key)
    with pytest.raises(DefinitionError, match="a key is text, a whole number or a UUID"):
        await relevo.start(flow, key=key)
    assert (await relevo.store.page(Filter())).jobs == []


async def test_a_flow_started_under_a_number_is_one_flow(start: Start) -> None:
    relevo = start(App("test", workers=[carried]))

    def flow() -> Flow:
        made = Flow("ship")
        made.add(Ship(ID, 1))
        return made

    first = await relevo.start(flow(), key=7)
    assert (await relevo.start(flow(), key="7")).id == first.id


async def test_a_decimal_goes_in_and_comes_out_to_the_digit(start: Start) -> None:
    seen: list[Pay] = []

    async def pay(order: Pay) -> dict[str, Decimal]:
        seen.append(order)
        return {"paid": order.amount + Decimal("0.01")}

    relevo = start(App("test", workers=[pay]))
    order = Pay(Decimal("19.90"), [Decimal("0.10"), Decimal("1E+3")])
    sent = await relevo.enqueue(order)
    await drain(relevo)

    assert seen == [order]
    assert str(seen[0].amount) == "19.90"
    [job] = await relevo.store.find([sent.id])
    assert job is not None
    assert job.state is State.DONE
    assert msgspec.json.decode(job.result or b"") == {"paid": "19.91"}


# results


class Find(Command, queue="test:orders:find", attempts=3):
    pass


class Paid(msgspec.Struct):
    amount: Decimal


UNFIT: list[tuple[Any, str]] = [
    ("x" * 70_000, "more than 65,536 bytes"),
    ({"at": datetime(2030, 1, 1)}, "at: a moment without time zone"),
    ({"total": {"text": "paid with 4242424242424242"}}, "total.text"),
    ([b"pdf"], "result[0]: bytes"),
    ({"names": {"a", "b"}}, "names: a set"),
    (object(), "result: object, which is not JSON"),
    (float("nan"), "NaN"),
    (2**70, "64 bit"),
]


@pytest.mark.parametrize(("value", "told"), UNFIT, ids=[told for _, told in UNFIT])
@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
@pytest.mark.parametrize("way", ["returned", "done"])
async def test_a_result_that_cannot_be_kept_fails_its_job_at_once(
    start: Start, value: Any, told: str, is_plain: bool, way: str
) -> None:
    runs: list[int] = []

    def result(ctx: Any) -> Any:
        runs.append(ctx.attempt)
        return Done(value) if way == "done" else value

    async def find(order: Find, ctx: Context) -> Any:
        return result(ctx)

    def find_plainly(order: Find, ctx: Context) -> Any:
        return result(ctx)

    relevo = start(App("test", workers=[find_plainly if is_plain else find]))
    sent = await relevo.enqueue(Find())
    await drain(relevo, skip_waits=True)

    [job] = await relevo.store.find([sent.id])
    assert job is not None and job.failure is not None
    assert (job.state, job.result, runs) == (State.DEAD, None, [1])
    assert job.failure.type == "PayloadError"
    assert "a result cannot be kept" in job.failure.message
    assert told in job.failure.message
    assert "Return what is small and plain" in job.failure.message
    assert "4242" not in job.failure.message
    assert "allow=" not in job.failure.message  # a result has no class line to write it in


FIT: list[tuple[Any, str]] = [
    (None, "null"),
    (0, "0"),
    ("", '""'),
    ({"a": [1, 2.5, True, None]}, '{"a":[1,2.5,true,null]}'),
    (Decimal("19.90"), '"19.90"'),
    (datetime(2030, 1, 1, tzinfo=UTC), '"2030-01-01T00:00:00Z"'),
    (date(2030, 1, 1), '"2030-01-01"'),
    (ID, f'"{ID}"'),
    ((1, 2), "[1,2]"),
    (State.DONE, '"done"'),
    (Paid(Decimal("0.10")), '{"amount":"0.10"}'),
]


async def test_ordinary_values_are_kept(start: Start) -> None:
    values = iter(value for value, _ in FIT)

    async def find(order: Find) -> Any:
        return next(values)

    relevo = start(App("test", workers=[find]))
    for value, text in FIT:
        sent = await relevo.enqueue(Find())
        await drain(relevo)
        [job] = await relevo.store.find([sent.id])
        assert job is not None
        assert job.state is State.DONE, (value, job.failure)
        assert (job.result or b"null").decode() == text
