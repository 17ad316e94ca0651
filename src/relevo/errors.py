"""Everything relevo raises on purpose.

RelevoError
├── SettingsError            nothing was started: the configuration is wrong
├── DefinitionError          a command, event, worker or flow is written wrongly
├── PayloadError             a command cannot travel: too big, not JSON, or carrying a secret
│   └── PayloadMismatch      … or was stored by other code, and its class here does not fit it
├── MisuseError              a call at the wrong moment, such as once() inside a transaction
│   └── NotAllowed           … or by someone whose role does not reach that far
├── NotFoundError            no job, queue or effect answers to that name
├── SignatureError           a delivery is not from who it says
├── BodyError                what arrived cannot be read as what it should be
├── QueueClosed              the queue is draining and takes no newcomers
├── GroupClosed              the group is closed, and takes only what its members add
├── LeaseLost                the job went to someone else; nothing of this run may be saved
├── SealError                what is stored is sealed, and no key here opens it
├── StoreError               the store said no
│   ├── StoreUnavailable     … for now: try later
│   ├── StoreDamaged         … because what it holds cannot be trusted
│   └── SchemaMismatch       … until `relevo migrate`, or a newer relevo
└── ProviderError            the world outside did not do it, and the job is …
    ├── ProviderUnavailable  … tried again; CircuitOpen and TooEarly spend no attempt
    ├── ProviderCredentials  … parked until a person has mended the key we call with
    ├── ProviderUncertain    … looked up before it is tried again: the call may have worked
    └── ProviderRefused      … dead: the same answer would come back
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import PurePath

from relevo.lengths import Duration, asked_length


class RelevoError(Exception):
    """The root of what relevo raises on purpose."""


class SettingsError(RelevoError):
    """Nothing was started: the configuration is wrong."""


class DefinitionError(RelevoError):
    """A command, event, worker or flow is written wrongly; said where it is defined."""


class PayloadError(RelevoError):
    """A command cannot travel. `path` names the field; the value is never in the message."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class PayloadMismatch(PayloadError):
    """A stored payload does not fit its class as it is here; other code may read it."""


class MisuseError(RelevoError):
    """A call at the wrong moment."""


class NotAllowed(MisuseError):
    """The person's role does not reach that far."""


class NotFoundError(RelevoError):
    """Nothing answers to that name."""


class SignatureError(RelevoError):
    """A delivery is not from who it says it is from."""


class BodyError(RelevoError):
    """What arrived cannot be read as what it should be. `code` may be told to the caller."""

    def __init__(self, message: str, *, code: str = "invalid_body") -> None:
        super().__init__(message)
        self.code = code


class QueueClosed(RelevoError):
    """The queue is draining and takes no newcomers."""


class GroupClosed(RelevoError):
    """The group is closed, or over: only its members that have not ended add to it."""


class LeaseLost(RelevoError):
    """The job went to someone else; nothing of this run may be saved."""


class SealError(RelevoError):
    """What is stored is sealed, and no key here opens it."""


class StoreError(RelevoError):
    """The store said no."""


class StoreUnavailable(StoreError):
    """The store does not answer for now: try later. Nothing was promised."""


class StoreDamaged(StoreError):
    """What the store holds cannot be trusted: a torn file, a replaced one, another program's."""


class SchemaMismatch(StoreError):
    """The store's tables are older than this code (migrate first), or for newer code only."""


class ProviderError(RelevoError):
    """The world outside did not do what was asked."""


class ProviderUnavailable(ProviderError):
    """It did not happen, and may work later: the job is tried again.

    `retry_after` is what the provider asked for: a timedelta, seconds, text such as "15s", or the
    value of a Retry-After header. `spends` is False when the provider asked us to wait, so that no
    attempt is burned. A `retry_after` that cannot be read is told in the error's message, and the
    failure is an ordinary one.
    """

    # Of the class, too, for one derived from it whose __init__() does not call this one.
    retry_after: timedelta | None = None
    spends: bool = True

    def __init__(
        self, message: str, *, retry_after: Duration | None = None, spends: bool = True
    ) -> None:
        self.spends = spends
        if retry_after is not None:
            self.retry_after = asked_length(retry_after)
            if self.retry_after is None:
                self.spends = True
                message = f"{message} ({_unread(retry_after)}{_maker()})"
        super().__init__(message)


def _unread(said: object) -> str:
    known = repr(said)[:40] if type(said) in (str, float, int, bytes, bool) else type(said).__name__
    return (
        f"retry_after={known} is no length of time: give a timedelta, seconds, or text like '15s'"
    )


def _maker() -> str:
    """The line that makes the error, whose class may be derived."""
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] - the caller of __init__()
    while frame.f_back is not None and frame.f_code.co_name == "__init__":
        frame = frame.f_back
    return f", at {PurePath(frame.f_code.co_filename).name}:{frame.f_lineno}"


class CircuitOpen(ProviderUnavailable):
    """Nobody was called: the breaker of this dependency is open. The job is parked."""

    def __init__(self, breaker: str, why: str = "") -> None:
        told = f"the breaker '{breaker}' is open"
        super().__init__(f"{told}: {why}" if why else told, spends=False)
        self.breaker = breaker


class TooEarly(ProviderUnavailable):
    """Nobody was called: a call that was made before may still arrive, or is under way."""

    def __init__(self, message: str, retry_after: Duration | None = None) -> None:
        super().__init__(message, retry_after=retry_after, spends=False)


class ProviderCredentials(ProviderError):
    """It did not happen: the provider does not accept our key. The job is parked for a person."""


class ProviderUncertain(ProviderError):
    """It may have happened: the job is looked up, or held for a person, before it is repeated.

    `is_left_over`: the call in question is that of an earlier run. This run made none, so the error
    says nothing about the provider, and no breaker counts it.
    """

    def __init__(self, *args: object, is_left_over: bool = False) -> None:
        super().__init__(*args)
        self.is_left_over = is_left_over


class ProviderRefused(ProviderError):
    """It did not happen and would not next time: the job is dead."""
