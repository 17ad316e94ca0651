"""relevo doctor: what is wrong, or could become so."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from relevo.cli.loading import queues_of
from relevo.cli.tables import span, table
from relevo.cli.terminal import OK, PROBLEM, UNAVAILABLE, AppOption, Terminal, Verbs, discreet
from relevo.desk import Desk
from relevo.errors import RelevoError, SettingsError, StoreError
from relevo.job import LIVE, State
from relevo.store import Finding, QueueMode

if TYPE_CHECKING:
    from relevo.app import App

SKEW = 2.0
"""Seconds by which this machine's clock may differ from the store's before it is worth a word."""


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("doctor")(doctor)


async def doctor(terminal: Terminal, app: AppOption = None) -> int:
    """Check settings, store, apps and queues; exit 1 if something is wrong."""
    findings: list[Finding] = []
    code = OK
    apps: list[App] = []
    try:
        terminal.settings  # noqa: B018 - reading it is the check
        findings.append(_ok("settings", "every setting can be read"))
    except SettingsError as error:
        findings.append(_error("settings", error))
    if not any(finding.level == "error" for finding in findings):
        try:
            apps = terminal.apps(app)
            names = ", ".join(each.name for each in apps) or "none are named"
            findings.append(_ok("apps", names))
        except RelevoError as error:
            findings.append(_error("apps", error))
        try:
            async with terminal.desk() as desk:
                findings += await _look(desk, apps)
        except StoreError as error:
            findings.append(_error("store", error))
            code = UNAVAILABLE
        except RelevoError as error:
            findings.append(_error("store", error))
    if code == OK and any(finding.level == "error" for finding in findings):
        code = PROBLEM
    columns = ("level", "subject", "message")
    rows = [(each.level, each.subject, each.message) for each in findings]
    terminal.show(findings, lambda: table(columns, rows))
    return code


async def _look(desk: Desk, apps: list[App]) -> list[Finding]:
    findings = [_ok("store", desk.store.url), *await desk.store.check()]
    skew = await desk.store.now() / 1000 - time.time()
    if abs(skew) > SKEW:
        findings.append(
            _warning("clock", f"this machine and the store differ by {span(abs(skew))}; run NTP")
        )
    workers = [worker for worker in await desk.workers() if not worker.silent]
    served = {queue for worker in workers for queue in worker.queues}
    known = {queue for app in apps for queue in queues_of(app)}
    for tally in await desk.queues():
        live = sum(tally.counts.get(state, 0) for state in LIVE)
        held = tally.counts.get(State.HELD, 0)
        if live and apps and tally.queue not in known:
            findings.append(
                _warning(tally.queue, f"{live:,} jobs, but no app here knows the queue")
            )
        elif live and tally.queue not in served:
            findings.append(
                _warning(tally.queue, f"{live:,} jobs and no worker: start `relevo work`")
            )
        if tally.mode is not QueueMode.OPEN:
            findings.append(
                _warning(tally.queue, f"is {tally.mode}: `relevo queues resume` opens it")
            )
        if held:
            findings.append(
                _warning(tally.queue, f"{held:,} held jobs wait for a person: `relevo effects ls`")
            )
    return findings


def _ok(subject: str, message: str) -> Finding:
    return Finding(level="ok", subject=subject, message=message)


def _warning(subject: str, message: str) -> Finding:
    return Finding(level="warning", subject=subject, message=message)


def _error(subject: str, error: Exception) -> Finding:
    return Finding(level="error", subject=subject, message=discreet(str(error)))
