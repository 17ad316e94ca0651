"""What the kept results say, as Markdown, in the places that pages leave for it.

A page has `<!-- bench: NAME -->` and, further down, `<!-- end -->`; what stands between is ours.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from math import ceil
from pathlib import Path

from bench.measure import Row
from bench.report import NAMES, Kept, how, number

ROOT = Path(__file__).parents[1]
PAGES = (
    ROOT / "README.md",
    ROOT / "README.es.md",
    ROOT / "docs" / "performance.md",
    ROOT / "docs" / "guides" / "plan-for-a-billion-jobs-a-day.md",
)
UNITS = {"jobs/s": "/s", "calls/s": "/s", "% of a core": " %", "": ""}
PLACE = re.compile(r"<!-- bench: ([\w-]+) -->\n.*?<!-- end -->", re.S)
DAY = 86_400
PEAK, FULL = 3, 0.7  # the busy hour beside the average, and how full a machine may be

Results = dict[str, Kept]


def written(results: Results) -> dict[Path, str]:
    """Every page as it should be."""

    def fill(place: re.Match[str]) -> str:
        name = place[1]
        return f"<!-- bench: {name} -->\n\n{BLOCKS[name](results)}\n\n<!-- end -->"

    return {path: PLACE.sub(fill, path.read_text()) for path in PAGES}


def peer_name(row: Row) -> str:
    """`celery[redis] 5.7.0` as people call it."""
    return re.sub(r"\[.*\]", "", row.against)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column is words; the others, but for an aim, are figures."""
    lines = ["---" if head in ("", "aim", "meta") else "---:" for head in heads]
    return "\n".join("| " + " | ".join(each) + " |" for each in (heads, lines, *rows))


def figure(value: float | None, unit: str) -> str:
    return "" if value is None else number(value, unit) + UNITS.get(unit, f" {unit}")


def cell(row: Row | None, missed: str = "missed") -> str:
    """The figure, its ratio, and whether that is less than was aimed at."""
    if row is None:
        return ""
    parts = [figure(row.figure, row.unit)]
    if row.ratio is not None:
        parts.append(f"{row.ratio:.2f} ×")
    if row.is_met is False:
        parts.append(f"**{missed}**")
    return " · ".join(parts)


def aim(row: Row) -> str:
    """What was aimed at, with its unit."""
    if row.aim is None:
        return ""
    unit = " ×" if row.aim.what == "ratio" else UNITS.get(row.unit, f" {row.unit}")
    return str(row.aim).removesuffix("×") + unit


def aims(rows: dict[str, Row]) -> str:
    """The aim of most stores, and by name those that differ."""
    said = {store: aim(row) for store, row in rows.items() if row.aim}
    if not said:
        return ""
    usual = max(said.values(), key=list(said.values()).count)
    others = [f"{NAMES[store]} {each}" for store, each in said.items() if each != usual]
    others += [f"{NAMES[store]} –" for store, row in rows.items() if row.aim is None]
    return "; ".join([usual, *others])


def section(results: Results, name: str, keep: Callable[[Row], bool] = lambda row: True) -> str:
    """One table: a line for each thing measured, a column for each store."""
    found = {store: each.of(name) for store, each in results.items() if each.of(name)}
    keys = dict.fromkeys(
        (row.name, row.against) for rows in found.values() for row in rows if keep(row)
    )
    lines: list[list[str]] = []
    for what, against in keys:
        rows = {
            store: row
            for store, rows in found.items()
            for row in rows
            if (row.name, row.against) == (what, against)
        }
        beside = f", beside {against.removeprefix('with ')}" if against else ""
        lines.append([what + beside, *(cell(rows.get(store)) for store in found), aims(rows)])
    if not lines:
        return "*Not measured yet.*"
    made = table(["", *(NAMES[store] for store in found), "aim"], lines)
    notes = [f"- {NAMES[store]}: {how(results[store], [name])}" for store in found]
    return "\n".join([made, "", *notes])


def shown(results: Results, name: str, words: str, picture: str, tell: str = "") -> str:
    """A section with its picture, where there is something to draw."""
    told = tell or section(results, name)
    is_drawn = any(found.of(name) for found in results.values())
    return f"![{words}](images/{picture})\n\n{told}" if is_drawn else told


def cpu(results: Results) -> str:
    """Microseconds of CPU, ours and the loop's."""
    keys = dict.fromkeys(
        (row.name, row.against)
        for found in results.values()
        for row in found.of("throughput")
        if row.cpu and "1 process" not in row.against
    )
    lines: list[list[str]] = []
    for name, against in keys:
        rows = [found.row("throughput", name, against) for found in results.values()]
        costs = [
            f"{statistics.median(row.cpu):.1f} / {statistics.median(row.other_cpu):.1f}"
            if row and row.cpu and row.other_cpu
            else ""
            for row in rows
        ]
        lines.append([f"{name}, beside {against}", *costs])
    return table(["", *(NAMES[store] for store in results)], lines)


def peers(results: Results) -> str:
    """A table for each store that has peers."""
    parts: list[str] = []
    for store, found in results.items():
        rows = found.of("peers")
        if not rows:
            continue
        for name in dict.fromkeys(row.name for row in rows if row.other):
            same = [row for row in rows if row.name == name]
            lines = [
                [
                    peer_name(row),
                    figure(row.reference, row.unit),
                    f"**{figure(row.figure, row.unit)}**",
                    f"{row.ratio or 0:.1f} ×" + (" **missed**" if row.is_met is False else ""),
                    aim(row),
                ]
                for row in same
            ]
            parts.append(f"{NAMES[store]}, {name}:")
            heads = ["", "jobs a second", "relevo by turns with it", "ratio", "aim"]
            parts.append(table(heads, lines))
        notes = [f"{row.name}: {row.note}" for row in rows if not row.other]
        notes += dict.fromkeys(row.note for row in rows if row.other and row.note)
        notes.append(f"{NAMES[store]}: {how(found, ['peers'])}")
        parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(parts) or "*Not measured yet.*"


HOOKS = "webhooks kept with their job, 100 connections"
SHORT = {
    "enqueue, beside a loop of 100 rows a commit": (
        "throughput",
        "enqueue, 100 callers",
        "raw, 100 rows",
    ),
    "drain, beside a loop that claims 500 and deletes": ("throughput", "drain, history on", "raw"),
    "enqueue, beside the fastest other queue": ("peers", "enqueue, 100 callers", ""),
    "drain, beside the fastest other queue": ("peers", "drain of", ""),
    "webhooks, beside the same check with nothing kept": ("ingress", HOOKS, "same"),
    "webhooks, beside FastAPI, a row each": ("ingress", HOOKS, "FastAPI"),
    "a webhook's answer at 500 a second, p99": (
        "ingress",
        "answered within, p99, at 500 calls/s",
        "",
    ),
    "idle pick-up, p50": ("latency", "idle pick-up in one process, p50", ""),
    "idle pick-up, p99": ("latency", "idle pick-up in one process, p99", ""),
    "a worker's memory at its highest": ("throughput", "worker's memory at its highest", ""),
}
SPANISH = {
    "enqueue, beside a loop of 100 rows a commit": "encolar, junto a 100 filas por commit",
    "drain, beside a loop that claims 500 and deletes": "vaciar, junto a tomar 500 y borrar",
    "enqueue, beside the fastest other queue": "encolar, junto a la cola ajena más rápida",
    "drain, beside the fastest other queue": "vaciar, junto a la cola ajena más rápida",
    "webhooks, beside the same check with nothing kept": "webhooks, junto a comprobar y no guardar",
    "webhooks, beside FastAPI, a row each": "webhooks, junto a FastAPI, una fila cada uno",
    "a webhook's answer at 500 a second, p99": "respuesta a un webhook a 500 por segundo, p99",
    "idle pick-up, p50": "arranque de un trabajo en reposo, p50",
    "idle pick-up, p99": "arranque de un trabajo en reposo, p99",
    "a worker's memory at its highest": "memoria máxima de un worker",
}


def short(results: Results, *, spanish: bool = False) -> str:
    """The few lines that the front page has room for, met and missed."""
    lines: list[list[str]] = []
    for what, (part, name, against) in SHORT.items():
        rows = {store: found.row(part, name, against) for store, found in results.items()}
        there = {store: row for store, row in rows.items() if row is not None}
        if there:
            cells = (cell(row, "no llega" if spanish else "missed") for row in rows.values())
            lines.append([SPANISH[what] if spanish else what, *cells, aims(there)])
    stores = (NAMES[store] for store in results)
    return table(["", *stores, "meta" if spanish else "aim"], lines)


def scale(results: Results) -> str:
    """How many of each it takes for 10⁹ jobs a day, from what one of each did."""
    lines: list[list[str]] = []
    busy = 1e9 / DAY * PEAK
    for store, found in results.items():
        into = found.row("throughput", "enqueue, 100 callers", "raw")
        out = found.row("throughput", "drain, history on", "raw")
        if into is None or out is None:
            continue
        whole = 1 / (1 / into.figure + 1 / out.figure)
        lines.append(
            [
                NAMES[store],
                f"{into.figure:,.0f}",
                f"{out.figure:,.0f}",
                f"{whole:,.0f}",
                f"{whole * FULL / PEAK * DAY / 1e6:,.0f} million",
                f"{ceil(busy / (into.figure * FULL))}",
                f"{ceil(busy / (out.figure * FULL))}",
                f"{ceil(busy / (whole * FULL))}",
            ]
        )
    heads = ["", "`e` in /s", "`d` out /s", "`w` in and out /s", "jobs a day on one server"]
    return table([*heads, "producers", "workers", "servers"], lines)


BLOCKS: dict[str, Callable[[Results], str]] = {
    "throughput": lambda results: shown(
        results, "throughput", "Jobs a second beside a hand-written loop", "bench-raw.svg"
    ),
    "cpu": cpu,
    "peers": lambda results: shown(
        results, "peers", "Jobs a second beside other queues", "bench-peers.svg", peers(results)
    ),
    "latency": lambda results: shown(
        results, "latency", "Milliseconds until an idle worker starts a job", "bench-pickup.svg"
    ),
    "webhooks": lambda results: shown(
        results, "ingress", "Webhooks a second", "bench-webhooks.svg"
    ),
    "backlog": lambda results: section(results, "backlog"),
    "idle": lambda results: section(results, "idle"),
    "short": short,
    "corto": lambda results: short(results, spanish=True),
    "scale": scale,
}
