"""The table, for a person and for a file; and what was measured before, read back."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from bench.measure import Row
from relevo.version import version

RESULTS = Path(__file__).parent / "results"
NAMES = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}
SECTIONS = ("throughput", "ingress", "latency", "backlog", "events", "groups", "idle", "peers")
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


def _host(machine: dict[str, Any]) -> str:
    return f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gb']} GB"


def versions() -> dict[str, str]:
    return {"relevo": version(), "Python": platform.python_version()}


class Setting(Struct, frozen=True):
    """How one section was measured."""

    date: str
    jobs: int
    rounds: int
    load: float
    host: str = ""  # older files say it once for all


class Kept(Struct, kw_only=True):
    """What is known of one store: rows, and how each section of them was measured."""

    store: str
    machine: dict[str, Any]
    versions: dict[str, str]
    sections: dict[str, Setting]
    rows: list[Row]

    def of(self, section: str) -> list[Row]:
        return [row for row in self.rows if row.section == section]

    def row(self, section: str, name: str, against: str = "") -> Row | None:
        """The first row whose name begins so, held against something whose name begins so."""
        found = (row for row in self.of(section) if row.name.startswith(name))
        return next((row for row in found if row.against.startswith(against)), None)

    def over(self, older: Kept) -> Kept:
        """This, and of what is older the sections that were not measured again."""
        lasting = [row for row in older.rows if row.section not in self.sections]
        return Kept(
            store=self.store,
            machine=self.machine,
            versions=older.versions | self.versions,
            sections=older.sections | self.sections,
            rows=sorted([*lasting, *self.rows], key=lambda row: SECTIONS.index(row.section)),
        )


def taken(store: str, rows: Sequence[Row], about: dict[str, Any]) -> Kept:
    """One run of one store."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    load, host = round(about["load"], 2), _host(about["machine"])
    setting = Setting(now, about["jobs"], about["rounds"], load, host)
    return Kept(
        store=store,
        machine=about["machine"],
        versions=about["versions"],
        sections={row.section: setting for row in rows},
        rows=list(rows),
    )


def as_json(found: Kept) -> dict[str, Any]:
    """The same as plain data, with what can be reckoned from it."""
    plain = msgspec.to_builtins(found)
    for row, shown in zip(found.rows, plain["rows"], strict=True):
        shown |= {"figure": row.figure, "reference": row.reference}
        shown |= {"ratio": row.ratio, "is_met": row.is_met}
    return plain


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


def how(found: Kept, sections: Iterable[str]) -> str:
    """On what, and how, these sections were measured; one sentence a setting."""
    known = ", ".join(f"{name} {number}" for name, number in found.versions.items())
    ways: dict[Setting, list[str]] = {}
    for name in sections:
        if name in found.sections:
            ways.setdefault(found.sections[name], []).append(name)
    runs = "; ".join(
        f"{', '.join(names)} with {way.host} on {way.date[:10]}, medians of {way.rounds} rounds of "
        f"{way.jobs:,} jobs, load before the run {way.load:.1f}"
        for way, names in ways.items()
    )
    return f"{known}; {runs}."


def as_markdown(found: Kept) -> str:
    """The same for a file."""
    lines = [
        f"# relevo on {NAMES[found.store]}",
        "",
        how(found, SECTIONS),
        "",
        "| " + " | ".join(HEADS) + " |",
        "| --- | ---: | --- | ---: | ---: | --- | ---: | ---: | --- | --- |",
    ]
    lines += ["| " + " | ".join(cells(row)) + " |" for row in found.rows]
    notes = [f"- {row.name}: {row.note}" for row in found.rows if row.note]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def read(path: Path) -> Kept:
    found = msgspec.json.decode(path.read_bytes(), type=Kept)
    for name, way in found.sections.items():
        host = way.host or _host(found.machine)
        found.sections[name] = msgspec.structs.replace(way, host=host)
    return found


def kept() -> dict[str, Kept]:
    """What is known of each store, every section from its newest run."""
    known: dict[str, Kept] = {}
    for store in NAMES:
        for path in sorted(RESULTS.glob(f"{store}-*.json")):
            newer = read(path)
            known[store] = newer.over(known[store]) if store in known else newer
    return known


def save(found: Kept) -> Path:
    """Write results/<store>-<date>.json and .md; other sections of the same day stay."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{found.store}-{datetime.now(UTC).date()}.json"
    if path.exists():
        found = found.over(read(path))
    data = msgspec.json.format(msgspec.json.encode(as_json(found)), indent=1)
    path.write_bytes(data + b"\n")
    path.with_suffix(".md").write_text(as_markdown(found))
    return path.with_suffix(".md")
