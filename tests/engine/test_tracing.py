"""One webhook call is one trace: its endpoint, its jobs, and whatever comes of these."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from relevo import (
    App,
    Command,
    Context,
    Delivery,
    Event,
    Flow,
    Intake,
    PlainContext,
    Relevo,
    SettingsError,
    StoreUnavailable,
    sources,
)
from relevo.desk import Person, Role
from relevo.ingress.server import serving
from relevo.ingress.sockets import listen
from relevo.store import Filter, Letterbox, Store
from relevo.telemetry import Telemetry
from relevo.testing import ManualClock, deliver, drain, until

HOOK = "/hooks/shop"
ANN = Person("ann", Role.OPERATOR)


class Pay(Command, queue="test:money:pay", attempts=2):
    order: str


class Mail(Command, queue="test:mail:send", attempts=1):
    order: str


class Count(Command, queue="test:stock:count", timeout="20s", isolate="process"):
    order: str


class Close(Command, queue="test:orders:close"):
    order: str


class Ordered(Event, name="shop.ordered"):
    order: str


async def pay(order: Pay, ctx: Context) -> None:
    if order.order == "bad":
        raise ValueError("a-canary: no such card")
    await ctx.enqueue(Mail(order.order))


def mail(order: Mail) -> None: ...


def count(order: Count, ctx: PlainContext) -> None:
    ctx.enqueue(Mail(order.order))


async def close(order: Close) -> None: ...


async def hear(event: Ordered) -> None: ...


class Shop:
    """An endpoint that orders in every way there is, while it works."""

    def __init__(self, **options: Any) -> None:
        self.is_broken = False
        self.app = App("test", workers=[pay, mail, count, close], listeners=[hear])
        options = {"source": sources.github("a secret"), "key": self.key} | options
        self.app.webhook(HOOK, **options)(self.hook())

    def key(self, delivery: Delivery) -> str:
        return delivery.json["id"]

    def hook(self) -> Callable[..., Any]:
        async def hook(delivery: Delivery, ctx: Intake) -> None:
            if self.is_broken:
                raise RuntimeError("a mistake in the function")
            await ctx.enqueue(Pay("one"))
            if delivery.json.get("all"):
                await ctx.enqueue(Count("two"))
                await ctx.publish(Ordered("three"))
                flow = Flow("goods")
                packed = flow.add(Mail("four"), name="pack")
                flow.add(Mail("five"), name="send", after=[packed])
                await ctx.start(flow)
                group = await ctx.group("parts", then=Close("six"))
                await group.add(Mail("seven"))
                await group.close()

        return hook


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


Start = Callable[..., Relevo]


@asynccontextmanager
async def traced(start: Start, shop: Shop) -> AsyncGenerator[Relevo]:
    relevo = start(shop.app)
    relevo.telemetry.trace()
    async with relevo:
        yield relevo


def named(spans: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in spans.get_finished_spans()}


def traces(spans: InMemorySpanExporter) -> set[int]:
    return {span.context.trace_id for span in spans.get_finished_spans() if span.context}


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_webhook_is_one_trace(
    start: Start, spans: InMemorySpanExporter, clock: ManualClock
) -> None:
    async with traced(start, Shop()) as relevo:
        assert (await deliver(relevo, HOOK, json={"id": "a-canary", "all": 1})).status == 200
        clock.advance("7s")
        await drain(relevo)
        [kept], _ = await relevo.store.deliveries(Letterbox())

    found = named(spans)
    call = found[f"POST {HOOK}"]
    assert call.kind is SpanKind.SERVER
    assert call.parent is None
    facts = dict(call.attributes or {})
    assert facts["http.response.status_code"] == 200
    assert facts["relevo.delivery"] == kept.id
    assert facts["relevo.endpoint"] == f"test:{HOOK}"
    assert facts["relevo.is_new"] is True
    names = [span.name for span in spans.get_finished_spans()]
    assert {
        "test:money:pay Pay",
        "test:stock:count Count",
        "test:orders:close Close",
        "test:listeners:hear shop.ordered",
    } <= set(names), names
    assert names.count("test:mail:send Mail") == 5
    assert len(traces(spans)) == 1
    paid = found["test:money:pay Pay"]
    assert parent_of(paid) == id_of(call)
    waited = dict(paid.attributes or {})["relevo.waited_ms"]
    assert isinstance(waited, int)
    assert waited >= 7_000
    ordered = [span for span in spans.get_finished_spans() if parent_of(span) == id_of(paid)]
    assert [span.name for span in ordered] == ["test:mail:send Mail"]
    assert not any("a-canary" in span.to_json() for span in spans.get_finished_spans())


async def test_a_repeated_call_names_the_first_delivery(
    start: Start, spans: InMemorySpanExporter
) -> None:
    async with traced(start, Shop()) as relevo:
        await deliver(relevo, HOOK, json={"id": "1"})
        await deliver(relevo, HOOK, json={"id": "1"})
        await drain(relevo)
    first, again = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    facts, others = dict(first.attributes or {}), dict(again.attributes or {})
    assert facts["relevo.delivery"] == others["relevo.delivery"]
    assert others["relevo.is_new"] is False


@pytest.mark.parametrize("options", [{"later": True}, {}], ids=["later", "failed"])
async def test_a_delivery_handled_by_a_job_stays_in_its_trace(
    start: Start, spans: InMemorySpanExporter, options: dict[str, Any]
) -> None:
    shop = Shop(**options)
    shop.is_broken = not options
    async with traced(start, shop) as relevo:
        await deliver(relevo, HOOK, json={"id": "1"})
        shop.is_broken = False
        await drain(relevo, skip_waits=True)
    found = named(spans)
    assert {"test:money:pay Pay", "test:mail:send Mail"} <= set(found)
    assert len(traces(spans)) == 1


async def test_a_replay_is_in_the_trace_of_its_delivery(
    start: Start, spans: InMemorySpanExporter
) -> None:
    shop = Shop()
    async with traced(start, shop) as relevo:
        await deliver(relevo, HOOK, json={"id": "1"})
        await drain(relevo)
        [kept], _ = await relevo.store.deliveries(Letterbox())
        await relevo.desk.replay(kept.id, ANN, relevo.handling)
        await drain(relevo)
        shop.is_broken = True
        await deliver(relevo, HOOK, json={"id": "2"})
        shop.is_broken = False
        [failed, *_], _ = await relevo.store.deliveries(Letterbox())
        await relevo.desk.replay(failed.id, ANN, relevo.handling)
        await drain(relevo)
    assert [span.name for span in spans.get_finished_spans()].count(f"replay {HOOK}") == 2
    assert [span.name for span in spans.get_finished_spans()].count("test:money:pay Pay") == 3
    assert len(traces(spans)) == 2


async def test_a_spooled_call_is_one_trace(
    start: Start, store: Store, spans: InMemorySpanExporter, tmp_path: Path, clock: ManualClock
) -> None:
    shop = Shop()
    relevo = Relevo(store, apps=[shop.app], clock=clock, spool=str(tmp_path / "spool.db"))
    relevo.telemetry.trace()
    front = relevo.asgi()

    async def is_empty() -> bool:
        return await front.gate.spool.waiting() == 0

    await relevo.open()
    try:
        relevo.watch.failed(StoreUnavailable("away"))  # as after a call that the store refused
        assert (await deliver(relevo, HOOK, json={"id": "1"})).status == 200
        await until(is_empty)
        await drain(relevo)
        found = named(spans)
        assert parent_of(found[f"spool {HOOK}"]) == id_of(found[f"POST {HOOK}"])
        assert parent_of(found["test:money:pay Pay"]) == id_of(found[f"spool {HOOK}"])
        assert len(traces(spans)) == 1
    finally:
        await relevo.rest()


async def test_calls_by_our_own_server_are_traces_of_their_own(
    start: Start, spans: InMemorySpanExporter
) -> None:
    shop = Shop(source=None, verify=sources.shared_secret("a secret", header="x-secret"))
    async with traced(start, shop) as relevo:
        with listen("127.0.0.1", 0) as listener:
            async with (
                serving(relevo.asgi(), listener, grace=1) as url,
                httpx2.AsyncClient(headers={"x-secret": "a secret"}) as web,
            ):
                for number in range(5):
                    said = {"traceparent": f"00-{number + 1:032x}-{7:016x}-01"}
                    answer = await web.post(url + HOOK, json={"id": str(number)}, headers=said)
                    assert answer.status_code == 200
        await drain(relevo)
    assert len(traces(spans)) == 5
    calls = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert [span.links[0].context.trace_id for span in calls] == [1, 2, 3, 4, 5]
    assert len(spans.get_finished_spans()) == 15


async def test_within_another_server_a_call_belongs_to_its_span(
    start: Start, spans: InMemorySpanExporter
) -> None:
    async with traced(start, Shop()) as relevo:
        with trace.get_tracer("server").start_as_current_span("POST"):
            await deliver(relevo, HOOK, json={"id": "1"})
        await drain(relevo)
    found = named(spans)
    assert parent_of(found[f"POST {HOOK}"]) == id_of(found["POST"])
    assert len(traces(spans)) == 1


async def test_a_run_is_a_span_within_that_of_its_caller(
    start: Start, spans: InMemorySpanExporter
) -> None:
    async with traced(start, Shop()) as relevo:
        with trace.get_tracer("test").start_as_current_span("request") as request:
            receipt = await relevo.enqueue(Pay("A-1"), timeout="3s")
            await relevo.enqueue(Pay("bad"), attempts=1)
        await drain(relevo)
    runs = [span for span in spans.get_finished_spans() if span.name == "test:money:pay Pay"]
    assert {parent_of(span) for span in runs} == {request.get_span_context().span_id}
    by_outcome = {dict(span.attributes or {})["relevo.outcome"]: span for span in runs}
    facts = dict(by_outcome["done"].attributes or {})
    assert facts["messaging.message.id"] == facts["relevo.thread"] == receipt.id
    assert by_outcome["dead"].status.status_code is StatusCode.ERROR
    assert by_outcome["dead"].status.description == "ValueError"
    assert not any("a-canary" in span.to_json() for span in runs)


async def test_nothing_is_traced_unless_it_is_wanted(
    start: Start, spans: InMemorySpanExporter
) -> None:
    relevo = start(Shop().app)
    async with relevo:
        with trace.get_tracer("test").start_as_current_span("request"):
            await relevo.enqueue(Mail("A-1"))
            await deliver(relevo, HOOK, json={"id": "1"})
        for job in (await relevo.store.page(Filter())).jobs:
            assert b"traceparent" not in (job.meta or b"")
        [kept], _ = await relevo.store.deliveries(Letterbox())
        assert b"traceparent" not in kept.headers
        await drain(relevo)
    assert [span.name for span in spans.get_finished_spans()] == ["request"]


def test_tracing_without_opentelemetry_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(SettingsError, match=r"relevo\[otel\]"):
        Telemetry().trace()
