"""Rules for what must not wait: handlers, and whatever shares an event loop."""

from __future__ import annotations

from collections.abc import Iterator

from relevo.check.application import Application
from relevo.check.calls import chain
from relevo.check.report import Finding


def slow_handler(app: Application) -> Iterator[Finding]:
    """RV001: an HTTP or webhook handler waits for slow work."""
    for handler in app.roles.handlers:
        for call in app.calls.of(handler):
            if way := app.calls.slow.way(call):
                told = chain([handler.name, *way])
                yield Finding(handler.module, call.node, f"the answer waits for slow work: {told}")


def blocked_loop(app: Application) -> Iterator[Finding]:
    """RV002: an async handler, worker, listener or poller makes a blocking call."""
    roles = app.roles
    for function in {**roles.handlers, **roles.workers, **roles.listeners, **roles.pollers}:
        for call in app.calls.of(function) if function.is_async else ():
            if way := app.calls.blocking.way(call):
                told = chain([function.name, *way])
                yield Finding(function.module, call.node, f"the event loop is blocked: {told}")
