"""What others see of a run: spans where they are wanted, and whether this process consumes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from relevo import App, Command, Context, Relevo
from relevo.errors import SettingsError
from relevo.store import Filter
from relevo.telemetry import Telemetry
from relevo.testing import ManualClock, drain, until

app = App("shop")


class Pay(Command, queue="shop:money:pay", attempts=1):
    order: str


class Mail(Command, queue="shop:mail:send", attempts=1):
    order: str


@app.worker
async def pay(order: Pay, ctx: Context) -> None:
    await ctx.enqueue(Mail(order.order))


@app.worker
def mail(order: Mail) -> None:
    raise ValueError(f"no mailbox for a-canary-{order.order}")


@pytest.fixture
async def relevo(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Relevo]:
    async with Relevo(f"sqlite:///{tmp_path}/relevo.db", apps=[app], clock=clock) as opened:
        yield opened


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def test_a_run_is_a_span_within_that_of_who_ordered_it(
    relevo: Relevo, spans: InMemorySpanExporter
) -> None:
    relevo.telemetry.trace()
    with trace.get_tracer("test").start_as_current_span("request") as request:
        receipt = await relevo.enqueue(Pay("A-1"), timeout="3s")
    await drain(relevo)
    found: dict[str, ReadableSpan] = {span.name: span for span in spans.get_finished_spans()}
    paid, mailed = found["shop:money:pay Pay"], found["shop:mail:send Mail"]
    assert paid.parent and paid.parent.span_id == request.get_span_context().span_id
    assert mailed.parent and paid.context and mailed.parent.span_id == paid.context.span_id
    attributes = dict(paid.attributes or {})
    assert attributes["messaging.message.id"] == attributes["relevo.thread"] == receipt.id
    assert attributes["relevo.outcome"] == "done"
    assert mailed.status.status_code is StatusCode.ERROR
    assert mailed.status.description == "ValueError"
    assert "a-canary" not in mailed.to_json() + paid.to_json()


async def test_nothing_is_traced_unless_it_is_wanted(
    relevo: Relevo, spans: InMemorySpanExporter
) -> None:
    with trace.get_tracer("test").start_as_current_span("request"):
        await relevo.enqueue(Pay("A-1"))
    [job] = (await relevo.store.page(Filter())).jobs
    assert job.meta is None
    await drain(relevo)
    assert [span.name for span in spans.get_finished_spans()] == ["request"]


def test_tracing_without_opentelemetry_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"relevo\[otel\]"):
        Telemetry().trace()


async def test_a_process_that_consumes_nothing_is_not_ready(relevo: Relevo) -> None:
    transport = httpx2.ASGITransport(relevo.asgi())
    stop = asyncio.Event()
    working = asyncio.create_task(relevo.work(concurrency=2, stop=stop))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        await until(lambda: bool(relevo.workers and relevo.workers[0].heard_at))
        assert (await client.get("/ready")).status_code == 200
        [worker] = relevo.workers
        # As after a claim that never came back.
        worker.heard_at = asyncio.get_running_loop().time() - 91
        assert (await client.get("/ready")).status_code == 503
        stop.set()
        await working
        assert relevo.workers == []
        assert (await client.get("/ready")).status_code == 200
