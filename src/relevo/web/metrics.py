"""/metrics: what Prometheus asks for. Read from the store when asked, nothing kept in between."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo.counters import Sums
from relevo.desk import COUNTED, durations, saturations
from relevo.errors import StoreUnavailable
from relevo.job import State
from relevo.relay import Relayed
from relevo.settings import Settings, spool_file, store_file
from relevo.signatures.keys import Keys
from relevo.store import DeliveryState, QueueMode, WorkerInfo, WorkerState
from relevo.unrouted import CAUSES
from relevo.version import version
from relevo.web.auth import is_local
from relevo.web.doors import site, visit_of

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from relevo.engine import Relevo
    from relevo.web.web import Web

FRESH = 1.0
"""Seconds for which an answer is good: many who ask at once ask the store once."""

BREAKERS_MAX = 500
_CIRCUITS: Final = {"closed": 0, "half_open": 1, "open": 2}
UNWELL: Final = (WorkerState.BLOCKED, WorkerState.SILENT, WorkerState.GONE)
_DELIVERY = "delivery_"

# Told as 0 before the first of each: of a series that begins at 1 a rate does not see the 1.
DELIVERIES: Final = (
    *(
        "busy",
        "differs",
        "failed",
        "forged",
        "ignored",
        "repeated",
        "set_up",
        "taken",
        "unreadable",
        "wrong_time",
    ),
)
EVENTS: Final = (
    "cancelled",
    "dead",
    "held",
    "joined",
    "lease_lost",
    "parked",
    "rescued",
    "retry",
    "snooze",
    "trouble",
)


def build(relevo: Relevo, web: Web) -> ASGIApp:
    """An ASGI app for /metrics: for this machine, and for whoever sees every app."""
    metrics = Metrics(relevo)

    async def answer(request: Request) -> Response:
        visit = visit_of(request)
        if visit.person is None and not is_local(request):
            return PlainTextResponse("send a token: Authorization: Bearer rlv_…\n", 401)
        if visit.apps is not None:
            return PlainTextResponse("metrics tell of every app, and you see some\n", 403)
        try:
            text, kind = await metrics.text()
        except ImportError as error:
            return PlainTextResponse(f"{error}: pip install 'relevo[metrics]'\n", 501)
        return Response(text, media_type=kind)

    return web.open(site([Route("/metrics", answer)]))


class Metrics:
    """What there is to measure of one engine."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo
        self._version = version()
        self._text = b""
        self._made_at = -FRESH
        self._making = asyncio.Lock()

    async def text(self) -> tuple[bytes, str]:
        """Everything in Prometheus' own words, and their content type."""
        from prometheus_client import CONTENT_TYPE_LATEST

        async with self._making:
            if time.monotonic() - self._made_at >= FRESH:
                self._text = _written([*await self._stored(), *self._process()])
                self._made_at = time.monotonic()
        return self._text, CONTENT_TYPE_LATEST

    async def _stored(self) -> list[Metric]:
        """What the store and the database tell; while one is away, at least that it is."""
        from prometheus_client.core import GaugeMetricFamily as Gauge

        told: list[Metric] = []
        is_up = True
        try:
            await self._relevo.counters.refresh()
            told += await self._fleet()
            told.append(await self._skew())
        except StoreUnavailable:
            is_up = False
        # The outbox lives elsewhere, and fills just then.
        with contextlib.suppress(StoreUnavailable):
            told += await self._outbox()
        return [*told, Gauge("relevo_store_up", "1 while the store answers.", float(is_up))]

    async def _fleet(self) -> list[Metric]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        desk = self._relevo.desk
        jobs = Gauge("relevo_jobs", "Jobs by queue and state.", labels=["queue", "state"])
        done = Gauge(
            "relevo_jobs_done_estimate",
            "Done jobs of queues that have too many to count, estimated from a sample.",
            labels=["queue"],
        )
        oldest = Gauge(
            "relevo_queue_oldest_seconds",
            "How long ago the first job that is ready, parked or held was ordered.",
            labels=["queue"],
        )
        late = Gauge(
            "relevo_queue_late_seconds",
            "How long the first ready job is past its due time.",
            labels=["queue"],
        )
        modes = Gauge("relevo_queue_mode", "1 for the mode it is in.", labels=["queue", "mode"])
        tallies = await desk.queues()
        for tally in tallies:
            for state in State:
                if state is State.DONE and tally.is_estimate:
                    done.add_metric([tally.queue], tally.counts.get(state, 0))
                else:
                    jobs.add_metric([tally.queue, str(state)], tally.counts.get(state, 0))
            oldest.add_metric([tally.queue], (tally.oldest or 0) / 1000)
            late.add_metric([tally.queue], (tally.late or 0) / 1000)
            for mode in QueueMode:
                modes.add_metric([tally.queue, str(mode)], float(tally.mode is mode))
        workers = await desk.workers()
        alive = [worker for worker in workers if worker.is_alive]
        states = Gauge("relevo_workers", "Workers of the last day.", labels=["state"])
        for name, state in (("alive", WorkerState.OK), *((str(each), each) for each in UNWELL)):
            states.add_metric([name], sum(worker.state is state for worker in workers))
        running = Gauge("relevo_worker_running", "Running jobs of workers that are alive.")
        running.add_metric([], sum(worker.running for worker in alive))
        slots = Gauge("relevo_worker_slots", "Jobs that could run at once.")
        slots.add_metric([], sum(worker.concurrency for worker in alive))
        overdue = Gauge(
            "relevo_overdue_jobs", "Running jobs whose plain functions are past their time limits."
        )
        overdue.add_metric([], sum(len(worker.overdue) for worker in alive))
        threads = Gauge("relevo_worker_threads", "Threads of workers that are alive.")
        threads.add_metric([], sum(worker.threads for worker in alive))
        versions = Gauge(
            "relevo_worker_versions", "Workers that are alive, by version.", labels=["version"]
        )
        counts = collections.Counter(each.version or "unknown" for each in alive)
        for name, count in sorted(counts.items()):
            versions.add_metric([name], count)
        memory = Gauge("relevo_worker_memory_bytes", "Memory of workers that are alive.")
        memory.add_metric([], sum(worker.memory for worker in alive))
        full = Gauge(
            "relevo_saturated_jobs",
            "Jobs that wait while all slots are taken, by the queue that has most of these.",
            labels=["queue"],
        )
        for each in saturations(tallies, workers):
            full.add_metric([each.slowest], each.waiting)
        cpu = Gauge("relevo_worker_cpu_cores", "Cores that a worker uses.", labels=["worker"])
        lag = Gauge(
            "relevo_worker_loop_lag_seconds",
            "How long a worker's event loop answered nobody, at worst since its last heartbeat.",
            labels=["worker"],
        )
        for worker in alive:
            cpu.add_metric([worker.id], worker.cpu)
            lag.add_metric([worker.id], worker.lag / 1000)
        circuits = Gauge(
            "relevo_breaker_state", "0 closed, 1 half open, 2 open.", labels=["breaker"]
        )
        parked = Gauge("relevo_breaker_parked", "Jobs it holds back.", labels=["breaker"])
        for breaker in (await desk.breakers())[:BREAKERS_MAX]:
            circuits.add_metric([breaker.name], _CIRCUITS[breaker.circuit.state])
            parked.add_metric([breaker.name], breaker.parked)
        waits = Gauge(
            "relevo_waiting_seconds",
            "How long jobs wait unspent for a provider or for a key that it accepts.",
            labels=["name"],
        )
        now = await desk.store.now()
        for wait in (await desk.waiting())[:BREAKERS_MAX]:
            waits.add_metric([wait.name], (now - wait.since) / 1000)
        told = [jobs, done, oldest, late, modes, states, running, slots, overdue, threads, memory]
        told += [versions, full, cpu, lag, *_durations(workers)]
        return [*told, circuits, parked, waits, *await self._unhandled(now)]

    async def _unhandled(self, now: int) -> list[Metric]:
        """The deliveries that failed or differ, and wait for their function to work."""
        from prometheus_client.core import GaugeMetricFamily as Gauge

        states = (DeliveryState.FAILED, DeliveryState.DIFFERS)
        places = {(place, state): (0, now) for place in self._endpoints() for state in states}
        found = await self._relevo.desk.delivery_groups(states, limit=COUNTED)
        for each in found.groups:
            count, first = places.get((each.endpoint, each.state), (0, now))
            places[each.endpoint, each.state] = count + each.count, min(first, each.first_at)
        waiting = Gauge(
            "relevo_deliveries_unhandled",
            f"Deliveries that failed or differ; counting stops at {COUNTED} of a state.",
            labels=["endpoint", "state"],
        )
        ages = Gauge(
            "relevo_deliveries_unhandled_oldest_seconds",
            "How long ago the oldest of them was received.",
            labels=["endpoint", "state"],
        )
        for (place, state), (count, first) in sorted(places.items()):
            waiting.add_metric([place, str(state)], count)
            ages.add_metric([place, str(state)], (now - first) / 1000)
        return [waiting, ages]

    def _endpoints(self) -> list[str]:
        return [f"{app.name}:{hook.path}" for app in self._relevo.apps for hook in app.webhooks]

    async def _outbox(self) -> list[Metric]:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        lag, waiting = 0, 0
        store = self._relevo.store
        if isinstance(store, Relayed):
            seen = await self._relevo.desk.outbox(store.ledger, await store.ledger.now(), 200)
            lag, waiting = seen.lag, len(seen.waiting)
        return [
            Gauge("relevo_outbox_lag_seconds", "Age of the oldest letter to carry.", lag / 1000),
            Gauge("relevo_outbox_waiting", "Letters to carry; counting stops at 200.", waiting),
        ]

    def _process(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily as Counter
        from prometheus_client.core import GaugeMetricFamily as Gauge

        if (sums := self._relevo.counters.told()) is not None:
            yield from self._summed(sums)
        yield from self._surroundings()
        commands = getattr(self._relevo.store, "commands", None)
        if isinstance(commands, int):
            yield Counter("relevo_store_commands", "Commands sent to the store.", commands)
        info = Gauge("relevo_info", "Which relevo on which store.", labels=["version", "store"])
        info.add_metric([self._version, self._relevo.store.name], 1)
        yield info

    def _summed(self, sums: Sums) -> Iterator[Metric]:
        """The counters: of all processes, and unlike a sum of theirs, never falling."""
        from prometheus_client.core import CounterMetricFamily as Counter

        counts = dict.fromkeys([*EVENTS, *(f"{_DELIVERY}{each}" for each in DELIVERIES)], 0)
        counts |= sums.events
        settled = counts.pop("settled", 0)
        happened = Counter("relevo_events", "What happened, in all processes.", labels=["what"])
        delivered = Counter(
            "relevo_deliveries", "What became of deliveries, in all processes.", labels=["outcome"]
        )
        for name in sorted(counts):
            if name.startswith(_DELIVERY):
                delivered.add_metric([name.removeprefix(_DELIVERY)], counts[name])
            else:
                happened.add_metric([name], counts[name])
        yield Counter("relevo_jobs_settled", "Runs that have ended, in all processes.", settled)
        yield happened
        yield delivered
        yield self._unrouted(sums)
        states = Counter(
            "relevo_endpoint_deliveries",
            "Deliveries by endpoint and state; one that failed counts again once handled.",
            labels=["endpoint", "state"],
        )
        every = {(p, str(state)): 0 for p in self._endpoints() for state in DeliveryState}
        every |= sums.deliveries
        for (place, state), count in sorted(every.items()):
            states.add_metric([place, state], count)
        yield states
        yield self._secrets(sums)

    async def _skew(self) -> Metric:
        from prometheus_client.core import GaugeMetricFamily as Gauge

        began = time.time()
        now = await self._relevo.store.now() / 1000
        skew = now - (began + time.time()) / 2
        return Gauge("relevo_clock_skew_seconds", "The store's clock minus this machine's.", skew)

    def _surroundings(self) -> Iterator[Metric]:
        """The disks of store and spool, and what protects people and data."""
        from prometheus_client.core import GaugeMetricFamily as Gauge

        engine = self._relevo
        spool, file = spool_file(engine.store.dsn, engine.spool), store_file(engine.store.dsn)
        folders = {} if file is None else {"store": file.parent}
        if spool is not None:
            folders["spool"] = spool.parent
        free = Gauge(
            "relevo_store_free_bytes",
            "Free bytes of the disk where the store's file is, and of the spool's.",
            labels=["place"],
        )
        for place, folder in folders.items():
            with contextlib.suppress(OSError):
                free.add_metric([place], shutil.disk_usage(folder).free)
        yield free
        if spool is not None:
            is_writable = os.access(spool if spool.exists() else spool.parent, os.W_OK)
            told = "1 while the spool can be written."
            yield Gauge("relevo_spool_writable", told, float(is_writable))
        settings = Settings.read()
        protected = Gauge(
            "relevo_protected",
            "1 where a password, allowed hosts, or a key of the seal is set.",
            labels=["by"],
        )
        protected.add_metric(["password"], float(settings.admin_password is not None))
        protected.add_metric(["hosts"], float(bool(settings.allowed_hosts)))
        protected.add_metric(["seal"], float(engine.seal is not None))
        yield protected

    def _secrets(self, sums: Sums) -> Metric:
        from prometheus_client.core import CounterMetricFamily as Counter

        verified = Counter(
            "relevo_endpoint_verified",
            "Calls that a secret of the endpoint verified, by its place and fingerprint.",
            labels=["endpoint", "secret", "fingerprint"],
        )
        counts: dict[tuple[str, str], int] = {}
        for door in self._relevo.receiver.doors.values():
            keys = getattr(door.scheme, "keys", None)
            names = keys.names if isinstance(keys, Keys) else ()
            counts |= {(door.endpoint, name): 0 for name in names}
        counts |= sums.secrets
        for (endpoint, name), count in sorted(counts.items()):
            place, _, fingerprint = name.partition(", ")
            verified.add_metric([endpoint, place.partition(" ")[0], fingerprint], count)
        return verified

    def _unrouted(self, sums: Sums) -> Metric:
        from prometheus_client.core import CounterMetricFamily as Counter

        places = self._endpoints()
        counts = dict.fromkeys([(place, cause) for place in places for cause in CAUSES], 0)
        counts |= sums.unrouted
        unrouted = Counter(
            "relevo_deliveries_unrouted",
            "Calls that no endpoint took, by the endpoint that was meant.",
            labels=["endpoint", "cause"],
        )
        for place, count in sorted(counts.items()):
            unrouted.add_metric(place, count)
        return unrouted


def _durations(workers: list[WorkerInfo]) -> list[Metric]:
    """How long runs and effects took in the last minutes, in all workers that are alive."""
    from prometheus_client.core import GaugeMetricFamily as Gauge

    ended = "of those that ended in the last two minutes"
    runs = Gauge(
        "relevo_run_seconds",
        f"How long runs take: 0.5 and 0.95 of each command, {ended}.",
        labels=["queue", "command", "quantile"],
    )
    calls = Gauge(
        "relevo_effect_seconds",
        f"How long the calls of effects take: 0.5 and 0.95 of each, {ended}.",
        labels=["queue", "effect", "quantile"],
    )
    running = Gauge(
        "relevo_run_longest_seconds",
        "How long the longest run that is under way has taken.",
        labels=["queue", "command"],
    )
    for each in durations(workers):
        family = calls if each.is_effect else runs
        for share, ms in (("0.5", each.median), ("0.95", each.p95)):
            if each.count:
                family.add_metric([each.queue, each.name, share], ms / 1_000)
        if not each.is_effect:
            running.add_metric([each.queue, each.name], each.longest / 1_000)
    return [runs, calls, running]


class _Once:
    """What a registry wants to see."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def _written(found: Iterable[Metric]) -> bytes:
    from prometheus_client import PROCESS_COLLECTOR, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    registry.register(PROCESS_COLLECTOR)
    return generate_latest(registry)
