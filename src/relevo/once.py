"""The effect ledger: intended, confirmed, refused, failed, unknown."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypedDict

import msgspec

from relevo.backoff import exponential
from relevo.calling import Caller, Invoke
from relevo.client_errors import Judge, Means, Proof, Row, judge_client_error, judge_response
from relevo.clock import Duration, duration, milliseconds
from relevo.durations import Durations
from relevo.errors import (
    DefinitionError,
    LeaseLost,
    PayloadError,
    ProviderCredentials,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    StoreError,
    StoreUnavailable,
    TooEarly,
)
from relevo.ids import lasting
from relevo.job import Lease
from relevo.kept import SIMPLE, Kept, keep, not_kept, recorded, with_raw
from relevo.scrubbing import scrub
from relevo.sealing import unsealed
from relevo.store import Conclusion, Effect, EffectState, Note, Store
from relevo.telemetry import log

UNDER_WAY = timedelta(seconds=10)
"""How long after it was written an intent of another run is taken for a call under way."""

Call: TypeAlias = Callable[[str], Any]


class OnceOptions(TypedDict, total=False):
    """What may be said of an effect, wherever it is made."""

    find: Call | None
    repeatable: bool
    late: Duration | None
    judge: Judge | None
    accept: Collection[int | str]


class Ledger(NamedTuple):
    """Where intents, and what came of them, are written: those of many at a time."""

    now: Callable[[], Awaitable[int]]
    intend: Callable[[Sequence[Effect]], Awaitable[Sequence[Effect]]]
    conclude: Callable[[Sequence[Effect]], Awaitable[Sequence[bool]]]


class Doubts(NamedTuple):
    """That the store was restored, and whether the job may have run in the time that was lost."""

    restored_at: int
    has_run: bool


_NAME = re.compile(r"[^\x00-\x1f\x7f\u2028\u2029\ud800-\udfff]{1,300}")
_KEY_PART = re.compile(r"[\w.:@/-]{1,120}", re.ASCII)
_UNUSUAL = re.compile(r"[^\w.:@/-]+", re.ASCII)
_AGAIN = exponential("100ms", cap="2s", jitter=0.5)
_BROKEN_OFF = "an earlier run broke off during the call"
_LATER = "; later "
_LOST = "after the copy that the store was restored from"
_RESTORED = "the store was restored, and its copy knows of no call"
_TEXT_MAX = 4_000


class Overtaken(LeaseLost):
    """Another run has written the effect since this one has read or written it."""


async def _not_asked(refused: Effect) -> bool:
    return False


@dataclass(slots=True, kw_only=True)
class Once:
    """One use of Context.once(), with what it needs of the context spelled out.

    Of an effect that `is_shared`, no lease keeps other runs away.
    """

    ledger: Ledger
    lease: Lease
    run: str
    name: str
    call: Call
    invoke: Invoke
    find: Call | None = None
    repeatable: bool = False
    late: Duration | None = None
    type: Any = None
    keep: Callable[[Any], Any] | None = None
    judge: Judge | None = None
    accept: Collection[int | str] = frozenset()
    errors: Sequence[Row] = ()
    check: Callable[[], None] = lambda: None
    is_shared: bool = False
    doubts: Doubts | None = None
    durations: Durations = field(default_factory=Durations)
    is_asked: Callable[[Effect], Awaitable[bool]] = _not_asked
    """Whether a person has retried the job since this refusal."""
    mine: Conclusion = field(init=False)
    doubt: str = field(default="", init=False)
    """What is known of an earlier try that may have had its effect."""
    is_made: bool = field(default=False, init=False)
    """Whether this run has called."""
    has_reached: bool = field(default=False, init=False)
    """Whether this run has asked the provider for anything: it has called, or looked up."""
    took: float = field(default=0.0, init=False)
    """The seconds that the call of this run has taken."""
    is_pending: bool = field(default=False, init=False)
    """Whether the ledger may have an intent of this run whose call has not begun."""

    async def result(self) -> Any:
        """What came of the effect, which is made unless it has been before."""
        try:
            return await self._result()
        except BaseException:
            if self.is_pending:
                with contextlib.suppress(StoreError):
                    await asyncio.shield(asyncio.ensure_future(self.take_back()))
            raise

    async def take_back(self) -> None:
        """Write that this run has called nothing, if the ledger has an intent of it.

        Without this the next run could not tell the intent from a call that broke off.
        """
        [known] = await self.ledger.intend([self.mine])
        if known.run == self.run and known.state is EffectState.INTENDED:
            with contextlib.suppress(Overtaken):
                await self._not_called("stopped before the call")
        self.is_pending = False

    async def take_back_when_answered(self) -> None:
        """Take the intent back, and go on trying for as long as the store is away."""
        await self._until_answered(self.take_back, "an effect that was not made")

    async def _result(self) -> Any:
        while True:
            # Before anything is written: an intent that is taken back leaves the doubt.
            self.doubt = _RESTORED if self.doubts is not None and self.doubts.has_run else ""
            known = await self._intend()
            try:
                return await self._go_on(known)
            except Overtaken:
                # By a newer run, if the lease is not ours; or by an older one that came late with
                # what it knows.
                self.check()
                if self.is_made:
                    [known] = await self.ledger.intend([self.mine])
                    if known.state is EffectState.CONFIRMED and known.key == self.mine.key:
                        return self._stored(known)
                    raise

    async def _go_on(self, known: Effect) -> Any:
        is_new = known.state is EffectState.INTENDED and _is_just_written(known, self.mine)
        key, when = known.key, _LOST if self._is_lost(known, is_new) else ""
        match known.state:
            case EffectState.CONFIRMED:
                return self._stored(known)
            case EffectState.INTENDED if is_new:
                if not when:
                    return await self._make()
            case EffectState.FAILED:
                pass
            case EffectState.REFUSED if known.run and not await self.is_asked(known):
                # Told in the words of the run that heard it. A person who wants another key in a
                # decision is no run.
                raise ProviderRefused(f"'{self.name}' was refused: {known.error}")
            case EffectState.REFUSED:
                # A provider that honours keys would repeat its refusal for the old one.
                number = int(known.key.rpartition("#")[2]) + 1 if "#" in known.key else 2
                key = f"{lasting(self.lease.id)}:{_key_part(self.name)}#{number}"
            case EffectState.INTENDED if self.is_shared and (
                left := await self._left(known, UNDER_WAY)
            ):
                # It is being made this very moment, in another process: to look for it would be
                # too early, and to repeat it too.
                raise TooEarly(f"'{self.name}' is under way elsewhere", left)
            case EffectState.INTENDED | EffectState.UNKNOWN:
                when = "in an earlier run"
        self.doubt = ""
        if when:
            self.mine = msgspec.structs.replace(self.mine, key=key)
            said = known.error or (_RESTORED if when == _LOST else "")
            self.doubt = said or _BROKEN_OFF
            if self.find is not None:
                found = await self._look_up(self.find, key)
                if found is not None:
                    return await self._confirm(found)
                if self.late is not None and (left := await self._left(known, self.late)):
                    raise TooEarly(f"'{self.name}' is not there and may still arrive", left)
                self.doubt = ""
            elif not self.repeatable:
                await self._write(EffectState.UNKNOWN, error=said)
                raise ProviderUncertain(
                    f"'{self.name}' may have happened {when}{_in_brackets(said)}, and there is no "
                    "way to look it up; decide with `relevo effects confirm JOB NAME --result "
                    "JSON` or `relevo effects deny JOB NAME`",
                    is_left_over=True,
                )
        await self._again(key)
        return await self._make()

    def _is_lost(self, known: Effect, is_new: bool) -> bool:
        """Whether the ledger may have known more of the effect before the store was restored."""
        if self.doubts is None:
            return False
        return self.doubts.has_run if is_new else known.updated_at <= self.doubts.restored_at

    async def _intend(self) -> Effect:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
            raise DefinitionError(
                f"{self.name!r:.60} cannot name an effect: write a text of 1 to 300 characters in "
                'one line, such as "charge" or f"mail:{who}"'
            )
        _check_takes_key(self.call, self.name)
        if self.late is not None:
            self.late = duration(self.late)
        lease = self.lease
        self.mine = Conclusion(
            job=lease.id,
            queue=lease.queue,
            name=self.name,
            key=f"{lasting(lease.id)}:{_key_part(self.name)}",
            attempt=lease.attempt,
            run=self.run,
            thread=lease.thread or lease.id,
        )
        self.is_pending = True  # also if the store's answer is lost
        [known] = await self.ledger.intend([self.mine])
        self.is_pending = known.run == self.run and known.state is EffectState.INTENDED
        if known.run != self.run:
            self.mine = msgspec.structs.replace(self.mine, follows=known.run)
        return known

    async def _again(self, key: str) -> None:
        """Write that the call is about to be made once more."""
        self.mine = msgspec.structs.replace(self.mine, key=key)
        self.is_pending = True
        await self._write(EffectState.INTENDED, error=self.doubt)

    async def _make(self) -> Any:
        caller = Caller(self.call, self.check, self.invoke)
        # Once more: a process that was frozen while it waited for the answers above may wake up
        # long after another has made the call.
        self.check()
        try:
            number = self.durations.begin(self.lease.queue, self.name)
            try:
                result = await caller.run(self.mine.key)
            finally:
                self.durations.end(number)
                self.took = caller.took
                self.is_made = caller.is_begun
                self.is_pending = not caller.is_begun
                self.has_reached |= caller.is_begun
        except Exception as error:
            if not caller.is_begun and isinstance(error, LeaseLost):
                raise
            await self._failed(error, caller.took)
        except BaseException as error:
            # A call that was cut off may have had its effect; one that never began has not.
            if caller.is_begun:
                write = self._cut_off(caller, error)
                with contextlib.suppress(Overtaken):
                    await asyncio.shield(asyncio.ensure_future(write))
            raise
        return await self._came(result, caller.took)

    async def _cut_off(self, caller: Caller, error: BaseException) -> None:
        """Write that a call may have happened; or what came of it, where its thread went on."""
        late = None if caller.late is None or caller.late.cancelled() else caller.late
        raised = error if late is None else late.exception()
        if late is not None and raised is None and not inspect.isawaitable(late.result()[0]):
            with contextlib.suppress(Exception):
                await self._came(late.result()[0], caller.took)
        elif late is not None and isinstance(raised, Exception):
            with contextlib.suppress(Exception):
                await self._failed(raised, caller.took)
        else:
            said = self._both(_cut_off(raised or error))
            await self._write(EffectState.UNKNOWN, error=said)

    async def _came(self, result: Any, took: float) -> Any:
        """Judge what the call gave, and write it down."""
        if inspect.isgenerator(result) or inspect.isasyncgen(result):
            await self._not_called("the call gave a generator")
            raise DefinitionError(
                f"the call of '{self.name}' gave a generator, of which nothing has run: return "
                "instead of yield"
            )
        if type(result) not in SIMPLE:
            proof = judge_response(result, self._rows(), accept=self.accept, took=took)
            if proof is not None:
                await self._proved(proof, None)
        return await self._confirm(result)

    def _rows(self) -> Sequence[Row]:
        return self.errors if self.judge is None else (self.judge, *self.errors)

    # when it did not work

    async def _failed(self, error: Exception, took: float) -> NoReturn:
        said = _text(error)
        match error:
            case ProviderError():
                await self._proved(_said_by_app(error), error)
            case _ if proof := judge_client_error(error, self._rows(), took=took):
                await self._proved(proof, error)
            case _:
                # Whatever it is, it may have come after the effect.
                await self._write(EffectState.UNKNOWN, error=self._both(said))
                if self.find is not None or self.repeatable:
                    raise error
                raise ProviderUncertain(self._may_have_happened(said)) from error

    async def _proved(self, proof: Proof, error: Exception | None) -> NoReturn:
        """Write what is proved of the call, and tell the job."""
        said = f"{proof.row}: {proof.message}" if proof.message else proof.row
        state = _STATES[proof.kind]
        if self.doubt:
            # It speaks for this try alone, and not for the earlier one.
            state = EffectState.UNKNOWN
        write = self._write_down(state, error=self._both(said))
        await asyncio.shield(asyncio.ensure_future(write))
        raises = self._raised(proof, said)
        if isinstance(error, type(raises)) and (not self.doubt or type(error) is not type(raises)):
            raise error  # the app's own words, with all it knows
        raise raises from error

    def _raised(self, proof: Proof, said: str) -> ProviderError:
        match proof.kind:
            case Means.NOT_SENT:
                return ProviderUnavailable(
                    f"'{self.name}' did not happen: {self._both(said)}",
                    retry_after=proof.retry_after,
                )
            case Means.WAIT:
                return ProviderUnavailable(
                    f"'{self.name}' has to wait: {self._both(said)}",
                    retry_after=proof.retry_after,
                    spends=False,
                )
            case Means.OUR_CREDENTIALS:
                return ProviderCredentials(
                    f"'{self.name}': our key was not accepted: {self._both(said)}"
                )
            case Means.REFUSED if not self.doubt:
                return ProviderRefused(f"'{self.name}' was refused: {said}")
            case Means.UNCERTAIN if self.find is not None or self.repeatable:
                # The next attempt can tell, or may ask again, so no person has to decide.
                return ProviderUnavailable(
                    self._may_have_happened(said), retry_after=proof.retry_after
                )
            case _:
                return ProviderUncertain(self._may_have_happened(said))

    def _may_have_happened(self, said: str) -> str:
        return f"'{self.name}' may have happened: {self._both(said)}"

    def _both(self, said: str) -> str:
        """What the last try gave, behind what the first uncertain one did."""
        if not self.doubt:
            return said
        return f"{self.doubt.partition(_LATER)[0][:480]}{_LATER}{said[:480]}"

    async def _not_called(self, why: str) -> None:
        """Write that this run called nothing; an earlier one may have."""
        state = EffectState.UNKNOWN if self.doubt else EffectState.FAILED
        await self._write(state, error=self.doubt or why)

    # when it did

    async def _look_up(self, find: Call, key: str) -> Any:
        """What `find` knows of an earlier call; None if it is not there."""
        caller = Caller(find, self.check, self.invoke)
        try:
            try:
                found = await caller.run(key)
            finally:
                self.has_reached |= caller.is_begun
        except ProviderError:
            raise
        except Exception as error:
            proof = judge_client_error(error, self._rows(), took=caller.took, reads=True)
            if proof is None:
                raise
            raise self._not_found_out(proof) from error
        proof = judge_response(
            found, self._rows(), accept=self.accept, took=caller.took, reads=True
        )
        if proof is not None:
            raise self._not_found_out(proof)
        return found

    def _not_found_out(self, proof: Proof) -> ProviderError:
        said = f"{proof.row}: {proof.message}" if proof.message else proof.row
        told = f"'{self.name}' may have happened, and cannot be looked up: {said}"
        match proof.kind:
            case Means.OUR_CREDENTIALS:
                return ProviderCredentials(told)
            case Means.WAIT:
                return ProviderUnavailable(told, retry_after=proof.retry_after, spends=False)
            case Means.REFUSED:
                return ProviderUnavailable(
                    f"{told}. find= returns None where the provider knows of no such thing"
                )
            case _:
                return ProviderUnavailable(told, retry_after=proof.retry_after)

    async def _confirm(self, result: Any) -> Any:
        raw, kept = result, None
        if self.keep is not None:
            try:
                result = self.keep(raw)
            except BaseException as error:  # noqa: BLE001 - the effect is a fact, whatever keep= does
                kept = Kept(None, f"keep= raised {_text(error)}")
        kept = kept or keep(result, is_exact=self.type is not None)
        if kept.data is not None:
            await self._confirmed(result=kept.data)
            if self.type is None and type(result) in SIMPLE:
                return result
            return with_raw(self._recorded(kept.data), raw)
        # A later run must neither repeat it nor go on without its result, if it needs that.
        why = _why_not_kept(self.name, kept.why)
        await self._confirmed(error=scrub(why)[:1_000])
        _warn(self.mine, kept.why)
        return not_kept(why, (raw,)) if self.keep is not None or self.type is not None else raw

    async def _confirmed(self, **changes: Any) -> None:
        try:
            await self._write_down(EffectState.CONFIRMED, **changes)
        except Overtaken:
            if self.is_made:
                await self._note_second(**changes)
            raise

    async def _note_second(self, **changes: Any) -> None:
        """Keep an answer beside the effect that other runs have written: it may be a second one."""
        name = f"{self.name}@late:{self.run}"
        log.error(
            "an effect was confirmed by a run that came late, while another one has made or may "
            "have made it: look at the provider's side whether it happened twice",
            extra={"job": self.mine.job, "effect": name, "key": self.mine.key},
        )
        late = msgspec.structs.replace(
            self.mine, name=name, state=EffectState.CONFIRMED, follows=None, **changes
        )
        await self.ledger.intend([late])
        await self.ledger.conclude([late])

    def _stored(self, effect: Effect) -> Any:
        if effect.result is None:
            return not_kept(effect.error or _why_not_kept(self.name, "it was not written down"))
        return self._recorded(unsealed(effect.result))

    def _recorded(self, data: bytes) -> Any:
        try:
            return recorded(data, self.type)
        except PayloadError as error:
            raise ProviderUncertain(
                f"'{self.name}' happened, but of its result is to be read what is not in it: "
                f"{error}. Mend type=, then retry the job",
                is_left_over=True,  # the provider has answered, now or in an earlier run
            ) from error

    # the ledger

    async def _left(self, effect: Effect, span: Duration) -> timedelta | None:
        """How much is left of a span that began when the effect was last written."""
        left = effect.updated_at + milliseconds(span) - await self.ledger.now()
        return timedelta(milliseconds=left) if left > 0 else None

    async def _write_down(self, state: EffectState, **changes: Any) -> None:
        """Write what only this run knows, and go on trying for as long as the store is away.

        If it gave up, the next run would find no more than that the call may have been made.
        """
        write = partial(self._write, state, **changes)
        await (self._until_answered(write, "what came of an effect") if self.is_made else write())

    async def _until_answered(self, write: Callable[[], Awaitable[None]], what: str) -> None:
        failures = 0
        while True:
            try:
                return await write()
            except StoreUnavailable as error:
                failures += 1
                if failures == 1:
                    log.warning(
                        f"{what} cannot be written; trying again",
                        extra={"job": self.mine.job, "effect": self.name, "error": str(error)},
                    )
                await asyncio.sleep(_AGAIN.after(failures).total_seconds())

    async def _write(self, state: EffectState, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.mine, state=state, **changes)
        [written] = await self.ledger.conclude([changed])
        if state is not EffectState.INTENDED or not written:
            self.is_pending = False
        if not written:
            raise Overtaken(f"another run has written '{self.name}' of job {self.mine.job}")
        self.mine = msgspec.structs.replace(self.mine, follows=None)


_STATES = {
    Means.NOT_SENT: EffectState.FAILED,
    Means.WAIT: EffectState.FAILED,
    Means.OUR_CREDENTIALS: EffectState.FAILED,
    Means.REFUSED: EffectState.REFUSED,
    Means.UNCERTAIN: EffectState.UNKNOWN,
}


def _said_by_app(error: ProviderError) -> Proof:
    """What the app's own code says of a call that it made."""
    row = type(error).__name__
    message = _text(error).removeprefix(f"{row}: ")
    match error:
        case ProviderUnavailable():
            kind = Means.NOT_SENT if error.spends else Means.WAIT
            return Proof(kind, row, message, error.retry_after)
        case ProviderCredentials():
            return Proof(Means.OUR_CREDENTIALS, row, message)
        case ProviderRefused():
            return Proof(Means.REFUSED, row, message)
        case _:
            return Proof(Means.UNCERTAIN, row, message)


def _key_part(name: str) -> str:
    """An effect's name as a part of its idempotency key, which providers want short and ASCII."""
    if _KEY_PART.fullmatch(name):
        return name
    mark = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    return f"{_UNUSUAL.sub('-', name)[:60]}-{mark}"


def _check_takes_key(call: Call, name: str) -> None:
    """DefinitionError where the call surely takes nothing: it would fail before it leaves."""
    code = getattr(call, "__code__", None)
    if code is not None and not code.co_argcount and not code.co_flags & inspect.CO_VARARGS:
        raise DefinitionError(
            f"the call of '{name}' takes no argument: write lambda key: …, and give the provider "
            "the key where it takes one"
        )


def _is_just_written(known: Effect, mine: Effect) -> bool:
    return known.run == mine.run and known.created_at == known.updated_at


def _why_not_kept(name: str, why: str) -> str:
    return (
        f"'{name}' happened, but its result could not be kept ({why}): name what is needed of it "
        "with keep=, as in keep=lambda result: result.id"
    )


TYPES = "effect type"
"""The kind of the notes that keep the schema of `type=`, to check what a person confirms by it."""


def type_name(queue: str, name: str) -> str:
    """The name of the note about an effect's type: effects that differ in a part of their name
    (`mail:ann`, or a poller's `charge@3`) have one."""
    return f"{queue}/{name.partition('@')[0].partition(':')[0]}"


async def note_type(store: Store, queue: str, name: str, type: Any) -> None:
    """Note the JSON schema of an effect's type, where it can be told and is not noted yet."""
    try:
        schema = msgspec.json.encode(msgspec.json.schema(type))
    except Exception:  # noqa: BLE001 - a class that JSON schema cannot tell, or whose names are gone
        return
    with contextlib.suppress(StoreError):
        place = type_name(queue, name)
        [known] = await store.recall(TYPES, [place])
        if known is None or known.value != schema:
            version = 0 if known is None else known.version
            await store.remember([Note(kind=TYPES, name=place, value=schema, version=version)])


_warned: set[tuple[str, str]] = set()


def _warn(effect: Effect, why: str) -> None:
    """Once an effect of a queue: it will be the same for all of its jobs."""
    place = (effect.queue, effect.name.partition("@")[0].partition(":")[0])
    if place not in _warned:
        _warned.add(place)
        log.warning(
            "an effect's result cannot be kept: a run that is repeated and reads it is held; name "
            "what is needed of it, as in once(…, keep=lambda result: result.id)",
            extra={"job": effect.job, "queue": effect.queue, "effect": effect.name, "why": why},
        )


def _in_brackets(said: str) -> str:
    return f" ({said})" if said else ""


def _cut_off(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "broken off before its answer"
    return _text(error)


def _text(error: BaseException) -> str:
    try:
        return scrub(f"{type(error).__name__}: {error}"[:_TEXT_MAX])[:1_000]
    except BaseException:  # noqa: BLE001 - an exception may raise anything when it is printed
        return type(error).__name__
