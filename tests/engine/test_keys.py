"""What a key is for, said by the class or by the order."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from relevo import App, Command, Context, DefinitionError, Delivery, Intake, Relevo, sources
from relevo.store import Filter
from relevo.testing import drain

Start = Callable[..., Relevo]


class Sync(Command, queue="test:keys:sync", key="sub:{sub}", unique="forever"):
    sub: str
    state: str = ""


class Plain(Command, queue="test:keys:plain"):
    sub: str


class InTurn(Command, queue="test:keys:turn", ordered="{sub}"):
    sub: str


class Begin(Command, queue="test:keys:begin"):
    sub: str


async def sync(order: Sync) -> None: ...
async def plain(order: Plain) -> None: ...
async def in_turn(order: InTurn) -> None: ...


async def test_a_key_that_only_the_order_has_says_what_it_is_for(start: Start) -> None:
    relevo = start(App("test", workers=[sync, plain, in_turn]))

    with pytest.raises(DefinitionError) as refused:
        await relevo.enqueue(Plain("s"), key="mine")

    told = str(refused.value)
    assert "enqueue(Plain(…))" in told
    for choice in ("unique='forever'", "unique='latest'", "unique='unfinished'"):
        assert choice in told
    receipt = await relevo.enqueue(Plain("s"), key="mine", unique="forever")
    [job] = await relevo.store.find([receipt.id])
    assert job is not None
    assert (job.key, job.unique) == ("mine", "forever")


async def test_an_order_inherits_what_its_class_says_of_keys_or_says_otherwise(
    start: Start,
) -> None:
    relevo = start(App("test", workers=[sync, plain, in_turn]))

    inherits = await relevo.enqueue(Sync("s"), key="mine")
    other = await relevo.enqueue(Sync("t"), unique="unfinished")

    found = await relevo.store.find([inherits.id, other.id])
    assert [job and (job.key, job.unique) for job in found] == [
        ("mine", "forever"),
        ("sub:t", "unfinished"),
    ]


@pytest.mark.parametrize(
    ("command", "wishes", "told"),
    [
        (Plain("s"), {"unique": "latest"}, "needs a key="),
        (Plain("s"), {"key": "k", "unique": "always"}, "not 'always'"),
        (InTurn("s"), {"key": "k", "unique": "latest"}, "ordered= runs every job"),
    ],
    ids=["no key", "no choice", "ordered"],
)
async def test_b34_a_wrong_unique_is_refused(
    start: Start, command: Command, wishes: Any, told: str
) -> None:
    relevo = start(App("test", workers=[sync, plain, in_turn]))

    with pytest.raises(DefinitionError, match=told):
        await relevo.enqueue(command, **wishes)
    assert (await relevo.store.page(Filter())).jobs == []


async def test_a_worker_and_a_webhook_say_it_too(start: Start) -> None:
    app = App("test", workers=[sync, plain, in_turn])

    @app.worker
    async def begin(order: Begin, ctx: Context) -> None:
        with pytest.raises(DefinitionError, match="enqueue"):
            await ctx.enqueue(Plain(order.sub), key="by a worker")
        await ctx.enqueue(Plain(order.sub), key="by a worker", unique="forever")

    @app.webhook(
        "/in", source=sources.github("a secret of tests"), key=lambda delivery: delivery.json["id"]
    )
    async def came(delivery: Delivery, ctx: Intake) -> None:
        with pytest.raises(DefinitionError, match="enqueue"):
            await ctx.enqueue(Plain("s"), key="by a webhook")
        await ctx.enqueue(Plain("s"), key="by a webhook", unique="unfinished")

    relevo = start(app)
    await relevo.enqueue(Begin("s"))
    call = Delivery(path="/in", body=b'{"id":"e1"}', received_at=datetime.now(UTC))
    await relevo.receiver.take(relevo.receiver.doors["/in"], call)
    await drain(relevo)

    for key, unique in (("by a worker", "forever"), ("by a webhook", "unfinished")):
        page = await relevo.store.page(Filter(key=key))
        assert [job.unique for job in page.jobs] == [unique]
