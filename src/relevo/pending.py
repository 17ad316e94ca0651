"""Pending calls: what a run or a webhook's function has called and not yet awaited to the end.

A call that is never awaited does nothing, and Python says so in a warning that nobody reads. So
each call is noted when it is made, and crossed out when it has ended; what is left when the
function returns is an error that names it.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Concatenate, ParamSpec, TypeVar

from relevo.errors import MisuseError

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")


class Calls(dict["Pending[Any]", None]):
    """The calls that have not ended; `is_plain` in a function that cannot await any."""

    is_plain = False


class Pending(Coroutine[Any, Any, T]):
    """A call of a method that has to be awaited; asyncio takes it for the coroutine it stands for.

    The coroutine itself is made when it is first waited for, so that none is left lying about.
    """

    __slots__ = ("_calls", "_make", "_name", "_of", "_work")

    def __init__(
        self,
        calls: Calls,
        name: str,
        of: tuple[Any, ...],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> None:
        self._calls = calls
        self._name = name
        self._of = of
        self._make = make
        self._work: Coroutine[Any, Any, T] | None = None
        calls[self] = None

    @property
    def told(self) -> str:
        """The call as people know it."""
        return _told_call(self._name, self._of)

    def __await__(self) -> Generator[Any, Any, T]:
        try:
            return (yield from self._begun().__await__())
        finally:
            self._over()

    def send(self, value: Any) -> Any:
        return self._step(lambda work: work.send(value))

    def throw(self, kind: Any, value: Any = None, trace: Any = None, /) -> Any:
        error: BaseException = kind if isinstance(kind, BaseException) else value or kind()
        return self._step(lambda work: work.throw(error))

    def close(self) -> None:
        self._over()
        if self._work is not None:
            self._work.close()

    def _step(self, step: Callable[[Coroutine[Any, Any, T]], Any]) -> Any:
        try:
            return step(self._begun())
        except BaseException:
            self._over()
            raise

    def _begun(self) -> Coroutine[Any, Any, T]:
        if self._work is None:
            self._work = self._make()
        return self._work

    def _over(self) -> None:
        self._calls.pop(self, None)


def noted(
    face: str, calls: Callable[[Any], Calls | None]
) -> Callable[
    [Callable[Concatenate[S, P], Coroutine[Any, Any, T]]],
    Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
]:
    """A method whose calls are noted where `calls` says, if it says so; `face` is its object."""

    def decorated(
        method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
        name = f"{face}.{method.__name__}"
        of = "ctx" if face in ("ctx", "relevo") else f"ctx.{face}(…)"

        @functools.wraps(method)
        def call(self: S, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            noted_in = calls(self)
            if noted_in is None:
                return method(self, *args, **kwargs)
            if noted_in.is_plain and _is_in_a_thread():
                raise MisuseError(
                    f"{_told_call(name, args)} has to be awaited, which a plain `def` worker "
                    f"cannot do: write {of}.{method.__name__}(…), which needs no await there"
                )
            return Pending(noted_in, name, args, lambda: method(self, *args, **kwargs))

        return call

    return decorated


def check_awaited(calls: Calls) -> None:
    """MisuseError naming the first call that was never awaited; then all of them are forgotten."""
    if not calls:
        return
    told = next(iter(calls)).told
    more = f", and {len(calls) - 1} more like it" if len(calls) > 1 else ""
    calls.clear()
    raise MisuseError(
        f"{told} was not awaited{more}: without that nothing comes of it. Write `await {told}`"
    )


def _is_in_a_thread() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _told_call(name: str, given: tuple[Any, ...]) -> str:
    return f"{name}({_told(given[0]) if given else '…'})"


def _told(given: object) -> str:
    if isinstance(given, str):
        return repr(given[:80])
    return "[…]" if isinstance(given, list | tuple) else f"{type(given).__name__}(…)"
