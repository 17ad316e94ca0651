"""The calls of a function, where in it they stand, and what they lead to, however deep."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from relevo.check.names import Project
from relevo.check.outline import Function, Module, Outside, Scope, branches, dotted, words
from relevo.check.outside import Kind, Touch, hands_over, is_context, named, touch

_WITHS = words("transaction begin begin_nested atomic")
_TRACERS = ("sentry_sdk", "elasticapm", "newrelic", "opentelemetry", "ddtrace")
_THREADS = words("to_thread run_in_executor run_sync run_in_threadpool")
_AWAITS = words("gather wait_for create_task ensure_future shield as_completed")


@dataclass(frozen=True, slots=True)
class Place:
    """Where in its function a call stands."""

    transaction: str = ""  # the text of the innermost one that is open
    is_own: bool = False  # … and it is ctx.transaction()
    in_once: bool = False
    in_thread: bool = False
    in_call: bool = False  # in a lambda that once() calls, in a thread if it gives no awaitable
    is_awaited: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """One call in a function: what it runs of the files read, and what it touches itself."""

    node: ast.Call
    place: Place
    target: Function | None
    touch: Touch | None


_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SPECIAL = (
    *_DEFINITIONS,
    *(ast.With, ast.AsyncWith, ast.AsyncFor, ast.Await, ast.Call),
    *(ast.Starred, ast.GeneratorExp, ast.ListComp),
)


def walk(project: Project, function: Function) -> Iterator[tuple[ast.AST, Place]]:
    """The nodes of a function in their order, without those of functions inside it.

    Names and constants are left out.
    """
    pending: list[tuple[ast.AST, Place]] = [(each, Place()) for each in function.node.body[::-1]]
    while pending:
        node, place = pending.pop()
        yield node, place
        plain = replace(place, is_awaited=False) if place.is_awaited else place
        inside: list[tuple[ast.AST, Place]]
        if not isinstance(node, _SPECIAL):
            pending += [(each, plain) for each in reversed(branches(node))]
            continue
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.With() | ast.AsyncWith():
                inside = []
                for item in node.items:
                    is_async = isinstance(node, ast.AsyncWith)
                    inside.append((item.context_expr, replace(plain, is_awaited=is_async)))
                    plain = _within(project, item.context_expr, function, plain)
                inside += [(each, plain) for each in node.body]
            case ast.Await():
                inside = [(node.value, replace(place, is_awaited=True))]
            case ast.AsyncFor():
                inside = [(node.iter, replace(place, is_awaited=True))]
                inside += [(each, plain) for each in (*node.body, *node.orelse)]
            case ast.Call():
                word = (dotted(node.func) or [""])[-1]
                given = plain
                if word == "once":
                    given = replace(plain, in_once=True)
                elif word in _AWAITS:
                    given = replace(plain, is_awaited=True)
                inside = [(node.func, plain)]
                for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                    is_late = word in _THREADS and isinstance(each, ast.Lambda)
                    inner = replace(given, in_thread=True) if is_late else given
                    if word == "once" and isinstance(each, ast.Lambda):
                        inner = replace(inner, in_call=True)
                    inside.append((each, inner))
            case _:
                inside = [(each, place) for each in branches(node)]  # gather(*(f(x) for x in y))
        pending.extend(reversed(inside))


def _within(project: Project, opened: ast.expr, function: Function, place: Place) -> Place:
    text = transaction(opened)
    if not text or place.is_own:
        return place
    is_own = isinstance(opened, ast.Call) and is_context(project, opened.func, function)
    return replace(place, transaction=text, is_own=is_own)


def transaction(opened: ast.expr) -> str:
    """The text of what a with statement opens, if it is a transaction."""
    steps = dotted(opened) if isinstance(opened, ast.Call) else []
    if not steps or steps[-1] not in _WITHS or steps[0] in _TRACERS:
        return ""
    return ".".join(filter(None, steps[-3:])) + "()"


class Calls:
    """The calls of every function of a project."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self._of: dict[Function, list[Call]] = {}
        self._hands_over: dict[Function, bool] = {}
        self._depends: dict[Module, bool] = {}

    def of(self, function: Function) -> list[Call]:
        if function not in self._of:
            self._of[function] = list(self._read(function))
        return self._of[function]

    def _read(self, function: Function) -> Iterator[Call]:
        for node in _dependencies(function) if self._has_dependencies(function.module) else ():
            yield from self._reference(node, node.args[0], Place(), function.module)
        for node, place in walk(self.project, function):
            if not isinstance(node, ast.Call):
                continue
            yield self._call(node, place, function)
            if (dotted(node.func) or [""])[-1] in _THREADS:
                late = replace(place, in_thread=True)
                for each in node.args[:2]:
                    yield from self._reference(node, each, late, function)

    def _has_dependencies(self, module: Module) -> bool:
        if module not in self._depends:
            self._depends[module] = any("Depends(" in line for line in module.source.lines)
        return self._depends[module]

    def _call(self, node: ast.Call, place: Place, scope: Scope) -> Call:
        target = self.project.called(self.project.value(node.func, scope))
        touched = touch(self.project, node, scope, place.is_awaited)
        if target and touched and not touched.is_sure and self._gives_away(target):
            touched = None
        return Call(node, place, target, touched)

    def _reference(
        self, node: ast.Call, given: ast.expr, place: Place, scope: Scope
    ) -> Iterator[Call]:
        """A function that is handed over to be called: to_thread(f, …), Depends(f)."""
        if isinstance(given, ast.Call) and dotted(given.func)[-1:] == ["partial"] and given.args:
            given = given.args[0]
        if not isinstance(given, ast.Name | ast.Attribute):
            return
        value = self.project.value(given, scope)
        touched = named(value.dotted, (), False) if isinstance(value, Outside) else None
        target = self.project.called(value)
        if target or touched:
            yield Call(node, place, target, touched)

    def _gives_away(self, function: Function) -> bool:
        if function not in self._hands_over:
            self._hands_over[function] = hands_over(function)
        return self._hands_over[function]

    # what is reached, for each of the questions that the rules ask

    @cached_property
    def slow(self) -> Reach:
        return Reach(self, lambda call: call.touch is not None, lambda call: True)

    @cached_property
    def blocking(self) -> Reach:
        return Reach(
            self,
            lambda call: not _may_block(call) and _is(call, "is_blocking"),
            lambda call: not _may_block(call),
        )

    @cached_property
    def effects(self) -> Reach:
        return Reach(
            self,
            lambda call: not call.place.in_once and _is(call, "is_effect"),
            lambda call: not call.place.in_once,
        )

    @cached_property
    def outside(self) -> Reach:
        return Reach(
            self,
            lambda call: not call.place.in_once and _is(call, "is_outside"),
            lambda call: not call.place.in_once,
        )

    @cached_property
    def onces(self) -> Reach:
        return Reach(
            self,
            lambda call: call.touch is not None and call.touch.kind is Kind.ONCE,
            lambda call: not call.place.in_once,
        )


def _may_block(call: Call) -> bool:
    """Whether it runs in a thread, where nothing else waits for it."""
    is_async = call.target is not None and isinstance(call.target.node, ast.AsyncFunctionDef)
    return call.place.in_thread or (call.place.in_call and not is_async)


def _is(call: Call, truth: str) -> bool:
    return call.touch is not None and bool(getattr(call.touch, truth))


class Reach:
    """Which functions lead to a certain kind of call, and by which way: the shortest.

    One walk backwards from the calls themselves answers for every function at once, whatever
    circles the functions make.
    """

    def __init__(
        self, calls: Calls, wants: Callable[[Call], bool], follows: Callable[[Call], bool]
    ) -> None:
        self._wants = wants
        self._follows = follows
        self._next: dict[Function, Function | str] = {}
        self._end: dict[Function, list[str]] = {}  # the last two names of the way
        callers: dict[Function, list[tuple[Function, Function | str]]] = {}
        sure: list[tuple[Function, Function | str]] = []
        guesses: list[tuple[Function, Function | str]] = []
        for function in calls.project.functions:
            for call in calls.of(function):
                if call.touch and self._wants(call):
                    (sure if call.touch.is_sure else guesses).append((function, call.touch.label))
                if call.target and follows(call):
                    callers.setdefault(call.target, []).append((function, call.target))
        # What a library tells comes before what a name suggests.
        for start in (sure, guesses):
            pending = deque(start)
            while pending:
                function, step = pending.popleft()
                if function not in self._next:
                    self._next[function] = step
                    is_last = isinstance(step, str)
                    self._end[function] = [function.name, step] if is_last else self._end[step]
                    pending.extend(callers.get(function, ()))

    def way(self, call: Call) -> list[str] | None:
        """The names from a call to what it leads to: ["notify", "httpx.post"]; None if nowhere.

        The middle of a long way is left out.
        """
        touched = call.touch if self._wants(call) else None
        if touched and touched.is_sure:
            return [touched.label]
        if call.target in self._next and self._follows(call):
            return self._path(call.target)
        return [touched.label] if touched else None

    def _path(self, function: Function) -> list[str]:
        names: list[str] = []
        step: Function | str = function
        while isinstance(step, Function) and len(names) < 6:
            names.append(step.name)
            step = self._next[step]
        return [*names, step] if isinstance(step, str) else [*names[:3], "…", *self._end[step]]


def chain(names: list[str]) -> str:
    """`a → b → httpx.post`."""
    return " → ".join(names)


def _dependencies(function: Function) -> Iterator[ast.Call]:
    """The Depends(f) among a function's parameters: they run before it does."""
    spec = function.node.args
    given = [*spec.defaults, *(each for each in spec.kw_defaults if each)]
    given += [arg.annotation for arg in function.parameters if arg.annotation]
    for part in given:
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and dotted(node.func)[-1:] == ["Depends"] and node.args:
                yield node
