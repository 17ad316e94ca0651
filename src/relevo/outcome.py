"""How a run ends, and judge(): what a failure means for its job."""

from __future__ import annotations

import hashlib
import re
import traceback
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

from relevo.backoff import Backoff, constant
from relevo.client_errors import retry_after_of
from relevo.clock import Duration, duration, is_duration
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
    is_text = isinstance(reason, str) and is_duration(reason)
    return is_text or isinstance(reason, timedelta | int | float)


_STORE_AWAY = constant("2s", jitter=1)
_RETRY_AFTER_MIN, _RETRY_AFTER_MAX = timedelta(seconds=1), timedelta(hours=1)


def judge(
    error: BaseException, attempt: int, attempts: int, backoff: Backoff, account: str
) -> Outcome:
    """What becomes of a job whose worker raised `error` on the given attempt.

    `account` names what the job's calls are made with: its breaker, or else its queue.
    """
    failure = describe(error)
    match error:
        case CircuitOpen():
            return Parked(behind(error.breaker), failure)
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
        case _ if attempt >= attempts:
            return Dead(f"failed {attempt} of {attempts} attempts", failure=failure)
        case _:
            # Of a client's error that was raised outside once() this is all that counts.
            is_ours = isinstance(error, ProviderUnavailable)
            asked = (error.retry_after if is_ours else retry_after_of(error)) or timedelta()
            wait = max(min(asked, _RETRY_AFTER_MAX), backoff.after(attempt))
            return Retry(failure.message, wait, failure=failure)


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


_MESSAGE_MAX, _TRACE_MAX = 2_000, 5_000
_VARYING = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']{0,200}'|\"[^\"]{0,200}\"", re.I)


def describe(error: BaseException) -> Failure:
    """An error as it is kept: bounded, scrubbed, with a fingerprint equal for equal mistakes."""
    name = type(error).__qualname__
    message = _text(error)
    try:
        frames = _told(traceback.extract_tb(error.__traceback__, limit=-60))
        trace = "".join(traceback.format_list(frames))[-_TRACE_MAX:]
    except Exception:  # noqa: BLE001 - a traceback is a help, never a reason to fail
        frames, trace = traceback.StackSummary(), ""
    where = f"{PurePath(frames[-1].filename).name}:{frames[-1].name}" if frames else ""
    return Failure(
        type=name[:200],
        message=scrub(message),
        trace=scrub(trace),
        fingerprint=fingerprint(name, where, message),
    )


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


def _text(said: object) -> str:
    try:
        return str(said)[:_MESSAGE_MAX]
    except BaseException:  # noqa: BLE001 - an exception may raise anything when it is printed
        return "(its message cannot be printed)"


def fingerprint(kind: str, where: str, message: str) -> str:
    """Equal for errors that differ only in numbers, ids and quoted values."""
    alike = f"{kind}|{where}|{_VARYING.sub('#', message[:500])}"
    return hashlib.blake2s(alike.encode(errors="replace"), digest_size=6).hexdigest()
