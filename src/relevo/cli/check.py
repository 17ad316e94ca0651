"""relevo check: read source and report what will hurt."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

if TYPE_CHECKING:
    from relevo.check import Report

_PATHS = typer.Argument(help="Files or directories; the current one if none is given.")
_JSON = typer.Option("--json", help="Print one JSON array, nothing else.")
_SELECT = typer.Option(help="Only these rules, such as RV001,RV010.", metavar="CODES")
_IGNORE = typer.Option(help="All rules but these.", metavar="CODES")
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
) -> None:
    """Find mistakes in source before they run; what is read is never executed.

    Exit code 0: clean; 1: something was found; 2: the call is wrong.
    """
    from relevo.check import check as read

    if explain is not None:
        [code] = _codes([explain], "--explain")
        return _explain(code)
    selected, ignored = _codes(select, "--select"), _codes(ignore, "--ignore")
    try:
        reports = read(paths or [Path()], select=selected, ignore=ignored)
    except (OSError, RuntimeError) as error:  # not there, not ours to read, or a circle of links
        raise typer.BadParameter(_plain(str(error))) from error
    shared = cast("dict[str, Any] | None", ctx.find_object(dict)) or {}
    if as_json or shared.get("json"):
        typer.echo(json.dumps([asdict(report) for report in reports], indent=2))
    else:
        _print(reports)
    raise typer.Exit(1 if reports else 0)


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
