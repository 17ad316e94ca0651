"""Rules for transactions: what must not happen in one, beside it, or after it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from relevo.check.application import Application
from relevo.check.calls import chain, transaction
from relevo.check.outline import Function, branches, dotted, words
from relevo.check.outside import Kind, is_context, is_enqueue
from relevo.check.report import Finding


def once_in_transaction(app: Application) -> Iterator[Finding]:
    """RV011: ctx.once() inside ctx.transaction()."""
    for function in app.project.functions:
        for call in app.calls.of(function):
            if call.place.is_own and (way := app.calls.onces.way(call)):
                told = chain([function.name, *way])
                yield Finding(function.module, call.node, f"once() inside a transaction: {told}")


def call_in_transaction(app: Application) -> Iterator[Finding]:
    """RV012: a call outside while a transaction is open."""
    for function in app.project.functions:
        for call in app.calls.of(function):
            if not call.place.transaction:
                continue
            way = app.calls.outside.way(call)
            if (
                way is None
                and not call.place.is_own
                and call.touch
                and call.touch.kind is Kind.ONCE
            ):
                way = [call.touch.label]
            if way:
                told = f"{call.place.transaction} stays open during {chain(way)}"
                yield Finding(function.module, call.node, told)


def enqueue_outside(app: Application) -> Iterator[Finding]:
    """RV013: a command enqueued after, or beside, the transaction that it belongs to."""
    for function in app.project.functions:
        calls = app.calls.of(function)
        if any(is_enqueue(app.project, call.node, function) for call in calls):
            yield from _Story(app, function).tell().beside


def work_after(app: Application) -> Iterator[Finding]:
    """RV022: work behind the block of ctx.transaction(), which is open until the worker returns."""
    for function in app.project.functions:
        if any(call.place.is_own for call in app.calls.of(function)) or _opens(app, function):
            yield from _Story(app, function).tell().late


def _opens(app: Application, function: Function) -> bool:
    return any(
        transaction(call.node) and is_context(app.project, call.node.func, function)
        for call in app.calls.of(function)
    )


State: TypeAlias = str | None
"""The commit that lies behind us ("" for none); None where a return or raise has ended the way."""

_SESSION = re.compile(r"_*(?:\w+_)?(?:session|tx|db|conn|connection|transaction|uow|cursor)")
_WRITES = words(
    "add add_all delete merge flush execute executemany insert update upsert save "
    "bulk_save_objects bulk_insert_mappings bulk_update_mappings run_sync"
)
_READS = re.compile(
    r"(?:get|find|fetch|list|load|read|select|count|exists|is|has|scalars?)(?:_\w+)?"
)


class _Story:
    """Follows a function from top to bottom, with the last commit in mind."""

    def __init__(self, app: Application, function: Function) -> None:
        self._app = app
        self._function = function
        self._own: set[str] = set()  # the texts of ctx.transaction()
        roles = app.roles
        repeated = {**roles.workers, **roles.listeners, **roles.pollers, **roles.webhooks}
        self._is_repeated = function in repeated
        self._calls = {call.node: call for call in app.calls.of(function)}
        self.beside: list[Finding] = []
        self.late: list[Finding] = []

    def tell(self) -> _Story:
        self._block(self._function.node.body, "", "")
        return self

    def _block(self, statements: Sequence[ast.stmt], state: State, beside: str) -> State:
        for statement in statements:
            if state is None:
                return None
            state = self._statement(statement, state, beside)
        return state

    def _statement(self, node: ast.stmt, state: str, beside: str) -> State:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return state
            case ast.If():
                return self._if(node, state, beside)
            case ast.For() | ast.AsyncFor() | ast.While():
                head = node.test if isinstance(node, ast.While) else node.iter
                before = self._expression(head, state, beside)
                after = self._block(node.body, before, beside)
                return self._block(node.orelse, _either(before, after) or "", beside)
            case ast.Try() | ast.TryStar():
                after = self._block(node.body, state, beside)
                ends = [self._block(handler.body, state, beside) for handler in node.handlers]
                ends.append(self._block(node.orelse, after, beside) if after is not None else None)
                left = _either(*ends)
                last = self._block(node.finalbody, left or state, beside)
                return None if left is None else last
            case ast.With() | ast.AsyncWith():
                return self._with(node, state, beside)
            case ast.Match():
                state = self._expression(node.subject, state, beside)
                return _either(
                    state, *(self._block(case.body, state, beside) for case in node.cases)
                )
            case ast.Return() | ast.Raise():
                self._expression(node, state, beside)
                return None
            case _:
                return self._expression(node, state, beside)

    def _if(self, node: ast.If, state: str, beside: str) -> State:
        # elif is an if inside else, as deep as the chain is long: a loop, not a call.
        ends: list[State] = []
        while True:
            state = self._expression(node.test, state, beside)
            ends.append(self._block(node.body, state, beside))
            if len(node.orelse) != 1 or not isinstance(node.orelse[0], ast.If):
                return _either(*ends, self._block(node.orelse, state, beside))
            node = node.orelse[0]

    def _with(self, node: ast.With | ast.AsyncWith, state: str, beside: str) -> State:
        own, opened = False, ""
        names: set[str] = set()
        for item in node.items:
            state = self._expression(item.context_expr, state, beside)
            if isinstance(item.optional_vars, ast.Name):
                names.add(item.optional_vars.id)
            text = transaction(item.context_expr)
            if text and isinstance(item.context_expr, ast.Call):
                opened = text
                own = own or is_context(self._app.project, item.context_expr.func, self._function)
                names.update(dotted(item.context_expr)[-2:-1])
        if own:
            # Here enqueue joins by itself, and what was committed before is another matter.
            self._own.add(opened)
            return None if self._block(node.body, "", "") is None else opened
        if opened and _wrote(node, names):
            return None if self._block(node.body, "", opened) is None else opened
        return self._block(node.body, state, beside)

    def _expression(self, node: ast.AST, state: str, beside: str) -> str:
        for call in _calls(node):
            steps = dotted(call.func)
            if (
                steps[-1:] == ["commit"]
                and not call.args
                and _SESSION.fullmatch((steps[-2:-1] or [""])[0])
            ):
                state = ".".join(steps[-2:]) + "()"
            elif is_enqueue(self._app.project, call, self._function) and not _has_tx(call):
                label = ".".join(steps[-2:])
                is_repeated = self._is_repeated or is_context(
                    self._app.project, call.func, self._function
                )
                if beside:
                    self._add(call, f"{label} does not join {beside}, in which it stands")
                elif state in self._own:
                    self._add(call, f"{label} comes after {state}, whose commit ends the job")
                elif state and not is_repeated:
                    # A run or a delivery that breaks off there is repeated, and orders it then.
                    self._add(call, f"{label} comes after {state}; a crash in between loses it")
            elif state in self._own and self._is_work(call):
                told = f"{'.'.join(steps[-2:])} comes after {state}, which is open until the return"
                self.late.append(Finding(self._function.module, call, told))
        return state

    def _is_work(self, call: ast.Call) -> bool:
        """Whether a call waits for something: it is awaited, or leaves the process."""
        known = self._calls.get(call)
        if known is None:
            return False
        return known.place.is_awaited or self._app.calls.outside.way(known) is not None

    def _add(self, call: ast.Call, message: str) -> None:
        self.beside.append(Finding(self._function.module, call, message))


def _either(*states: State) -> State:
    """What lies behind us when several ways meet: the commit of any of them."""
    alive = [state for state in states if state is not None]
    return max(alive, key=bool) if alive else None


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of an expression in the order of the text, without those that a lambda keeps."""
    pending = [node]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.Lambda):
            pending.extend(reversed(branches(node)))


def _has_tx(call: ast.Call) -> bool:
    for keyword in call.keywords:
        if keyword.arg is None:
            return True
        if keyword.arg == "tx":
            return not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None)
    return False


_NO_ROWS = re.compile(
    r"\s*(?:select|with\s(?!.*\b(?:insert|update|delete)\b)|show|explain|pragma|set|create|alter"
    r"|drop|analyze|vacuum|lock)\b",
    re.I | re.S,
)


def _is_read(given: ast.expr, read: set[str]) -> bool:
    """Whether a statement only reads, or makes tables: select(…), text("select …"), such a name."""
    if isinstance(given, ast.Name):
        return given.id in read
    if "select" in dotted(given)[:1]:
        return True
    if isinstance(given, ast.Call) and dotted(given.func)[-1:] == ["text"] and given.args:
        given = given.args[0]
    text = given.value if isinstance(given, ast.Constant) else None
    return isinstance(text, str) and _NO_ROWS.match(text) is not None


def _wrote(node: ast.With | ast.AsyncWith, names: set[str]) -> bool:
    """Whether a transaction's block writes with one of its names, or hands one to who may."""
    read = {
        target.id
        for each in ast.walk(node)
        if isinstance(each, ast.Assign) and _is_read(each.value, set())
        for target in each.targets
        if isinstance(target, ast.Name)
    }
    for statement in node.body:
        for call in _calls(statement):
            steps = dotted(call.func)
            is_write = steps[-2:-1] and steps[-2] in names and steps[-1] in _WRITES
            if is_write and not any(_is_read(each, read) for each in call.args[:1]):
                return True
            given = [*call.args, *(each.value for each in call.keywords if each.arg != "tx")]
            is_given = any(isinstance(each, ast.Name) and each.id in names for each in given)
            if is_given and steps and not _READS.fullmatch(steps[-1]):
                return True
    return False
