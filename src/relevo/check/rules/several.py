"""Several calls inside one once(): only the last error would be judged, and none before it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from relevo.check.application import Application
from relevo.check.calls import Call
from relevo.check.outline import Function, Outside, dotted, words
from relevo.check.outside import Kind, is_context
from relevo.check.report import Finding

_DEPTH = 5
_KINDS = frozenset({Kind.HTTP, Kind.MAIL, Kind.MODEL, Kind.SERVICE})
_LIBRARY_RETRIES = words("tenacity backoff stamina retrying")
_LOOPS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def several_calls(app: Application) -> Iterator[Finding]:
    """RV023: a callable given to ctx.once() calls a provider after it has called one before."""
    for function in app.project.functions:
        for call in app.calls.of(function):
            node = call.node
            if dotted(node.func)[-1:] != ["once"] or not is_context(
                app.project, node.func, function
            ):
                continue
            given = next((each.value for each in node.keywords if each.arg == "call"), None)
            given = node.args[1] if len(node.args) > 1 else given
            told = _Walk(app).of(given, function) if given is not None else ""
            if told:
                yield Finding(function.module, node, f"one once() makes several calls: {told}")


@dataclass
class _Walk:
    """Follows a callable statement by statement, and remembers the first call that acts."""

    app: Application
    told: str = ""
    ends: dict[tuple[Function, str], str] = field(default_factory=dict["tuple[Function, str]", str])

    def of(self, given: ast.expr, scope: Function) -> str:
        """What is wrong with a callable; "" if it makes one call."""
        if isinstance(given, ast.Call) and dotted(given.func)[-1:] == ["partial"] and given.args:
            given = given.args[0]
        if isinstance(given, ast.Lambda):
            self.expressions([given.body], "", self.calls(scope))
        else:
            target = self.app.project.called(self.app.project.value(given, scope))
            if target is not None:
                self.function(target, "", 0)
        return self.told

    def calls(self, scope: Function) -> dict[ast.Call, Call]:
        return {each.node: each for each in self.app.calls.of(scope)}

    def function(self, function: Function, made: str, depth: int) -> str:
        """What has acted when a function has returned."""
        if (function, made) in self.ends:
            return self.ends[function, made]
        if depth > _DEPTH:
            return made
        self.ends[function, made] = made  # what a function that calls itself is taken for
        told = self.told
        block = _Block(self, self.calls(function), depth)
        end = block.run(function.node.body, made)
        if block.acted and not told and _is_retried(self.app, function):
            self.told = f"{function.name}() is repeated by its decorator"
        self.ends[function, made] = end or block.acted or made
        return self.ends[function, made]

    def expressions(
        self,
        nodes: Iterable[ast.AST],
        made: str,
        calls: dict[ast.Call, Call],
        depth: int = 0,
    ) -> str:
        """What has acted when some expressions have been evaluated."""
        for node in nodes:
            made = self.expression(node, made, calls, depth)
        return made

    def expression(self, node: ast.AST, made: str, calls: dict[ast.Call, Call], depth: int) -> str:
        match node:
            case ast.IfExp():
                made = self.expression(node.test, made, calls, depth)
                ways = (node.body, node.orelse)
                return next(
                    filter(None, [self.expression(e, made, calls, depth) for e in ways]), ""
                )
            case ast.Lambda() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return made
            case _ if isinstance(node, _LOOPS):
                inside = list(ast.iter_child_nodes(node))
                again = self.expressions(inside, made, calls, depth)
                return self.expressions(inside, again, calls, depth) if again != made else made
            case ast.Call():
                made = self.expressions(ast.iter_child_nodes(node), made, calls, depth)
                return self.call(calls.get(node), made, depth)
            case _:
                return self.expressions(ast.iter_child_nodes(node), made, calls, depth)

    def call(self, call: Call | None, made: str, depth: int) -> str:
        if call is None:
            return made
        touched = call.touch
        if touched is not None and touched.is_sure and touched.kind in _KINDS:
            if made and not self.told:
                again = "again" if made == touched.label else f"after {made}"
                self.told = f"{touched.label} {again}"
            return made or (touched.label if touched.is_effect else "")
        return self.function(call.target, made, depth + 1) if call.target else made


@dataclass
class _Block:
    """The statements of one function; each gives what has acted when the next one runs.

    None: the next one does not run.
    """

    walk: _Walk
    calls: dict[ast.Call, Call]
    depth: int
    acted: str = ""  # in any statement, also one that leaves the function
    rounds: list[list[str]] = field(default_factory=list["list[str]"])  # of `continue`, by loop
    ends: list[list[str]] = field(default_factory=list["list[str]"])  # of `break`

    def run(self, body: Sequence[ast.stmt], made: str | None) -> str | None:
        for statement in body:
            if made is None:
                return None
            made = self.statement(statement, made)
        return made

    def evaluate(self, nodes: Iterable[ast.AST | None], made: str) -> str:
        some = [each for each in nodes if each is not None]
        made = self.walk.expressions(some, made, self.calls, self.depth)
        self.acted = self.acted or made
        return made

    def statement(self, node: ast.stmt, made: str) -> str | None:
        match node:
            case ast.Return() | ast.Raise():
                self.evaluate(ast.iter_child_nodes(node), made)
                return None
            case ast.Break() | ast.Continue():
                (self.ends if isinstance(node, ast.Break) else self.rounds)[-1].append(made)
                return None
            case ast.If():
                made = self.evaluate([node.test], made)
                return _either(self.run(node.body, made), self.run(node.orelse, made))
            case ast.Match():
                made = self.evaluate([node.subject], made)
                ways = [self.run(case.body, made) for case in node.cases]
                return _either(made, *ways)
            case ast.For() | ast.AsyncFor():
                return self.loop(node, self.evaluate([node.iter], made))
            case ast.While():
                return self.loop(node, self.evaluate([node.test], made))
            case ast.With() | ast.AsyncWith():
                made = self.evaluate([each.context_expr for each in node.items], made)
                return self.run(node.body, made)
            case ast.Try() | ast.TryStar():
                return self.attempt(node, made)
            case _ if isinstance(node, _DEFINITIONS):
                return made
            case _:
                return self.evaluate(ast.iter_child_nodes(node), made)

    def loop(self, node: ast.For | ast.AsyncFor | ast.While, made: str) -> str | None:
        self.rounds.append([])
        self.ends.append([])
        again = _either(self.run(node.body, made), *self.rounds[-1])
        if again is not None and again != made:
            self.run(node.body, again)
        self.rounds.pop()
        ends = self.ends.pop()
        return _either(self.run(node.orelse, _either(made, again)), *ends)

    def attempt(self, node: ast.Try | ast.TryStar, made: str) -> str | None:
        outer, self.acted = self.acted, ""
        end = self.run(node.body, made)
        if end is not None:
            end = self.run(node.orelse, end)
        at_most = self.acted or made
        self.acted = outer or self.acted
        ways = [self.run(each.body, at_most) for each in node.handlers]
        end = _either(end, *ways)
        if node.finalbody:
            last = self.run(node.finalbody, at_most)
            return None if end is None or last is None else last
        return end


def _either(*ways: str | None) -> str | None:
    """What may have acted where several ways meet; None if none of them goes on."""
    going = [each for each in ways if each is not None]
    return next(filter(None, going), "") if going else None


def _is_retried(app: Application, function: Function) -> bool:
    for decorator in function.node.decorator_list:
        node = decorator.func if isinstance(decorator, ast.Call) else decorator
        value = app.project.value(node, function.module)
        if isinstance(value, Outside) and value.dotted.partition(".")[0] in _LIBRARY_RETRIES:
            return True
    return False
