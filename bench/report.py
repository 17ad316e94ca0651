"""The table, for a person and for a file."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench.measure import Row

RESULTS = Path(__file__).parent / "results"
FORMS = {"%": "{:.2f}", "ms": "{:.2f}", "MB": "{:.1f}", "×": "{:.2f}"}


def machine() -> dict[str, Any]:
    """What the figures depend on, without saying whose machine it is."""
    model = ""
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = described.read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "system": platform.system(),
        "processor": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)),
    }


def versions() -> dict[str, str]:
    return {"relevo": version("relevo"), "Python": platform.python_version()}


def as_json(store: str, rows: Sequence[Row], about: dict[str, Any]) -> dict[str, Any]:
    """One store's run as plain data."""
    return {
        "store": store,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **about,
        "rows": [
            {
                **msgspec.to_builtins(row),
                "figure": row.figure,
                "reference": row.reference,
                "ratio": row.ratio,
                "is_met": row.is_met,
            }
            for row in rows
        ],
    }


def number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    form = next((form for start, form in FORMS.items() if unit.startswith(start)), None)
    return form.format(value) if form else f"{value:,.0f}"


def spread(row: Row) -> str:
    """The lowest and the highest sample, where there were several."""
    if len(row.ours) < 2:
        return ""
    return f"{number(min(row.ours), row.unit)}–{number(max(row.ours), row.unit)}"


def cpu(row: Row) -> str:
    """Microseconds of CPU a job, ours and theirs."""
    both = [statistics.median(part) for part in (row.cpu, row.other_cpu) if part]
    return " / ".join(f"{value:.1f}" for value in both)


def mark(row: Row) -> str:
    return {None: "", True: "met", False: "missed"}[row.is_met]


def cells(row: Row) -> list[str]:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return [
        row.name,
        number(row.figure, row.unit),
        row.unit,
        spread(row),
        number(row.reference, row.unit),
        row.against,
        ratio,
        cpu(row),
        "" if row.aim is None else str(row.aim),
        mark(row),
    ]


HEADS = [
    "",
    "relevo",
    "unit",
    "lowest–highest",
    "other",
    "which is",
    "ratio",
    "CPU µs a job",
    "aim",
    "",
]


def show(store: str, rows: Sequence[Row], console: Console) -> None:
    """Print one store's table."""
    table = Table(title=f"relevo on {store}", title_justify="left")
    for head in HEADS:
        right = head in ("relevo", "lowest–highest", "other", "ratio", "CPU µs a job")
        table.add_column(head, justify="right" if right else "left", no_wrap=head == "relevo")
    section = ""
    for row in rows:
        if section and row.section != section:
            table.add_section()
        section = row.section
        style = {None: "", True: "green", False: "yellow"}[row.is_met]
        *first, last = cells(row)
        table.add_row(*first, f"[{style}]{last}[/]" if style else last)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"[dim]{row.name}: {row.note}[/]")


def as_markdown(store: str, rows: Sequence[Row], about: dict[str, Any]) -> str:
    """The same for a file."""
    known = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    host = about["machine"]
    setting = (
        f"{datetime.now(UTC).date()}; {known}; {host['cores']} cores ({host['processor']}), "
        f"{host['memory_gb']} GB. Medians of {about['rounds']} rounds of {about['jobs']:,} jobs; "
        f"load before the run {about['load']:.1f}."
    )
    lines = [
        f"# relevo on {store}",
        "",
        setting,
        "",
        "| " + " | ".join(HEADS) + " |",
        "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | --- | --- |",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in rows]
    notes = [f"- {row.name}: {row.note}" for row in rows if row.note]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def save(store: str, rows: Sequence[Row], about: dict[str, Any]) -> Path:
    """Write results/<store>-<date>.json and .md."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{store}-{datetime.now(UTC).date()}"
    data = msgspec.json.format(msgspec.json.encode(as_json(store, rows, about)), indent=1)
    path.with_suffix(".json").write_bytes(data + b"\n")
    path.with_suffix(".md").write_text(as_markdown(store, rows, about))
    return path.with_suffix(".md")
