"""The effect ledger: intended, confirmed, refused, failed, unknown."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, cast

import msgspec

from relevo.clock import Duration, milliseconds
from relevo.errors import (
    DefinitionError,
    LeaseLost,
    PayloadError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    StoreError,
    TooEarly,
)
from relevo.job import Lease
from relevo.outcome import scrub
from relevo.payload import plain
from relevo.sealing import unsealed
from relevo.store import Effect, EffectState

T = TypeVar("T")

UNDER_WAY = timedelta(seconds=10)
"""How long after it was written an intent of somebody else's is taken for a call under way."""


class Ledger(NamedTuple):
    """Where intents, and what came of them, are written: those of many at a time."""

    now: Callable[[], Awaitable[int]]
    intend: Callable[[Sequence[Effect]], Awaitable[Sequence[Effect]]]
    conclude: Callable[[Sequence[Effect]], Awaitable[Sequence[bool]]]


_NAME = re.compile(r"[\w.:@/-]{1,120}", re.ASCII)


async def once(
    ledger: Ledger,
    lease: Lease,
    run: str,
    name: str,
    call: Callable[[str], Awaitable[T]],
    find: Callable[[str], Awaitable[T | None]] | None,
    repeatable: bool,
    type: type[T] | None,
    check: Callable[[], None],
    *,
    late: Duration | None = None,
    is_shared: bool = False,
) -> T:
    """Context.once(), with what it needs of the context spelled out.

    Of an effect that `is_shared`, no lease keeps others away.
    """
    if not _NAME.fullmatch(name):
        raise DefinitionError(
            f"{name!r:.60} cannot name an effect: use letters, digits and . : @ / - _, 120 at most"
        )
    mine = Effect(
        job=lease.id,
        queue=lease.queue,
        name=name,
        key=f"{lease.id}:{name}",
        attempt=lease.attempt,
        run=run,
        thread=lease.thread or lease.id,
    )
    try:
        [known] = await ledger.intend([mine])
    except asyncio.CancelledError:
        # It may be written all the same: the next run shall know that nothing was called.
        await asyncio.shield(asyncio.ensure_future(_take_back(ledger, mine)))
        raise
    match known.state:
        case EffectState.CONFIRMED:
            return _stored(known, type)
        case EffectState.INTENDED if _is_just_written(known, mine):
            pass
        case EffectState.FAILED:
            mine = msgspec.structs.replace(mine, key=known.key)
            await _write(ledger, mine, EffectState.INTENDED)
        case EffectState.REFUSED:
            # A provider that honours keys would repeat its refusal for the old one.
            number = int(known.key.rpartition("#")[2]) + 1 if "#" in known.key else 2
            mine = msgspec.structs.replace(mine, key=f"{lease.id}:{name}#{number}")
            await _write(ledger, mine, EffectState.INTENDED)
        case EffectState.INTENDED if is_shared and (left := await _left(ledger, known, UNDER_WAY)):
            # It is being made this very moment, by whoever else has it: to look for it would be
            # too early, and to repeat it too.
            raise TooEarly(f"'{name}' is under way elsewhere", left)
        case EffectState.INTENDED | EffectState.UNKNOWN:
            mine = msgspec.structs.replace(mine, key=known.key)
            if find is not None:
                found = await find(known.key)
                if found is not None:
                    return await _confirm(ledger, mine, found)
                if late is not None and (left := await _left(ledger, known, late)):
                    raise TooEarly(f"'{name}' is not there and may still arrive", left)
            elif not repeatable:
                await _write(ledger, mine, EffectState.UNKNOWN, error=known.error)
                raise ProviderUncertain(
                    f"'{name}' may have happened in an earlier run, and there is no way to look it "
                    "up; decide with `relevo effects confirm` or `relevo effects deny`"
                )
            await _write(ledger, mine, EffectState.INTENDED)
    # Once more: a process that was frozen while it waited for the answers above may wake up long
    # after another has made the call.
    check()
    try:
        result = await call(mine.key)
    except ProviderRefused as error:
        await _write(ledger, mine, EffectState.REFUSED, error=_text(error))
        raise
    except ProviderUnavailable as error:
        await _write(ledger, mine, EffectState.FAILED, error=_text(error))
        raise
    except BaseException as error:
        # Anything else, a cancelled call included, may have come after the effect.
        write = _write(ledger, mine, EffectState.UNKNOWN, error=_text(error))
        await asyncio.shield(asyncio.ensure_future(write))
        if find is None and not repeatable and isinstance(error, Exception):
            if isinstance(error, ProviderUncertain):
                raise
            raise ProviderUncertain(f"'{name}' may have happened: {_text(error)}") from error
        if isinstance(error, ProviderUncertain):
            # The next attempt can tell, or may ask again, so nobody has to decide.
            raise ProviderUnavailable(f"'{name}' may have happened: {_text(error)}") from error
        raise
    return await _confirm(ledger, mine, result)


def _is_just_written(known: Effect, mine: Effect) -> bool:
    return known.run == mine.run and known.created_at == known.updated_at


async def _take_back(ledger: Ledger, mine: Effect) -> None:
    with contextlib.suppress(StoreError, LeaseLost):
        [known] = await ledger.intend([mine])
        if known.state is EffectState.INTENDED and _is_just_written(known, mine):
            await _write(ledger, mine, EffectState.FAILED, error="stopped before the call")


async def _left(ledger: Ledger, effect: Effect, span: Duration) -> timedelta | None:
    """How much is left of a span that began when the effect was last written; None if nothing."""
    left = effect.updated_at + milliseconds(span) - await ledger.now()
    return timedelta(milliseconds=left) if left > 0 else None


async def _confirm(ledger: Ledger, effect: Effect, result: T) -> T:
    try:
        data = plain(result)
    except PayloadError as error:
        # The effect is a fact, and a later attempt must neither repeat it nor go on without it.
        told = f"'{effect.name}' happened, but its result cannot be kept: {error}"
        await _write(ledger, effect, EffectState.UNKNOWN, error=_text(error))
        raise ProviderUncertain(
            f"{told}. Return plain data (a code, a dict) from the call, and tell this job what "
            "came of it with `relevo effects confirm`"
        ) from error
    await _write(ledger, effect, EffectState.CONFIRMED, result=data)
    return result


async def _write(ledger: Ledger, effect: Effect, state: EffectState, **changes: Any) -> None:
    changed = msgspec.structs.replace(effect, state=state, **changes)
    [written] = await ledger.conclude([changed])
    if not written:
        raise LeaseLost(f"another run has confirmed '{effect.name}' of job {effect.job}")


def _stored(effect: Effect, type: type[T] | None) -> T:
    value = msgspec.json.decode(unsealed(effect.result or b"null"))
    if type is None:
        return cast("T", value)
    if hasattr(type, "model_validate"):
        return cast("Any", type).model_validate(value)
    return msgspec.convert(value, type)


def _text(error: BaseException) -> str:
    try:
        return scrub(f"{error.__class__.__name__}: {error}")[:1_000]
    except Exception:  # noqa: BLE001 - an exception may raise anything when it is printed
        return error.__class__.__name__
