"""Reads an application's source and reports what will hurt: one rule, one function.

What is read is never imported or run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from relevo.check.application import Application
from relevo.check.outline import Module
from relevo.check.report import Finding, Report, Rule
from relevo.check.rules import RULES
from relevo.check.source import Allow, Source, Unread, find, read

__all__ = ["RULES", "Report", "Rule", "check"]

MESSAGE_MAX = 400
"""Names come from the source, which may be anyone's, and a name may be as long as a file."""


def check(
    paths: Iterable[str | Path],
    *,
    select: Collection[str] = (),
    ignore: Collection[str] = (),
) -> list[Report]:
    """What will hurt in the Python files under some paths, in the order of file and line.

    FileNotFoundError when a path does not exist. Files that cannot be read are reported too.
    """
    # What could not be read was not checked, whichever rules were asked for.
    asked = {*select, "RV000"} if select else set(RULES)
    wanted = asked - {*ignore}
    sources: list[Source] = []
    reports: set[Report] = set()
    for found in find(paths):
        got = found if isinstance(found, Unread) else read(*found)
        if isinstance(got, Source):
            sources.append(got)
        else:
            reports.add(_report("RV000", got.file, got.line, got.col, got.message))
    for source in sources:
        reports.update(_malformed(source))
    app = Application(sources)
    for rule in RULES.values():
        if rule.find and rule.code in wanted:
            reports.update(_told(app, rule, rule.find(app)))
    return sorted(report for report in reports if report.code in wanted)


def _told(app: Application, rule: Rule, findings: Iterable[Finding]) -> Iterator[Report]:
    for finding in findings:
        source = finding.module.source
        line = getattr(finding.node, "lineno", 1)
        if (line, rule.code) not in source.silenced:
            col = _column(source, line, getattr(finding.node, "col_offset", 0))
            report = _report(rule.code, source.file, line, col, finding.message)
            if "`await ctx." in rule.mending and not _is_async(app, finding.module, line):
                # In a plain `def`, await is a syntax error, and its context needs none.
                report = replace(report, mending=rule.mending.replace("`await ctx.", "`ctx."))
            yield report


def _is_async(app: Application, module: Module, line: int) -> bool:
    """Whether the innermost function of a line is an async one."""
    around = [
        function
        for function in app.project.functions
        if function.module is module
        and function.node.lineno <= line <= (function.node.end_lineno or line)
    ]
    return not around or max(around, key=lambda each: each.node.lineno).is_async


def _malformed(source: Source) -> Iterator[Report]:
    for allow in source.allows:
        if problem := _problem(allow):
            message = f"this comment silences nothing: {problem}"
            yield _report("RV015", source.file, allow.line, allow.col, message)


def _problem(allow: Allow) -> str:
    if allow.code in ("RV000", "RV015"):
        return f"{allow.code} cannot be allowed"
    if allow.code and allow.code not in RULES:
        return f"there is no {allow.code}"
    return allow.problem


def _report(code: str, file: str, line: int, col: int, message: str) -> Report:
    short = message if len(message) <= MESSAGE_MAX else f"{message[:MESSAGE_MAX]}…"
    return Report(file, line, col, code, short, RULES[code].mending)


def _column(source: Source, line: int, offset: int) -> int:
    """The parser counts bytes, people count characters."""
    text = source.lines[line - 1] if line <= len(source.lines) else ""
    return len(text.encode(errors="replace")[:offset].decode(errors="replace")) + 1
