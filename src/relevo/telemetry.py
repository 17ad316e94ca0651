"""A line of log and a count for each thing that happens; nothing on the path of success."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import Token
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec.structs import force_setattr

from relevo.clock import duration, stamp
from relevo.errors import SettingsError
from relevo.job import Lease, NewJob
from relevo.outcome import Again, Done, Outcome, Settled, scrub
from relevo.store import FAILED_OF, DeliveryState, Kept, Rescued

if TYPE_CHECKING:
    from opentelemetry.context import Context as Ctx
    from opentelemetry.trace import Span

    from relevo.webhook import Delivery

log = logging.getLogger("relevo")

Run: TypeAlias = Callable[[Lease, float], Awaitable[Outcome | Settled | None]]

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FIELD_MAX = 2_000
_TRACE_MAX = 20_000


class Throttle:
    """Lets the first of each kind through, then one every so many seconds; the rest is counted.

    A store that is away for an hour must not fill the disk with lines that say so.
    """

    def __init__(self, every: float = 10.0) -> None:
        self._every = every
        self._next: dict[str, float] = {}
        self._held: Counter[str] = Counter()

    def admit(self, kind: str) -> int | None:
        """How many of the kind were held back since the last; None: hold this one back too."""
        now = time.monotonic()
        if now < self._next.get(kind, 0.0):
            self._held[kind] += 1
            return None
        self._next[kind] = now + self._every
        return self._held.pop(kind, 0)


class Telemetry:
    """Counts by name; a counter costs a tenth of a microsecond, a log line a hundred times that."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.unrouted: Counter[tuple[str, str]] = Counter()  # calls by endpoint and cause
        self.deliveries: Counter[tuple[str, DeliveryState]] = Counter()  # by endpoint and state
        self.secrets: Counter[tuple[str, str]] = Counter()  # by endpoint: which one verified a call
        self.tracing: Tracing | None = None  # off: one look at this is all it costs
        self.narrator: Narrator | None = None  # the same
        self._throttle = Throttle()
        self._joined: set[str] = set()  # the queues that a warning tells of already

    def trace(self) -> None:
        """From now on a span for each run, and their context in each job; SettingsError without
        OpenTelemetry."""
        try:
            self.tracing = Tracing()
        except ImportError as error:
            raise SettingsError(f"{error}: pip install 'relevo[otel]'") from error

    def again(self, what: str, endpoint: str, delivery: Delivery) -> AbstractContextManager[object]:
        """Tracing.again() where tracing is on."""
        if self.tracing is None:
            return contextlib.nullcontext()
        return self.tracing.again(what, endpoint, delivery)

    def narrate(self) -> None:
        """From now on a line of log for each delivery and each run, if such lines are wanted."""
        if log.isEnabledFor(logging.INFO):
            self.narrator = Narrator()

    def ended(self, lease: Lease, outcome: Outcome) -> None:
        """A run that did not simply work."""
        name = type(outcome).__name__.lower()
        name = "snooze" if name == "postponed" else name  # both wait without spending an attempt
        self.counts[name] += 1
        failure = getattr(outcome, "failure", None)
        why = getattr(outcome, "reason", "")
        if failure is not None and failure.type == "StoreUnavailable":
            # Every job in hand says the same when the store is away: one line is enough for all.
            if (held := self._throttle.admit("store away")) is not None:
                facts = {"error": failure.message, "unsaid": held}
                log.warning("jobs wait, since the store is away", extra=facts)
            return
        if self.narrator is not None:
            return  # it tells every run
        level = logging.INFO if failure is None else logging.WARNING
        log.log(
            level,
            "job %s",
            name,
            extra={
                "job": lease.id,
                "queue": lease.queue,
                "kind": lease.kind,
                "attempt": lease.attempt,
                "thread_id": lease.thread or lease.id,
                "error": why if failure is None else f"{failure.type}: {failure.message}",
            },
        )

    def lease_lost(self, lease: Lease) -> None:
        """Somebody else has the job, or a person ended it; what this run did settles nothing."""
        self.counts["lease_lost"] += 1
        log.warning("lease lost", extra={"job": lease.id, "queue": lease.queue})

    def rescued(self, job: Rescued) -> None:
        """A job was taken back from a worker that went silent."""
        self.counts["rescued"] += 1
        log.warning(
            "job rescued",
            extra={"job": job.id, "queue": job.queue, "worker": job.worker},
        )

    def joined(self, job: NewJob, stands: str) -> None:
        """A command joined a job whose payload is another; its own is not used."""
        self.counts["joined"] += 1
        if job.queue not in self._joined:
            self._joined.add(job.queue)
            log.warning(
                "a command joined a job of %s by its key, and its own, different payload is not "
                "used; of this queue that is not told again: see `relevo doctor`",
                job.queue,
                extra={
                    "job": stands,
                    "queue": job.queue,
                    "kind": job.kind,
                    "unique": job.unique,
                    "cause": job.cause,
                },
            )

    def flow_joined(self, flow: str, key: str, stands: str) -> None:
        """A start of a flow joined one of other payloads or nodes; its own are not used."""
        self.counts["joined"] += 1
        place = f"flow {flow}"
        if place not in self._joined:
            self._joined.add(place)
            log.warning(
                "a flow %s joined one by its key, and its own, different nodes are not used; of "
                "flows of this name that is not told again: see `relevo doctor`",
                flow,
                extra={"flow": stands, "key": key},
            )

    def not_taken(self, endpoint: str, cause: str, path: str, advice: str) -> None:
        """A call at an endpoint, or nearly at one, was refused before anything of it was read."""
        self.unrouted[endpoint, cause] += 1
        unsaid = self._throttle.admit(f"unrouted {endpoint} {cause}")
        if unsaid is not None:
            extra = {"endpoint": endpoint, "cause": cause, "path": path, "why": advice}
            log.warning("a call was not taken", extra=extra | {"unsaid": unsaid})

    def trouble(self, what: str, error: BaseException) -> None:
        """Something inside went wrong and will be tried again."""
        self.counts["trouble"] += 1
        unsaid = self._throttle.admit(what)
        if unsaid is not None:
            extra = {"error": f"{type(error).__name__}: {error}", "unsaid": unsaid}
            log.warning("%s", what, extra=extra)


class Narrator:
    """A line for each delivery and each run, for the person at a terminal.

    A poller's or schedule's turn that went well is not told: there is one every few seconds.
    """

    def delivery(self, kept: Kept, *, is_new: bool) -> None:
        """A delivery was taken, or had been taken before."""
        where, key, jobs = kept.endpoint, kept.key, len(kept.jobs)
        if not is_new:
            log.info("%s", _line("repeated", where, key, "nothing new"))
        elif kept.state is DeliveryState.FAILED:
            told = f"{kept.reason.removeprefix(FAILED_OF)}; kept; it is run again"
            log.error("%s", _line("failed", where, key, told))
        elif kept.state is DeliveryState.IGNORED:
            log.info("%s", _line("ignored", where, key, kept.reason))
        else:
            log.info("%s", _line("accepted", where, key, f"{jobs} job{'' if jobs == 1 else 's'}"))

    async def run(self, run: Run, lease: Lease, began: float) -> Outcome | Settled | None:
        """Run a job, and tell what came of it."""
        started = time.monotonic()
        try:
            outcome = await run(lease, began)
        except BaseException:
            log.info("%s", _line("stopped", lease.queue, lease.key, lease.id))
            raise
        took = f"{(time.monotonic() - started) * 1_000:,.0f} ms"
        match outcome.outcome if isinstance(outcome, Settled) else outcome:
            case None:
                self._tell(logging.WARNING, "lost", lease, "another worker has it, or a person")
            case Again():
                pass
            case Done():
                self._tell(logging.INFO, "done", lease, took)
            case failed:
                self._failed(failed, lease, took)
        return outcome

    def _failed(self, outcome: Outcome, lease: Lease, took: str) -> None:
        word = type(outcome).__name__.lower()
        failure = getattr(outcome, "failure", None)
        wait = getattr(outcome, "delay", None)
        told = [f"attempt {lease.attempt} of {lease.attempts}", took]
        if wait is not None:
            told.append(f"again in {duration(wait).total_seconds():,.3g} s")
        why = getattr(outcome, "reason", "")
        trace = ""
        if failure is not None:
            why = f"{failure.type}: {failure.message}" if failure.message else failure.type
            trace = failure.trace
        if why:
            told.append(why)
        level = logging.INFO if failure is None else logging.WARNING
        self._tell(level, word, lease, ", ".join(told), trace)

    def _tell(self, level: int, word: str, lease: Lease, told: str, trace: str = "") -> None:
        line = _line(word, lease.queue, lease.key, lease.id, told)
        log.log(level, "%s", line, extra={"text": trace} if trace else None)


def _line(word: str, *parts: str | None) -> str:
    return "  ".join([f"{word:9}", *(part for part in parts if part)])


class _Carried(msgspec.Struct):
    """Of what travels beside a payload, what a trace needs."""

    traceparent: str | None = None


class Tracing:
    """Spans by OpenTelemetry: where they go is up to its SDK, which the program's owner sets up.

    One webhook call is one trace: the span of the call at its endpoint is the parent of the runs of
    the jobs that the call orders, and their runs are the parents of what they order.
    """

    def __init__(self) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._current = context
        self._tracer = trace.get_tracer("relevo")
        self._context = TraceContextTextMapPropagator()
        self._decode = msgspec.json.Decoder(_Carried).decode

    def call(self, endpoint: str, delivery: Delivery) -> Span:
        """Begin the span of a webhook call, and name it in the delivery.

        Its parent is the span that the program's own HTTP server has begun. A trace that the caller
        names is linked and not joined: strangers would choose which calls are sampled.
        """
        theirs = self._trace.get_current_span(self._parents(delivery.header("traceparent")))
        known = theirs.get_span_context()
        span = self._tracer.start_span(
            f"{delivery.method} {delivery.path}",
            kind=self._trace.SpanKind.SERVER,
            links=[self._trace.Link(known)] if known.is_valid else None,
            attributes={
                "messaging.system": "relevo",
                "http.request.method": delivery.method,
                "http.route": delivery.path,
                "relevo.endpoint": endpoint,
                "relevo.delivery": delivery.id,
            },
        )
        carrier: dict[str, str] = {}
        self._context.inject(carrier, self._trace.set_span_in_context(span))
        force_setattr(delivery, "traceparent", carrier.get("traceparent", ""))
        return span

    def enter(self, span: Span) -> Token[Any]:
        """Make a span the current one, until leave()."""
        return self._current.attach(self._trace.set_span_in_context(span))

    def leave(self, token: Token[Any]) -> None:
        """Make the span current again that was before enter()."""
        self._current.detach(token)

    def answered(self, span: Span, status: int) -> None:
        """Note what a webhook call was answered."""
        span.set_attribute("http.response.status_code", status)
        if status >= 500:
            span.set_status(self._trace.StatusCode.ERROR)

    def again(self, what: str, endpoint: str, delivery: Delivery) -> AbstractContextManager[Span]:
        """A span for a stored delivery whose function runs, in the trace of its call."""
        return self._tracer.start_as_current_span(
            f"{what} {delivery.path}",
            context=self._parents(delivery.traceparent),
            attributes={
                "messaging.system": "relevo",
                "relevo.endpoint": endpoint,
                "relevo.delivery": delivery.id,
                "relevo.waited_ms": max(0, stamp(datetime.now(UTC)) - stamp(delivery.received_at)),
            },
        )

    def _parents(self, traceparent: str | None) -> Ctx:
        """The context that a traceparent names; that of a new trace for None."""
        return self._context.extract(
            {"traceparent": traceparent} if traceparent else {}, self._current.Context()
        )

    def traceparent(self) -> str | None:
        """What a job carries so that its run is told as part of what is going on now."""
        carrier: dict[str, str] = {}
        self._context.inject(carrier)
        return carrier.get("traceparent")

    def _parent(self, meta: bytes) -> str | None:
        try:
            return self._decode(meta).traceparent
        except msgspec.DecodeError:
            return None  # the run itself says what is wrong with it

    async def run(self, run: Run, lease: Lease, began: float) -> Outcome | Settled | None:
        """Run a job within a span; never its payload, nor the words of an error."""
        parent = None if lease.meta is None else self._parent(lease.meta)
        with self._tracer.start_as_current_span(
            f"{lease.queue} {lease.kind}",
            context=self._parents(parent),
            kind=self._trace.SpanKind.CONSUMER,
            attributes={
                "messaging.system": "relevo",
                "messaging.operation.type": "process",
                "messaging.destination.name": lease.queue,
                "messaging.message.id": lease.id,
                "relevo.kind": lease.kind,
                "relevo.attempt": lease.attempt,
                "relevo.thread": lease.thread or lease.id,
                "relevo.waited_ms": max(0, lease.claimed_at - lease.inserted_at),
            },
        ) as span:
            ended = await run(lease, began)
            outcome = ended.outcome if isinstance(ended, Settled) else ended
            name = "lost" if outcome is None else type(outcome).__name__.lower()
            span.set_attribute("relevo.outcome", name)
            failure = getattr(outcome, "failure", None)
            if failure is not None:
                span.set_status(self._trace.StatusCode.ERROR, failure.type)
            return ended


class JsonLines(logging.Formatter):
    """One JSON object a line; control characters escaped, fields bounded, secrets scrubbed."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": scrub(record.getMessage())[:_FIELD_MAX],
        }
        line |= _fields(record)
        if record.exc_info:
            line["trace"] = _trace(self.formatException(record.exc_info))[-_FIELD_MAX:]
        return json.dumps(line, ensure_ascii=False, default=str)


def _trace(text: str) -> str:
    """What is told of a traceback: an error's own message may be as long as memory allows."""
    return scrub(text[-_TRACE_MAX:])


class TextLines(logging.Formatter):
    """Log lines as text for a terminal, where errors are red."""

    def __init__(self, *, has_colours: bool = False) -> None:
        super().__init__()
        self._has_colours = has_colours

    def format(self, record: logging.LogRecord) -> str:
        line = self._line(record)
        is_red = self._has_colours and record.levelno >= logging.ERROR
        return f"\x1b[31m{line}\x1b[0m" if is_red else line

    def _line(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        known = _fields(record)
        known.pop("text", None)  # several lines, below
        fields = " ".join(f"{name}={value}" for name, value in known.items() if value)
        message = scrub(record.getMessage()).replace("\n", "\\n")[:_FIELD_MAX]
        line = f"{at} {record.levelname.lower():7} {message}  {fields}".rstrip()
        if record.exc_info:
            line += "\n" + _trace(self.formatException(record.exc_info))
        if text := getattr(record, "text", ""):
            line += "\nTraceback (most recent call last):\n" + scrub(str(text)).rstrip()
        return line


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return {
        name: scrub(value).replace("\n", "\\n")[:_FIELD_MAX] if isinstance(value, str) else value
        for name, value in vars(record).items()
        if name not in _STANDARD
    }


def start_logging(level: str = "info", form: str = "auto") -> bool:
    """Log to standard error; whether a person is to read it.

    What other libraries log goes there in the same form, unless the program has set up its own
    logging. A closed or full standard error never stops the work.
    """
    logging.raiseExceptions = False
    handler = logging.StreamHandler(sys.stderr)
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    has_colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(TextLines(has_colours=has_colours) if is_text else JsonLines())
    if not logging.root.handlers or logging.root.handlers == log.handlers:
        logging.root.handlers[:] = [handler]
    log.handlers[:] = [handler]
    log.setLevel(level.upper())
    log.propagate = False
    return is_text


def logs_json() -> bool:
    """Whether this process logs JSON, so that each of its lines has to be JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in log.handlers)


def json_line(text: str, level: int) -> str:
    """A line of the log, whatever level is logged."""
    record = log.makeRecord(log.name, level, "", 0, text, (), None)
    return JsonLines().format(record) + "\n"


def log_uncaught() -> None:
    """Have errors that nothing catches, and warnings, logged where logging has begun.

    For a program of relevo's own: a library leaves the interpreter's hooks alone.
    """
    at_end, in_thread, ignored = sys.excepthook, threading.excepthook, sys.unraisablehook

    def ended(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if logs_json() and issubclass(kind, Exception):
            log.critical("this process ends", exc_info=(kind, error, trace))
        else:
            at_end(kind, error, trace)

    def thread_ended(args: threading.ExceptHookArgs) -> None:
        if logs_json() and args.exc_value is not None:
            name = "" if args.thread is None else args.thread.name
            log.error("a thread ends", exc_info=args.exc_value, extra={"thread_name": name})
        else:
            in_thread(args)

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if logs_json() and args.exc_value is not None:
            log.error("%s", args.err_msg or "an error was ignored", exc_info=args.exc_value)
        else:
            ignored(args)

    sys.excepthook, threading.excepthook, sys.unraisablehook = ended, thread_ended, unraisable
    logging.captureWarnings(True)
