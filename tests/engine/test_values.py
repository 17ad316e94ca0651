"""Values that are no JSON of their own: keys of numbers and UUIDs, amounts that are Decimals."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from relevo import App, Command, DefinitionError, Flow, Relevo, State, Verdict
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
