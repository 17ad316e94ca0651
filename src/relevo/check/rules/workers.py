"""Rules for workers: effects outside happen once, and rows are made once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from relevo.check.application import Application
from relevo.check.calls import chain, walk
from relevo.check.outline import Function, Outside, dotted
from relevo.check.report import Finding


def effect_outside_once(app: Application) -> Iterator[Finding]:
    """RV010: a worker or listener changes something outside without ctx.once()."""
    for function in {**app.roles.workers, **app.roles.listeners}:
        for call in app.calls.of(function):
            if way := app.calls.effects.way(call):
                told = chain([function.name, *way])
                yield Finding(function.module, call.node, f"a second run repeats this: {told}")


def unkeyed_rows(app: Application) -> Iterator[Finding]:
    """RV014: rows made outside ctx.transaction() by a worker whose command has no key."""
    for worker, command in app.roles.workers.items():
        declared = app.roles.commands.get(command) if command else None
        if declared is None or not declared.lacks("key"):
            continue
        for node, place in walk(app.project, worker):
            if isinstance(node, ast.Call) and not place.is_own and _makes_rows(app, node, worker):
                wrong = f"a second run of {worker.name} makes these rows again"
                yield Finding(worker.module, node, f"{wrong}: {declared.cls.name} has no key")


def _makes_rows(app: Application, call: ast.Call, scope: Function) -> bool:
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in ("add", "add_all", "execute"):
        return False
    value = app.project.value(func.value, scope)
    if value is None:
        is_session = dotted(func.value)[-1:] in (["session"], ["db_session"], ["tx"])
    else:
        is_session = isinstance(value, Outside) and value.dotted.startswith("sqlalchemy.")
    return is_session and (func.attr != "execute" or _inserts(app, call, scope))


def _inserts(app: Application, call: ast.Call, scope: Function) -> bool:
    """Whether what is executed is an insert that minds no conflict."""
    given = call.args[0] if call.args else None
    if not isinstance(given, ast.Call):
        return False
    steps = dotted(given)
    value = app.project.value(given, scope)
    is_insert = isinstance(value, Outside) and value.dotted.startswith("sqlalchemy.")
    return is_insert and steps[0] == "insert" and not any("conflict" in step for step in steps)
