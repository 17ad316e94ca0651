"""relevo map: the table of contents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from relevo.app import App
from relevo.cli.loading import limits_of
from relevo.cli.tables import span, table
from relevo.cli.terminal import OK, PROBLEM, AppOption, Terminal, Verbs
from relevo.message import Spec

COLUMNS = ("app", "role", "takes", "queue", "function", "attempts", "breaker", "limits")


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("map")(map_apps)


async def map_apps(terminal: Terminal, app: AppOption = None) -> int:
    """Print the table of contents: routes, workers, listeners, pollers, schedules, and queues."""
    rows = [
        {"app": each.name, **row}
        for each in terminal.apps(app)
        for row in (*_routes(each), *_queues(each))
    ]
    terminal.show(rows, lambda: table(COLUMNS, ([row[name] for name in COLUMNS] for row in rows)))
    if not rows:
        terminal.warn("no app to show: name one with --app module:attribute or RELEVO_APPS")
    return OK if rows else PROBLEM


def _routes(app: App) -> Iterator[dict[str, Any]]:
    for route in app.webhooks:
        methods = [*(route.methods or ("POST",)), *(["GET (challenge)"] if route.challenge else [])]
        tx = ", in one transaction" if "tx" in route.takes else ""
        yield _row("webhook", f"{', '.join(methods)} {route.path}{tx}", route.function)
    for site in app.sites:
        title = f" ({site.title})" if site.title else ""
        yield _row("site", f"{site.prefix}/…{title}", site.build)


def _queues(app: App) -> Iterator[dict[str, Any]]:
    for role, bindings in (("worker", app.workers), ("listener", app.listeners)):
        for each in bindings:
            takes = each.spec.kind
            if each.subscription is not None:
                takes += f" as {each.subscription.name}"
            yield _row(role, takes, each.function, each.spec)
    for poller in app.pollers:
        takes = f"{poller.template} every {span(poller.every.total_seconds())}"
        yield _row("poller", takes, poller.function, poller.command.__relevo__)
    for schedule in app.schedules:
        when = f"{schedule.cron} {schedule.tz}"
        yield _row("schedule", when, schedule.function, schedule.command.__relevo__)


def _row(role: str, takes: str, function: Any, spec: Spec | None = None) -> dict[str, Any]:
    breaker = None if spec is None else spec.breaker
    return {
        "role": role,
        "takes": takes,
        "queue": None if spec is None else spec.queue,
        "function": f"{function.__module__}.{function.__qualname__}",
        "attempts": None if spec is None else spec.attempts,
        "breaker": None if breaker is None else breaker.template,
        "limits": None if spec is None else limits_of(spec) or None,
    }
