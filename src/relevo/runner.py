"""Runs one job to its outcome: decode, time limit, judge."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from pathlib import PurePath
from types import coroutine
from typing import TYPE_CHECKING, Any, cast

import msgspec

from relevo.app import Binding
from relevo.backoff import Backoff
from relevo.breaker import RELEASE, SINGLED_OUT
from relevo.children import Children, ChildRun
from relevo.client_errors import is_away
from relevo.clock import duration, milliseconds
from relevo.context import Context, current
from relevo.errors import (
    CircuitOpen,
    DefinitionError,
    LeaseLost,
    PayloadError,
    PayloadMismatch,
    ProviderCredentials,
    ProviderUnavailable,
    ProviderUncertain,
    RelevoError,
    StoreError,
    TooEarly,
)
from relevo.events import is_asked_for
from relevo.job import Ending, Failure, Lease, State
from relevo.job_meta import Meta, decode_meta
from relevo.kept import SIMPLE
from relevo.message import Command, Event, Spec, codec
from relevo.outcome import (
    BLOCKED,
    CRASHED,
    Again,
    Cancelled,
    Dead,
    Done,
    Held,
    Outcome,
    Parked,
    Postponed,
    Retry,
    Settled,
    Snooze,
    as_text,
    behind,
    describe,
    given_by,
    judge,
    reason,
    storable,
    wait_for,
)
from relevo.payload import kept_result
from relevo.pending import check_awaited
from relevo.plain_context import PlainContext
from relevo.plain_runs import PastLimit, PlainRun, PlainRuns
from relevo.sealing import closed, is_sealed
from relevo.store import UNDECIDED
from relevo.stored import parked_unknown, parked_unreadable

if TYPE_CHECKING:
    from relevo.engine import Relevo


DONE = Done()
"""How most runs end; made once, since making one costs as much as decoding the message."""

UNASKED = Cancelled("an event whose fields are not those that the listener asks for")

_NOTHING = b"null"
ABANDON_MOST = 3_600.0
_TOO_LONG = "the worker ran past its time limit of {:g} s"
_ENDINGS = (Done, Retry, Snooze, Dead, Cancelled)
_OURS = frozenset({Again, Held, Parked, Postponed})  # what only relevo's own functions return


class Runner:
    """Knows every binding; runs one lease at a time for whoever asks."""

    def __init__(self, engine: Relevo, threads: int) -> None:
        self._engine = engine
        self._bindings = engine.bindings
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="relevo-worker")
        self.children = Children(engine)
        self.plain = PlainRuns(self._limits)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.children.close()

    def limit(self, lease: Lease) -> float:
        """The seconds a run of this job may take."""
        binding = self._bindings.get((lease.queue, lease.kind))
        meta = None if lease.meta is None else decode_meta(lease.meta)
        return 0.0 if binding is None else _limit(binding, meta)

    def _limits(self, lease: Lease) -> tuple[float, float]:
        limit = self.limit(lease)
        return limit, _abandon_after(self._bindings[(lease.queue, lease.kind)], limit)

    async def run(self, lease: Lease, began: float) -> Outcome | Settled | None:
        """How the job ended; None when the lease is lost."""
        if lease.crashes >= lease.attempts:
            return await self._condemn(lease)
        binding = self._bindings.get((lease.queue, lease.kind))
        if binding is None:
            return parked_unknown(lease)
        try:
            message = codec(binding.message).decode(lease.payload)
            meta = None if lease.meta is None else decode_meta(lease.meta)
        except PayloadMismatch as error:
            return parked_unreadable(lease, error)
        except (PayloadError, msgspec.DecodeError) as error:
            if is_sealed(lease.payload):
                # Not dead at once: another process may have the key by now.
                return self._judge(closed(lease.payload), binding, lease, None, None)
            return Dead(f"its payload cannot be read: {error}", failure=describe(error))
        mine = binding.subscription
        if mine is not None and not is_asked_for(lease.payload, mine.where):
            return UNASKED  # what gave it could not read it, or asked for more then
        origin = None if meta is None else meta.origin
        ctx = Context(self._engine, lease, self._loop, origin, self.plain)
        breakers = self._engine.breakers
        is_guarded = binding.is_guarded or (
            bool(breakers.troubled) and _breaker(binding, lease, message) in breakers.troubled
        )
        token = current.set(ctx)
        try:
            if binding.is_async and not is_guarded:
                # As _call() does, in place: this is what most jobs are, and every await costs.
                function = binding.function
                work = function(message, ctx) if binding.takes_context else function(message)
                try:
                    waits_for = work.send(None)
                except StopIteration as end:
                    value = end.value  # it had to wait for nothing, so there was nothing to time
                else:
                    limit = _limit(binding, meta)
                    timer = asyncio.timeout_at(began + limit)
                    try:
                        async with timer:
                            value = await _rest(work, waits_for)
                    except TimeoutError as error:
                        raise too_long(error, timer, limit) from None
            elif is_guarded:
                value = await self._call_guarded(binding, message, ctx, lease, meta)
            else:
                value = await self._call(binding, message, ctx, lease, meta)
            if breakers.failing and not is_guarded:
                self._answered(binding, lease, message, ctx)
            if ctx.calls:
                check_awaited(ctx.calls)
            outcome: Outcome = DONE if value is None else _outcome(value, binding.function)
            if ctx.uncommitted is not None and not (
                isinstance(outcome, Again) and not outcome.is_over
            ):
                outcome = _final(outcome, binding, lease, meta)
                since = began if binding.is_async else self._loop.time()  # it may be overdue
                await _commit(ctx, ending(lease, outcome), since, _limit(binding, meta))
                if is_guarded:
                    await self._succeeded(binding, lease, message, ctx)
                return Settled(outcome)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise  # the worker's own doing; it knows why
            outcome = self._judge(error, binding, lease, meta, message)
        except LeaseLost:
            return None
        except BaseException as error:  # noqa: BLE001 - a worker may raise anything; judge() decides
            outcome = self._judge(error, binding, lease, meta, message)
            if not is_guarded and isinstance(outcome, Retry | Dead):
                outcome = await self._unguarded(error, outcome, binding, lease, meta, message, ctx)
        finally:
            current.reset(token)
            ctx.is_over = True
            if ctx.uncommitted is not None:
                await self._roll_back(ctx)
            if ctx.unanswered:
                await self._take_back(ctx)
        if outcome is DONE:
            return DONE
        outcome = _final(outcome, binding, lease, meta)
        if isinstance(outcome, Parked | Postponed):
            await self._note(lease, outcome)
        return outcome

    async def _condemn(self, lease: Lease) -> Outcome:
        """End a job whose process died at each of its attempts, while nothing ran beside it."""
        while True:
            try:
                [job] = await self._engine.store.find([lease.id])
                break
            except (StoreError, OSError) as error:
                self._engine.telemetry.trouble("cannot see how a job crashed its worker", error)
                await asyncio.sleep(1)
        is_blocker = job is not None and job.failure is not None and job.failure.type == BLOCKED
        kind = BLOCKED if is_blocker else CRASHED
        did = "blocked its worker's event loop" if is_blocker else "crashed its worker"
        times = "once" if lease.crashes == 1 else f"{lease.crashes} times"
        said = f"it {did} {times}, with nothing running beside it"
        return Dead(said, failure=Failure(type=kind, message=said, fingerprint=kind))

    async def _roll_back(self, ctx: Context) -> None:
        try:
            await ctx.roll_back()
        except (StoreError, OSError) as error:
            self._engine.telemetry.trouble("a transaction was not rolled back in order", error)

    async def _take_back(self, ctx: Context) -> None:
        """Write of effects that nothing was called, before another run can read their intents."""
        for effect in ctx.unanswered.values():
            try:
                await effect.take_back_when_answered()
            except (StoreError, OSError) as error:
                self._engine.telemetry.trouble("an effect's intent was not taken back", error)

    async def _note(self, lease: Lease, outcome: Parked | Postponed) -> None:
        """Tell people of a job that waits; the job waits also if that cannot be written down."""
        try:
            await self._engine.waiting.ended(lease, outcome)
        except (StoreError, OSError) as error:
            self._engine.telemetry.trouble("cannot note that a job waits", error)

    async def _call(
        self, binding: Binding, message: Any, ctx: Context, lease: Lease, meta: Meta | None
    ) -> Any:
        began, limit = self._loop.time(), _limit(binding, meta)
        if binding.is_async:
            arguments = (message, ctx) if binding.takes_context else (message,)
            timer = asyncio.timeout_at(began + limit)
            try:
                async with timer:
                    return await binding.function(*arguments)
            except TimeoutError as error:
                raise too_long(error, timer, limit) from None
        if binding.spec.isolate:
            return await self._call_child(binding, ChildRun(ctx, lease, began, limit))
        run = PlainRun(ctx, lease, began, limit, _abandon_after(binding, limit))
        ctx.pending.is_plain = True
        function = binding.function
        if binding.takes_context:
            run.face = PlainContext(ctx, self._loop, limit, run.stay_too_long)
            function = partial(run.face.run, function)
        context = contextvars.copy_context()
        self.plain[lease] = run
        try:
            # However long it takes: a thread cannot be stopped, and the job must not run beside it.
            work = self._threads.submit(context.run, run.call, function, message)
            value = await asyncio.wrap_future(work)
        finally:
            del self.plain[lease]
            await run.end()
            if run.over is not None:
                raise run.over
        if inspect.isawaitable(value):
            # A plain function around an async one: what it gave is the work itself.
            async with asyncio.timeout(limit):
                return await value
        return value

    async def _call_child(self, binding: Binding, run: ChildRun) -> Any:
        self.plain[run.lease] = run
        try:
            return await self.children.run(binding, run, run.ctx.origin)
        finally:
            del self.plain[run.lease]
            await run.end()
            if run.over is not None:
                raise run.over

    def abandoned(self, run: PlainRun) -> Ending:
        """How a run ends whose thread does not, since its process is about to."""
        lease, past = run.lease, self._loop.time() - run.began - run.limit
        binding = self._bindings[(lease.queue, lease.kind)]
        meta = None if lease.meta is None else decode_meta(lease.meta)
        error = PastLimit(
            f"the worker ran {past:.0f} s past its time limit of {run.limit:g} s, and its process "
            "was ended"
        )
        outcome = _final(self._judge(error, binding, lease, meta, None), binding, lease, meta)
        end = ending(lease, outcome)
        # Not before the process is gone.
        return msgspec.structs.replace(end, delay=max(end.delay, 1_000))

    async def _call_guarded(
        self, binding: Binding, message: Any, ctx: Context, lease: Lease, meta: Meta | None
    ) -> Any:
        """Call the worker behind the breaker of its account."""
        name = _breaker(binding, lease, message)
        breakers = self._engine.breakers
        await breakers.admit(name, ctx.id)
        began = self._loop.time()
        try:
            value = await self._call(binding, message, ctx, lease, meta)
        except Exception as error:
            await self._roll_back(ctx)  # first: where there is one writer, what follows would wait
            if await self._broke(name, error, binding, ctx, lease, _backoff(binding, meta)):
                # The breaker's fault now, not the job's.
                raise CircuitOpen(name, describe(error).message) from error
            raise
        ctx.took = self._loop.time() - began
        if ctx.uncommitted is None:
            await self._worked(name, binding, ctx)
        return value

    async def _worked(self, name: str, binding: Binding, ctx: Context) -> None:
        """Tell a breaker of a run that ended well."""
        breakers = self._engine.breakers
        rule = breakers.rule(name, binding.spec.breaker)
        if rule is not None and rule.slow is not None and ctx.has_reached is not False:
            limit, took = duration(rule.slow).total_seconds(), ctx.slowest or ctx.took
            if took > limit:
                said = f"{took:.3g} s, and more than {limit:g} s is slow"
                await breakers.failed(name, binding.spec.breaker, ctx.id, said, is_slow=True)
                return
        if ctx.has_reached is False:
            # All that it asked for had been done by an earlier run.
            await breakers.handed_on(name, ctx.id)
            return
        if breakers.failing:
            has_called = ctx.has_reached is True
            breakers.answered(name, binding.spec.kind, ctx.id, has_called=has_called)
        await breakers.succeeded(name, ctx.id)

    def _answered(self, binding: Binding, lease: Lease, message: Any, ctx: Context) -> None:
        """Note a run that ended well while no breaker stood in its way."""
        if ctx.has_reached is not False:
            name, has_called = _breaker(binding, lease, message), ctx.has_reached is True
            kind = binding.spec.kind
            self._engine.breakers.answered(name, kind, ctx.id, has_called=has_called)

    async def _succeeded(self, binding: Binding, lease: Lease, message: Any, ctx: Context) -> None:
        """Tell a breaker of a call whose transaction has committed, which nothing changes now."""
        try:
            await self._worked(_breaker(binding, lease, message), binding, ctx)
        except (StoreError, OSError) as error:
            self._engine.telemetry.trouble("cannot tell a breaker of a success", error)

    async def _unguarded(
        self,
        error: BaseException,
        outcome: Outcome,
        binding: Binding,
        lease: Lease,
        meta: Meta | None,
        message: Any,
        ctx: Context,
    ) -> Outcome:
        """What becomes of a job that failed while no breaker stood in its way."""
        if not isinstance(error, Exception) or not self._is_away(error, binding, ctx):
            return outcome
        await self._roll_back(ctx)
        name = _breaker(binding, lease, message)
        try:
            if await self._broke(name, error, binding, ctx, lease, _backoff(binding, meta)):
                failure = describe(CircuitOpen(name, describe(error).message))
                return Parked(behind(name), failure)
        except (StoreError, OSError) as away:
            # Dead for want of a breaker's note it must not be.
            return self._judge(away, binding, lease, meta, message)
        return outcome

    async def _broke(
        self,
        name: str,
        error: Exception,
        binding: Binding,
        ctx: Context,
        lease: Lease,
        backoff: Backoff,
    ) -> bool:
        """Tell a breaker of an error; True when the job is to wait behind it.

        Transport faults and time-outs count, refusals do not, and an error about an earlier run's
        call says nothing. A request to wait opens it at once.
        """
        breakers, spec = self._engine.breakers, binding.spec
        rule, said = spec.breaker, describe(error).message
        if self._says_nothing(error, ctx):
            is_uncertain = isinstance(error, ProviderUncertain)
            await breakers.handed_on(name, ctx.id, is_uncertain=is_uncertain)
        elif isinstance(error, ProviderUnavailable) and not error.spends:
            wait = wait_for(error, ctx.attempt, backoff)
            await breakers.rest(name, rule, milliseconds(wait), said, release=_release(spec))
        elif self._is_away(error, binding, ctx):
            by_once = ctx.has_reached is True
            singled_out = breakers.noted(name, spec.kind, ctx.id, by_once=by_once)
            is_uncertain = isinstance(error, ProviderUncertain)
            is_last = lease.attempt >= lease.attempts and not is_uncertain
            if is_last and singled_out >= max(lease.attempts - 1, SINGLED_OUT):
                # The provider answers others between all of this job's attempts. If it was the
                # probe, another job probes now.
                await breakers.handed_on(name, ctx.id)
                return False
            if isinstance(error, TimeoutError) and not is_last and ctx.has_reached:
                is_uncertain = await self._may_have_happened(ctx)
            is_open = await breakers.failed(
                name, rule, ctx.id, said, is_uncertain=is_uncertain, is_last=is_last
            )
            return is_open and not is_uncertain
        elif isinstance(error, ProviderCredentials):
            if rule is not None and spec.names_account:
                await breakers.unaccepted(name, rule, ctx.id, said)
            else:
                await breakers.succeeded(name, ctx.id, is_accepted=False)
        else:
            await breakers.succeeded(name, ctx.id)
        return False

    def _says_nothing(self, error: Exception, ctx: Context) -> bool:
        """Whether an error does not come of a call that this run has made."""
        match error:
            case CircuitOpen() | TooEarly() | StoreError() | LeaseLost():
                return True
            case ProviderUncertain():
                return error.is_left_over
            case ProviderUnavailable():
                return False
            case _:
                return ctx.has_reached is False

    def _is_away(self, error: Exception, binding: Binding, ctx: Context) -> bool:
        """Whether an error shows that the provider is not there."""
        if self._says_nothing(error, ctx):
            return False
        match error:
            case ProviderUnavailable():
                return error.spends
            case ProviderUncertain():
                return binding.spec.breaker is not None
            case PastLimit():
                # Without a breaker it may be the worker's own slowness, unless it was calling.
                return binding.spec.breaker is not None or ctx.is_cut_off
            case TimeoutError() if binding.spec.breaker is not None:
                return True
            case RelevoError():
                return False
            case _:
                return is_away(error, self._engine.error_rows(binding.spec.queue))

    async def _may_have_happened(self, ctx: Context) -> bool:
        """Whether a run that was broken off has left an effect of which nothing is known."""
        effects, _ = await self._engine.store.effects(job=ctx.origin, states=UNDECIDED, limit=1)
        return bool(effects)

    def _judge(
        self, error: BaseException, binding: Binding, lease: Lease, meta: Meta | None, message: Any
    ) -> Outcome:
        backoff = _backoff(binding, meta)
        try:
            error = self._engine.outage(error) or error
            account = _account(binding, lease, message)
        except BaseException:  # noqa: BLE001 - an error may raise anything when it is read
            account = lease.queue  # or its breaker has no name, which is what it failed of
        return judge(error, lease.attempt, lease.attempts, backoff, account)

    def broken(self, error: BaseException, lease: Lease) -> Outcome:
        """What becomes of a job of which something went wrong that no other place has judged."""
        binding = self._bindings.get((lease.queue, lease.kind))
        if binding is None:
            return Postponed(timedelta(seconds=30), describe(error))
        return _final(self._judge(error, binding, lease, None, None), binding, lease, None)


async def _commit(ctx: Context, ending: Ending, began: float, limit: float) -> None:
    """Commit the run's own transaction, within the time that is left."""
    timer = asyncio.timeout_at(began + limit)
    try:
        async with timer:
            await ctx.commit(ending)
    except TimeoutError as error:
        raise too_long(error, timer, limit) from None


def too_long(error: TimeoutError, timer: asyncio.Timeout, limit: float) -> TimeoutError:
    """The same in words, and with the place where it was stuck, if it was this timer's doing."""
    if not timer.expired() or error.__cause__ is None:
        return error
    return PastLimit(_TOO_LONG.format(limit)).with_traceback(error.__cause__.__traceback__)


def _account(binding: Binding, lease: Lease, message: Any) -> str:
    """What the calls of a job share with those of others: its breaker, its rate or its queue."""
    spec = binding.spec
    if spec.dependency is not None and message is not None:
        return spec.dependency.fill(message)
    has_lane = spec.lane_rate is not None and lease.lane is not None
    return f"{lease.queue}/{lease.lane}" if has_lane else lease.queue


def _breaker(binding: Binding, lease: Lease, message: Any) -> str:
    """The breaker that a job waits behind: its command's own, or one of its queue and lane."""
    if binding.is_guarded or lease.lane is None:
        return _account(binding, lease, message)
    return f"{lease.queue}/{lease.lane}"


def _release(spec: Spec) -> int:
    """How many jobs a second are let go when its breaker closes."""
    if spec.breaker is not None:
        return spec.breaker.release
    count, period = spec.rate or spec.lane_rate or (RELEASE, 1_000)
    return max(1, count * 1_000 // period)


def _backoff(binding: Binding, meta: Meta | None) -> Backoff:
    if meta is None or meta.backoff is None:
        return binding.spec.backoff
    first, factor, cap, jitter = meta.backoff
    millisecond = timedelta(milliseconds=1)
    return Backoff(first * millisecond, factor, cap * millisecond, jitter)


def _final(outcome: Outcome, binding: Binding, lease: Lease, meta: Meta | None) -> Outcome:
    """The outcome with the wait that Retry leaves to the backoff; dead if no attempt is left."""
    if isinstance(outcome, Retry):
        if lease.attempt >= lease.attempts:
            return Dead(outcome.reason or "no attempt is left", failure=outcome.failure)
        if outcome.delay is None:
            wait = _backoff(binding, meta).after(lease.attempt)
            return Retry(outcome.reason, wait, failure=outcome.failure)
    return outcome


def _outcome(value: Any, function: Callable[..., Any]) -> Outcome:
    """What a worker means by what it gave, read once: what follows cannot fail of it any more."""
    try:
        return _read(value)
    except BaseException as error:
        # It has returned, so no line of a traceback is its own.
        where = _home(function)
        if isinstance(error, DefinitionError | PayloadError):
            raise type(error)(f"{error} ({where})") from None
        failure = describe(error)
        raise DefinitionError(
            f"what {where} returned cannot be read: {failure.type}: {failure.message}"
        ) from error


def _read(value: Any) -> Outcome:
    kind = cast("type[Any]", type(value))
    if kind in SIMPLE:
        return Done(Kept(kept_result(value)))
    if kind in _OURS:
        return value
    if issubclass(kind, _ENDINGS):
        return _ended(value)
    if issubclass(kind, type) and value in _ENDINGS:
        raise DefinitionError(
            f"the worker gave the class {value.__name__}: write {value.__name__}(…)"
        )
    if inspect.isgenerator(value) or inspect.isasyncgen(value):
        raise DefinitionError(
            "the worker gave a generator, of which nothing has run: return instead"
        )
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise DefinitionError(
            f"the worker returned a {kind.__name__}, of which nothing has run: await it"
        )
    if issubclass(kind, BaseException):
        raise DefinitionError(
            f"the worker returned {kind.__name__}: raise it, or return Retry(…) or Dead(…)"
        )
    if isinstance(value, Command | Event):
        word = "enqueue" if isinstance(value, Command) else "publish"
        raise DefinitionError(
            f"the worker returned {kind.__name__}, which starts nothing: write "
            f"ctx.{word}({kind.__name__}(…))"
        )
    return Done(Kept(kept_result(value)))


def _ended(value: Done | Retry | Snooze | Dead | Cancelled) -> Outcome:
    """What a worker says of its end, in values of ours: a class of its own may do anything."""
    match value:
        case Done(result):
            return Done() if result is None else Done(Kept(kept_result(result)))
        case Retry(why, delay, failure=failure):
            wait = None if delay is None else duration(delay)
            return Retry(as_text(why), wait, failure=None if failure is None else given_by(failure))
        case Snooze(delay, why, failure=failure):
            kept = None if failure is None else given_by(failure)
            return Snooze(duration(delay), as_text(why), failure=kept)
        case Dead(why, failure=failure):
            return Dead(as_text(why), failure=None if failure is None else given_by(failure))
        case Cancelled(why):
            return Cancelled(as_text(why))
        case _:  # pyright: ignore[reportUnnecessaryComparison] - a field that cannot be read, such as one that an __init__() has not set
            raise DefinitionError(f"{type(value).__name__} is incomplete: call super().__init__()")


def _home(function: Callable[..., Any]) -> str:
    """A function as people find it: `charge() in billing.py:12`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return f"{getattr(function, '__qualname__', 'the worker')}()"
    return f"{code.co_name}() in {PurePath(code.co_filename).name}:{code.co_firstlineno}"


class Kept(bytes):
    """A result as it is stored: what cannot be has failed the run by then."""


def ending(lease: Lease, outcome: Outcome) -> Ending:
    """An outcome in the store's words."""
    match outcome:
        case Done(None):
            return Ending(lease=lease, state=State.DONE)
        case Done(result):
            kept = bytes(result) if isinstance(result, Kept) else kept_result(result)
            return Ending(lease=lease, state=State.DONE, result=kept)
        case Retry(text, delay, failure=failure):
            wait = 1_000 if delay is None else milliseconds(delay)  # the runner has filled it in
            failure = failure or reason("Retry", text)
            return Ending(lease=lease, state=State.SCHEDULED, delay=wait, failure=failure)
        case Snooze(delay, text, failure=failure):
            if failure is None and text:
                failure = reason("Snooze", text)
            wait = milliseconds(delay)
            return Ending(
                lease=lease,
                state=State.SCHEDULED,
                delay=wait,
                spend=False,
                failure=failure,
                planned=True,
            )
        case Postponed(delay, failure):
            wait = milliseconds(delay)
            return Ending(
                lease=lease, state=State.SCHEDULED, delay=wait, spend=False, failure=failure
            )
        case Dead(text, failure=failure):
            return Ending(lease=lease, state=State.DEAD, failure=failure or reason("Dead", text))
        case Cancelled(text):
            failure = reason("Cancelled", text) if text else None
            return Ending(lease=lease, state=State.CANCELLED, failure=failure)
        case Parked(park, failure):
            # Behind a breaker a job gets back also the attempts that failed while it was opening.
            is_owed = lease.attempt > 1 and park.startswith(behind(""))
            return Ending(
                lease=lease,
                state=State.PARKED,
                spend=False,
                result=_NOTHING if is_owed else None,
                park=storable(park),
                failure=failure,
            )
        case Again(delay, progress, is_over):
            return Ending(
                lease=lease,
                state=State.SCHEDULED,
                delay=milliseconds(delay),
                spend=False,
                result=progress,
                planned=is_over,
            )
        case Held(failure):
            return Ending(lease=lease, state=State.HELD, failure=failure)


def released(lease: Lease, delay: int = 0) -> Ending:
    """How a lease ends whose job has not begun."""
    return Ending(
        lease,
        State.SCHEDULED,
        delay=delay,
        spend=False,
        released=True,
        suspicion=lease.suspicion,
        crashes=lease.crashes,
    )


def _limit(binding: Binding, meta: Meta | None) -> float:
    if meta is not None and meta.timeout is not None:
        return meta.timeout / 1000
    return binding.spec.timeout.total_seconds()


def _abandon_after(binding: Binding, limit: float) -> float:
    """The seconds past its time limit after which a plain function is taken to be stuck."""
    given = binding.spec.abandon_after
    return min(10 * limit, ABANDON_MOST) if given is None else given.total_seconds()


@coroutine
def _rest(work: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """What remains of a coroutine that has made its first step."""
    while True:
        try:
            yield waits_for
        except BaseException as error:  # noqa: BLE001 - a cancellation: the coroutine's to answer
            try:
                waits_for = work.throw(error)
            except StopIteration as end:
                return end.value
        else:
            return (yield from work.__await__())
