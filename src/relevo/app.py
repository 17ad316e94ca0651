"""App: its workers, listeners, pollers and schedules, told apart by annotation.

app = App("cars", workers=[book_supplier], listeners=[book])     # or, in a single file,

@app.worker
async def book_supplier(order: BookSupplier, ctx: Context) -> None: ...
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast, overload

from relevo.backoff import Backoff
from relevo.client_errors import Rows, error_rows
from relevo.clock import Duration, duration, milliseconds
from relevo.errors import DefinitionError
from relevo.events import Value
from relevo.job import queue_name, slug
from relevo.message import (
    DEFAULT_BACKOFF,
    DEFAULT_TIMEOUT,
    Command,
    Event,
    Message,
    Spec,
    attempts_of,
    backoff_of,
    codec,
    time_limit,
)
from relevo.poller import HEARTBEAT, Mend, Over, Poller, poller
from relevo.route import Key, Site, SourceOf, Verify, Webhook, webhook
from relevo.schedule import Missed, Schedule, schedule

F = TypeVar("F", bound=Callable[..., Any])

Resource: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""Of the engine; what it yields is open while the engine is, and found by its type with use()."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}", re.ASCII)
_LISTENER = re.compile(r"[a-z0-9][a-z0-9_-]{0,60}", re.ASCII)
_BASES = (Message, Command, Event)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a listener tells the store of itself, beside its queue."""

    name: str  # the app's and the listener's, as app.listener
    since: timedelta | None  # how far back it gets what was published before it was registered
    where: dict[str, list[Value]]


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """A function, the message it takes, and the queue its jobs come from."""

    app: str
    function: Callable[..., Any]
    message: type[Message]
    spec: Spec
    is_async: bool
    takes_context: bool
    subscription: Subscription | None = None  # of a listener
    is_guarded: bool = field(init=False)
    """Whether a breaker or a rate may make its jobs wait for each other's provider."""

    def __post_init__(self) -> None:
        spec = self.spec
        is_guarded = any(each is not None for each in (spec.dependency, spec.rate, spec.lane_rate))
        object.__setattr__(self, "is_guarded", is_guarded)

    @property
    def name(self) -> str:
        return f"{self.function.__module__}.{_label(self.function)}"


@dataclass(frozen=True, slots=True)
class Listener:
    """A listener with options of its own, for the list form; made by listener()."""

    function: Callable[..., Any]
    options: dict[str, Any]


def listener(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    since: Duration | None = None,
    where: Mapping[str, Value | Sequence[Value]] | None = None,
    queue: str | None = None,
    attempts: int = 3,
    backoff: Backoff = DEFAULT_BACKOFF,
    timeout: Duration = DEFAULT_TIMEOUT,
    keep: Duration = "7d",
) -> Listener:
    """`App("shop", listeners=[listener(send_welcome, attempts=5)])`.

    The store knows a listener by its app and its `name`, which is that of the function unless it is
    given: under another name it is another subscriber. With `since` it gets what was published so
    long before it was first registered, as far as that is kept. With `where` it gets only the
    events whose fields have the given value, or one of those given.
    """
    return Listener(
        function,
        {
            "name": name,
            "since": since,
            "where": where,
            "queue": queue,
            "attempts": attempts,
            "backoff": backoff,
            "timeout": timeout,
            "keep": keep,
        },
    )


class App:
    """What one application offers. Making one has no effect until an engine is given it."""

    def __init__(
        self,
        name: str,
        *,
        workers: Iterable[Callable[..., Any]] = (),
        listeners: Iterable[Callable[..., Any] | Listener] = (),
        pollers: Iterable[Poller] = (),
        schedules: Iterable[Schedule] = (),
        webhooks: Iterable[Webhook] = (),
        sites: Iterable[Site] = (),
        resources: Iterable[Resource] = (),
        errors: Rows = (),
        migrations: str | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise DefinitionError(
                f"{name!r:.60} is not an app name: write lower-case letters, digits, '-' or '_'"
            )
        self.name = name
        self.workers: list[Binding] = []
        self.listeners: list[Binding] = []
        self.pollers = list(pollers)
        self.schedules = list(schedules)
        self.webhooks = list(webhooks)
        self.sites = list(sites)
        self.resources = list(resources)
        self.errors = error_rows(errors)  # asked before the table of client_errors
        self.migrations = migrations  # the package of its tables' revisions; see apps/tables.py
        names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage] - annotations may name classes of the caller's function
        for function in workers:
            self._add_worker(function, names)
        for item in listeners:
            made = item if isinstance(item, Listener) else listener(item)
            self._add_listener(made, names)

    def worker(self, function: F) -> F:
        """Carry out the command that the first parameter is annotated with."""
        self._add_worker(function, sys._getframe(1).f_locals)  # pyright: ignore[reportPrivateUsage] - as above
        return function

    @overload
    def listener(self, function: F) -> F: ...

    @overload
    def listener(
        self,
        function: None = None,
        *,
        name: str | None = None,
        since: Duration | None = None,
        where: Mapping[str, Value | Sequence[Value]] | None = None,
        queue: str | None = None,
        attempts: int = 3,
        backoff: Backoff = DEFAULT_BACKOFF,
        timeout: Duration = DEFAULT_TIMEOUT,
        keep: Duration = "7d",
    ) -> Callable[[F], F]: ...

    def listener(self, function: Callable[..., Any] | None = None, **options: Any) -> Any:
        """React to the event that the first parameter is annotated with; see listener()."""
        names = sys._getframe(1).f_locals  # pyright: ignore[reportPrivateUsage] - as above

        def add(function: F) -> F:
            self._add_listener(listener(function, **options), names)
            return function

        return add if function is None else add(function)

    def webhook(
        self,
        path: str,
        *,
        source: SourceOf | None = None,
        verify: Verify | None = None,
        key: Key | None = None,
        types: Sequence[str] = (),
        **options: Any,
    ) -> Callable[[F], F]:
        """Handle the calls of a provider at a path; the options are those of webhook()."""

        def add(function: F) -> F:
            made = webhook(
                path, function, source=source, verify=verify, key=key, types=types, **options
            )
            self.webhooks.append(made)
            return function

        return add

    def poller(
        self,
        template: str,
        *,
        over: Over | None = None,
        every: Duration = "15s",
        jitter: Duration = "500ms",
        backoff: Backoff | None = None,
        timeout: Duration = "5m",
        heartbeat: Duration = HEARTBEAT,
        mend: Mend | None = None,
    ) -> Callable[[F], F]:
        """Run an async function again and again for each key, one runner a key in the fleet.

        A key whose turn was due longer ago than `heartbeat`, and has not ended, is shown as silent.
        `mend` takes an item of `poll.bad()` once more when a person retries it.
        """

        def add(function: F) -> F:
            self.pollers.append(
                poller(
                    template,
                    function,
                    app=self.name,
                    over=over,
                    every=every,
                    jitter=jitter,
                    backoff=backoff,
                    timeout=timeout,
                    heartbeat=heartbeat,
                    mend=mend,
                )
            )
            return function

        return add

    def schedule(
        self, cron: str, *, tz: str = "UTC", missed: Missed = "last", name: str | None = None
    ) -> Callable[[F], F]:
        """Enqueue the command that the function gives, at each tick, once in the whole fleet."""

        def add(function: F) -> F:
            self.schedules.append(
                schedule(
                    cron,
                    function,
                    app=self.name,
                    tz=tz,
                    missed=missed,
                    name=name,
                )
            )
            return function

        return add

    def _add_worker(self, function: Callable[..., Any], names: dict[str, Any]) -> None:
        takes = _parameters(function, names)
        message = takes.message
        if not issubclass(message, Command):
            raise DefinitionError(
                f"{_label(function)} takes {message.__name__}, which is no Command: "
                "a worker carries out a Command, a listener reacts to an Event"
            )
        self.workers.append(self._bind(function, takes, message.__relevo__))

    def _add_listener(self, item: Listener, names: dict[str, Any]) -> None:
        function, options = item.function, item.options
        takes = _parameters(function, names)
        message = takes.message
        if not issubclass(message, Event):
            raise DefinitionError(
                f"{_label(function)} takes {message.__name__}, which is no Event: "
                "a listener reacts to an Event, a worker carries out a Command"
            )
        name, since = self._listener_name(function, options["name"]), options["since"]
        subscription = Subscription(
            f"{self.name}.{name}",
            None if since is None else duration(since),
            _where(options["where"], message, _label(function)),
        )
        spec = replace(
            message.__relevo__,
            queue=queue_name(options["queue"] or f"{self.name}:listeners:{name}"),
            attempts=attempts_of(options["attempts"], _label(function)),
            backoff=backoff_of(options["backoff"], _label(function)),
            timeout=time_limit(options["timeout"]),
            keep=milliseconds(options["keep"]),
        )
        self.listeners.append(self._bind(function, takes, spec, subscription))

    def _bind(
        self,
        function: Callable[..., Any],
        takes: _Takes,
        spec: Spec,
        subscription: Subscription | None = None,
    ) -> Binding:
        codec(takes.message)
        called = _called(function)
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise DefinitionError(
                f"{_label(function)} yields: calling it would run none of it. Return, and enqueue "
                "what comes next"
            )
        is_async = inspect.iscoroutinefunction(called)
        if not is_async and inspect.iscoroutinefunction(inspect.unwrap(called)):
            function, is_async = _awaited(function), True  # a plain decorator around an async one
        if is_async and takes.is_plain:
            raise DefinitionError(
                f"{_label(function)} is an `async def`, and PlainContext is what a plain `def` "
                "worker gets: annotate it with Context, and await its methods"
            )
        if spec.isolate:
            _check_isolated(function, is_async)
        return Binding(
            self.name, function, takes.message, spec, is_async, takes.context, subscription
        )

    def _listener_name(self, function: Callable[..., Any], given: str | None) -> str:
        """The name of a listener within its app: moving it to another file changes nothing."""
        if given is None:
            if not hasattr(function, "__name__"):
                raise DefinitionError(
                    f"{_label(function)} has no name: say listener(…, name='send-receipt')"
                )
            return slug(function.__name__)
        if not isinstance(given, str) or not _LISTENER.fullmatch(given):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
            raise DefinitionError(
                f"{given!r:.60} is not a listener's name: write lower-case letters, digits, '-' or "
                "'_', such as 'send-receipt'"
            )
        return given


def _where(given: Any, event: type[Event], owner: str) -> dict[str, list[Value]]:
    """The filter of a listener, each field with a list of values; DefinitionError for another."""
    if given is None:
        return {}
    names = {each.name for each in fields(event)}
    if not isinstance(given, Mapping) or not given:
        raise DefinitionError(
            f"{owner}: where= says which values fields have: where={{'country': ['IT', 'ES']}}"
        )
    found: dict[str, list[Value]] = {}
    for name, said in cast("Mapping[str, Any]", given).items():
        values = cast("list[Any]", [*said] if isinstance(said, list | tuple | set) else [said])
        if name not in names:
            raise DefinitionError(
                f"{owner}: where= names {name!r:.60}, and {event.__name__} has "
                f"{', '.join(sorted(names)) or 'no fields'}"
            )
        if not all(isinstance(value, str | int | float | bool | None) for value in values):
            raise DefinitionError(
                f"{owner}: where={{{name!r}: …}} compares with text, numbers, true, false or null, "
                f"not {said!r:.60}"
            )
        found[name] = values
    return found


def _label(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _check_isolated(function: Callable[..., Any], is_async: bool) -> None:
    """DefinitionError where a child process cannot run a function."""
    label = _label(function)
    if is_async:
        raise DefinitionError(
            f"{label} is an `async def`, and isolate='process' runs a plain `def` in a child "
            "process: write it as `def`, with asyncio.run(…) for what is async"
        )
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise DefinitionError(
            f"{label} has isolate='process', and its child process imports it by its name: define "
            "it with `def` at the top level of a module"
        )


def _called(function: Callable[..., Any]) -> Callable[..., Any]:
    """What runs when it is called; of an object, its method."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    if inspect.isroutine(function):
        return function
    return function.__call__


def _awaited(function: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function that gives something to await, as an async one."""

    @functools.wraps(function)
    async def called(*given: Any) -> Any:
        value = function(*given)
        return await value if inspect.isawaitable(value) else value

    return called


class _Takes(NamedTuple):
    """What a worker or listener takes: its message, and a context of either kind."""

    message: type[Message]
    context: bool
    is_plain: bool  # the context is annotated as that of a plain `def`


def _parameters(function: Callable[..., Any], names: dict[str, Any]) -> _Takes:
    """What a function takes, by its annotations."""
    # They know the engine, which knows apps.
    from relevo.context import Context
    from relevo.plain_context import PlainContext

    label = _label(function)
    known = {"Context": Context, "PlainContext": PlainContext, **names}
    try:
        signature = inspect.signature(function, eval_str=True, locals=known)
    except (NameError, TypeError, ValueError) as error:
        raise DefinitionError(f"cannot read the annotations of {label}: {error}") from error
    parameters = list(signature.parameters.values())
    by_name = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    if not 1 <= len(parameters) <= 2 or any(each.kind in by_name for each in parameters):
        raise DefinitionError(
            f"{label} takes {len(parameters)} parameters; write (order: YourCommand) or "
            "(order: YourCommand, ctx: Context)"
        )
    message = parameters[0].annotation
    if not (isinstance(message, type) and issubclass(message, Message)) or message in _BASES:
        raise DefinitionError(
            f"the first parameter of {label} must be annotated with a Command or an Event of yours"
        )
    context = parameters[1].annotation if len(parameters) == 2 else None
    return _Takes(message, len(parameters) == 2, context is PlainContext)
