"""relevo check: read source, or what waits in the store, and report what will hurt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from relevo.cli.terminal import AppOption, DatabaseOption, StoreOption

if TYPE_CHECKING:
    from relevo.check import Report
    from relevo.cli.terminal import Terminal

_PATHS = typer.Argument(help="Files or directories; the current one if none is given.")
_JSON = typer.Option("--json", help="Print one JSON array, nothing else.")
_SELECT = typer.Option(help="Only these rules, such as RV001,RV010.", metavar="CODES")
_IGNORE = typer.Option(help="All rules but these.", metavar="CODES")
_STORED = typer.Option(
    "--stored", help="Read the payloads of all jobs that wait, by the code of the apps here."
)
_EXPLAIN = typer.Option(help="Say what a rule is about, and stop.", metavar="CODE")


def register(app: typer.Typer) -> None:
    """Add the command to a command line."""
    app.command("check")(check)


def check(
    ctx: typer.Context,
    paths: Annotated[list[Path] | None, _PATHS] = None,
    as_json: Annotated[bool, _JSON] = False,
    select: Annotated[list[str] | None, _SELECT] = None,
    ignore: Annotated[list[str] | None, _IGNORE] = None,
    explain: Annotated[str | None, _EXPLAIN] = None,
    stored: Annotated[bool, _STORED] = False,
    app: AppOption = None,
    store: StoreOption = None,
    database: DatabaseOption = None,
) -> None:
    """Find mistakes in source before they run; what is read is never executed.

    With --stored, find the jobs that wait in the store and that the code here could not read: run
    it with new code before a deploy. Nothing is changed.

    Exit code 0: clean; 1: something was found; 2: the call is wrong.
    """
    from relevo.check import check as read

    shared = cast("dict[str, Any] | None", ctx.find_object(dict)) or {}
    if stored:
        if paths or select or ignore or explain:
            raise typer.BadParameter("--stored reads the store, no source: it takes --app alone")
        raise typer.Exit(_check_stored(shared, app, store, database, is_json=as_json))

    if explain is not None:
        [code] = _codes([explain], "--explain")
        return _explain(code)
    selected, ignored = _codes(select, "--select"), _codes(ignore, "--ignore")
    try:
        reports = read(paths or [Path()], select=selected, ignore=ignored)
    except (OSError, RuntimeError) as error:  # not there, not ours to read, or a circle of links
        raise typer.BadParameter(_plain(str(error))) from error
    if as_json or shared.get("json"):
        typer.echo(json.dumps([asdict(report) for report in reports], indent=2))
    else:
        _print(reports)
    raise typer.Exit(1 if reports else 0)


def _check_stored(
    shared: dict[str, Any],
    app: list[str] | None,
    store: str | None,
    database: str | None,
    *,
    is_json: bool,
) -> int:
    from relevo.cli.terminal import Terminal, run_async

    terminal = Terminal(
        store=store or shared.get("store"),
        database=database or shared.get("database"),
        json=is_json or shared.get("json", False),
        plain=shared.get("plain", False),
    )
    return run_async(_read_stored(terminal, app)) or 0


async def _read_stored(terminal: Terminal, names: list[str] | None) -> int:
    from relevo.cli.tables import table
    from relevo.errors import SettingsError
    from relevo.stored import read_stored

    apps = terminal.apps(names)
    if not apps:
        raise SettingsError("no app here: name one with --app module:attribute or RELEVO_APPS")
    bindings = terminal.engine(apps).bindings
    async with terminal.desk() as desk:
        found = await read_stored(desk.store, bindings)
    columns = ("queue", "command", "wait", "unreadable", "why", "jobs")
    rows = [
        (each.queue, each.kind, each.waiting, each.unreadable, each.error, " ".join(each.jobs[:3]))
        for each in found
    ]
    terminal.show(found, lambda: table(columns, rows) if rows else "nothing waits")
    return 1 if any(each.unreadable for each in found) else 0


def _codes(given: Iterable[str] | None, option: str) -> list[str]:
    from relevo.check import RULES

    codes = [code.strip().upper() for text in given or () for code in text.split(",")]
    for code in codes:
        if code not in RULES:
            wrong = f"there is no rule {_plain(code)[:20]!r}; the rules are {', '.join(RULES)}"
            raise typer.BadParameter(wrong, param_hint=option)
    return codes


def _explain(code: str) -> None:
    from relevo.check import RULES

    rule = RULES[code]
    typer.echo(f"{rule.code} {rule.title}\n\n{rule.why}\n\nTo mend it: {rule.mending}")


def _print(reports: list[Report]) -> None:
    for report in reports:
        file, place = _plain(report.file), f":{report.line}:{report.col}"
        message, mending = _plain(report.message), f"    {report.mending}"
        if sys.stdout.isatty():
            _print_coloured(file, place, report.code, message, mending)
        else:
            typer.echo(f"{file}{place} {report.code} {message}\n{mending}")
    if reports:
        files = len({report.file for report in reports})
        typer.echo(f"{len(reports)} found in {files} file{'s' * (files > 1)}", err=True)


def _print_coloured(file: str, place: str, code: str, message: str, mending: str) -> None:
    from rich.console import Console  # it takes a while to load, and pipes do not need it
    from rich.text import Text

    line = Text.assemble((file, "bold"), f"{place} ", (code, "bold red"), f" {message}\n")
    Console(soft_wrap=True, highlight=False).print(line.append(mending, "dim"))


def _plain(text: str) -> str:
    """Text from elsewhere without what would drive a terminal or forge a line."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
