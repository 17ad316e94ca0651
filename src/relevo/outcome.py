"""How a run ends, and judge(): what a failure means for its job."""

from __future__ import annotations

import hashlib
import re
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypeAlias, cast

import msgspec

from relevo.backoff import Backoff, constant
from relevo.client_errors import retry_after_of
from relevo.clock import Duration, duration
from relevo.errors import (
    CircuitOpen,
    DefinitionError,
    PayloadError,
    ProviderCredentials,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    StoreUnavailable,
)
from relevo.job import Failure
from relevo.lengths import is_length
from relevo.scrubbing import scrub

LOST = "WorkerLost"
"""The type of the failure of a run whose worker process was gone: not the job's fault, as far as is
known."""

HOST_LOST = "HostLost"
"""Of one that ran alone, and whose process died as others of its host died or were told to stop."""

CRASHED = "WorkerCrashed"
"""Of one whose process died while nothing ran beside it."""

BLOCKED = "BlockedLoop"
"""Of one that blocked the event loop of its process past its own time limit."""


@dataclass(frozen=True, slots=True)
class Done:
    """It worked. `result` reaches the flow's parent and the people who look."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Retry:
    """It did not work; try again after `delay`, or after the backoff's own wait."""

    reason: str = ""
    delay: Duration | None = None
    failure: Failure | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        # Here, where whoever wrote it hears of it.
        if self.delay is not None:
            duration(self.delay)
        elif _is_length(self.reason):  # it would be kept as the reason, and the wait another
            raise DefinitionError(
                f"Retry({self.reason!r:.40}) says why, not when: write Retry(delay=…) for how long "
                'to wait, or both as Retry("why", "30s")'
            )


@dataclass(frozen=True, slots=True)
class Snooze:
    """Not now: run again after `delay`, without spending an attempt."""

    delay: Duration
    reason: str = ""
    failure: Failure | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        duration(self.delay)


@dataclass(frozen=True, slots=True)
class Postponed:
    """It could not be done now, through no fault of its own: repeated later, unspent.

    A run that is repeated belongs to the same turn; one that ended with `Snooze` was the plan.
    """

    delay: timedelta
    failure: Failure


@dataclass(frozen=True, slots=True)
class Dead:
    """It will not heal: to the dead letters, where a person can see it."""

    reason: str
    failure: Failure | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Nobody needs it any more."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Parked:
    """Set aside behind a breaker, or until code that knows it comes; spends no attempt."""

    behind: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """Its effect may have happened: a person decides."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Again:
    """A recurring job runs again after `delay`, and finds `progress`.

    A turn that failed, or did not take place, is not over: the next run repeats it.
    """

    delay: timedelta
    progress: bytes
    is_over: bool = True


@dataclass(frozen=True, slots=True)
class Settled:
    """The run ended so, and its own transaction has written it."""

    outcome: Outcome


Outcome: TypeAlias = Done | Retry | Snooze | Postponed | Dead | Cancelled | Parked | Held | Again


def _is_length(reason: object) -> bool:
    """Whether this is a length of time and cannot be meant as a reason."""
    is_text = isinstance(reason, str) and is_length(reason)
    return is_text or isinstance(reason, timedelta | int | float)


_STORE_AWAY = constant("2s", jitter=1)
_RETRY_AFTER_MIN, _RETRY_AFTER_MAX = timedelta(seconds=1), timedelta(hours=1)


def judge(
    error: BaseException, attempt: int, attempts: int, backoff: Backoff, account: str
) -> Outcome:
    """What becomes of a job whose worker raised `error` on the given attempt; never raises.

    `account` names what the job's calls are made with: its breaker, or else its queue.
    """
    try:
        return _judged(error, attempt, attempts, backoff, account)
    except BaseException as broken:  # noqa: BLE001 - an error may raise anything when it is read
        return _failed(unreadable(error, broken), attempt, attempts, backoff)


def _judged(
    error: BaseException, attempt: int, attempts: int, backoff: Backoff, account: str
) -> Outcome:
    failure = describe(error)
    match error:
        case CircuitOpen():
            return Parked(storable(behind(error.breaker)), failure)
        case StoreUnavailable():
            # Not the job's fault; and the same, whichever way the store was away.
            away = msgspec.structs.replace(failure, type=StoreUnavailable.__name__)
            return Postponed(_STORE_AWAY.after(1), away)
        case ProviderCredentials():
            return Parked(credentials(account), failure)
        case ProviderUncertain():
            return Held(failure)
        case ProviderRefused() | PayloadError():
            return Dead(failure.message, failure=failure)
        case ProviderUnavailable(spends=False):
            return Postponed(wait_for(error, attempt, backoff), failure)
        case _:
            # Of a client's error that was raised outside once() this is all that counts.
            is_ours = isinstance(error, ProviderUnavailable)
            asked = (error.retry_after if is_ours else retry_after_of(error)) or timedelta()
            return _failed(failure, attempt, attempts, backoff, min(asked, _RETRY_AFTER_MAX))


def _failed(
    failure: Failure,
    attempt: int,
    attempts: int,
    backoff: Backoff,
    asked: timedelta = timedelta(),
) -> Outcome:
    """A failure that is tried again while an attempt is left."""
    if attempt >= attempts:
        return Dead(f"failed {attempt} of {attempts} attempts", failure=failure)
    return Retry(failure.message, max(asked, backoff.after(attempt)), failure=failure)


def wait_for(error: ProviderUnavailable, attempt: int, backoff: Backoff) -> timedelta:
    """How long to wait when the provider asked for it: 1 s to 1 h."""
    wait = backoff.after(attempt) if error.retry_after is None else error.retry_after
    return min(max(wait, _RETRY_AFTER_MIN), _RETRY_AFTER_MAX)


def behind(breaker: str) -> str:
    """What the jobs of a breaker are parked behind."""
    return f"breaker:{breaker}"


CREDENTIALS = "unaccepted:"


def credentials(account: str) -> str:
    """What the jobs are parked behind whose provider does not accept our key."""
    return f"{CREDENTIALS}{account}"


_MESSAGE_MAX, _TRACE_MAX, _NESTED = 2_000, 5_000, 20
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']{0,200}'|\"[^\"]{0,200}\"", re.I)


class Described:
    """What an error of another process has beside its own class: how it was described there."""

    failure: Failure


def describe(error: BaseException) -> Failure:
    """An error as it is kept: bounded, scrubbed, with a fingerprint equal for equal mistakes.

    Never raises, whatever the error does when it is read.
    """
    # isinstance() would ask the error for its class, which may raise.
    if issubclass(type(error), Described):
        return cast("Described", error).failure
    name, message = _name(error), _message(error)
    frames = _frames(error)
    try:
        trace = "".join(traceback.format_list(frames))[-_TRACE_MAX:]
    except BaseException:  # noqa: BLE001 - a traceback is a help, never a reason to fail
        trace = ""
    where = f"{PurePath(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    return Failure(
        type=name,
        message=scrub(message),
        trace=scrub(trace),
        fingerprint=fingerprint(name, where, message),
    )


def ordinary(error: BaseException) -> Exception:
    """What an app's function raised, as an error that ends no event loop and cancels no task.

    SystemExit, KeyboardInterrupt and their like would end the process, and the other jobs with it.
    """
    if issubclass(type(error), Exception):
        return cast("Exception", error)
    stands_for = RuntimeError(f"the function raised {_name(error)}: {_message(error)}")
    stands_for.__cause__ = error
    return stands_for.with_traceback(error.__traceback__)


def unreadable(error: BaseException, broken: BaseException) -> Failure:
    """The failure of a run that gave or raised what cannot be read: reading it raised `broken`."""
    told = f"what the worker gave cannot be read ({_name(broken)}: {_message(broken)[:500]})"
    failure = describe(error)
    place = place_of(broken) or place_of(error)
    message = f"{failure.message}: {told}{f', at {place}' if place else ''}".removeprefix(": ")
    return msgspec.structs.replace(failure, message=scrub(message)[:_MESSAGE_MAX])


def given_by(failure: Failure) -> Failure:
    """A failure that a worker made itself, as it may be kept."""
    if type(failure) is not Failure:
        raise DefinitionError(f"failure= is a {type(failure).__name__}: give a relevo.Failure")
    kind, said = scrub(_text(failure.type))[:200], scrub(_text(failure.message))
    trace = scrub(_text(failure.trace, _TRACE_MAX))
    print = scrub(_text(failure.fingerprint))[:200] or fingerprint(kind, "", said)
    return Failure(type=kind, message=said, trace=trace, fingerprint=print)


def storable(text: str) -> str:
    """The text itself, if every store keeps it; DefinitionError if not."""
    try:
        is_kept = "\0" not in text and len(text.encode()) <= _MESSAGE_MAX
    except (UnicodeEncodeError, AttributeError, TypeError):
        is_kept = False
    if not is_kept:
        raise DefinitionError(f"{text!r:.60} is no name that a store keeps")
    return text


def place_of(error: BaseException) -> str:
    """The line of the program's own code that raised an error, such as `billing.py:42`."""
    own = [each for each in _frames(error) if _is_own(each.filename)]
    return scrub(f"{PurePath(own[-1].filename).name}:{own[-1].lineno}")[:200] if own else ""


def _frames(error: BaseException) -> traceback.StackSummary:
    try:
        trace = BaseException.__getattribute__(error, "__traceback__")
        return _told(traceback.extract_tb(trace, limit=-60))
    except BaseException:  # noqa: BLE001 - a loader may raise when it is asked for a line
        return traceback.StackSummary()


def _name(error: BaseException) -> str:
    try:
        return scrub(_text(type(error).__qualname__))[:200]
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return "Exception"


def _message(error: BaseException) -> str:
    """What an error says; a group says also what the first of its errors is."""
    said = _text(error)
    try:
        first = error
        for _ in range(_NESTED):
            if issubclass(type(first), BaseExceptionGroup):
                first = BaseException.__getattribute__(first, "exceptions")[0]
    except BaseException:  # noqa: BLE001 - as in _name()
        return said
    return said if first is error else f"{said}: {_name(first)}: {_text(first)}"[:_MESSAGE_MAX]


_LIBRARIES = re.compile(r"[/\\\\](?:site-packages|dist-packages|lib[/\\\\]python\d[\d.]*)[/\\\\]")
_OURS = str(PurePath(__file__).parent)
_FRAMES, _OWN_FRAMES = 8, 4


def _told(frames: traceback.StackSummary) -> traceback.StackSummary:
    """The last frames, and before them the last of the program's own, if none is among them."""
    last = frames[-_FRAMES:]
    own = [each for each in frames[:-_FRAMES] if _is_own(each.filename)]
    return traceback.StackSummary.from_list([*own[-_OWN_FRAMES:], *last])


def _is_own(file: str) -> bool:
    return not file.startswith(_OURS) and not _LIBRARIES.search(file)


def reason(kind: str, message: object) -> Failure:
    """A failure that no exception stands behind; a worker may have given one as its reason."""
    text = scrub(_text(message))
    return Failure(type=kind, message=text, fingerprint=fingerprint(kind, "", text))


def as_text(reason: object) -> str:
    """A reason that a worker gave, as text."""
    return scrub(_text(reason))


def _text(said: object, most: int = _MESSAGE_MAX) -> str:
    try:
        # str's own slice: what __str__ gives may be of a class that has another.
        return str.__getitem__(str(said), slice(most))
    except BaseException:  # noqa: BLE001 - an exception may raise anything when it is printed
        return "(its message cannot be printed)"


def fingerprint(kind: str, where: str, message: str) -> str:
    """Equal for errors that differ only in numbers, ids and quoted values."""
    alike = f"{kind}|{where}|{_VARYING.sub('#', message[:500])}"
    return hashlib.blake2s(alike.encode(errors="replace"), digest_size=6).hexdigest()
