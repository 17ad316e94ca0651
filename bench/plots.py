"""`python -m bench.plots`: draw the kept results, and write them into the pages that tell them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import pages
from bench.measure import Row
from bench.report import NAMES, Kept, kept, number

IMAGES = Path(__file__).parents[1] / "docs" / "images"
WIDTH, LEFT, BARS = 760, 216, 352  # of the picture, its labels, and its longest bar
LINE, GAP, PAD = 15, 9, 20

STYLE = """
  svg { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; }
  .page { fill: #fff; } .edge { fill: none; stroke: #d5dae0; }
  text { fill: #1d2733; } .quiet { fill: #5b6875; }
  .title { font-size: 16px; font-weight: 600; } .head { font-weight: 600; }
  .ours { fill: #00796b; } .raw { fill: #9aa5b1; } .peer { fill: #c77700; }
  .aim { stroke: #d32f2f; stroke-width: 2.5; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #1b2129; } .edge { stroke: #39424e; }
    text { fill: #e8edf2; } .quiet { fill: #a3b0bd; }
    .ours { fill: #2bb3a3; } .raw { fill: #77828f; } .peer { fill: #e6a23c; }
    .aim { stroke: #ff7b72; }
  }
"""


class Bar(NamedTuple):
    """One figure: how long, of whom (ours, raw, peer), and what stands beside it."""

    value: float
    whose: str
    text: str


class Line(NamedTuple):
    """Bars that belong together, under one label; an aim is a mark on the scale."""

    label: str
    bars: Sequence[Bar]
    aim: float | None = None


class Group(NamedTuple):
    head: str
    lines: Sequence[Line]


class Picture(NamedTuple):
    """A chart of horizontal bars, all on one scale from zero."""

    title: str
    says: str
    legend: dict[str, str]
    groups: Sequence[Group]


def draw(picture: Picture) -> str:
    """The picture as SVG, for a light page or a dark one."""
    most = max(
        [bar.value for group in picture.groups for line in group.lines for bar in line.bars]
        + [line.aim or 0.0 for group in picture.groups for line in group.lines]
    )
    parts: list[str] = []
    y = PAD + 14
    parts.append(_text(PAD, y, picture.title, "title"))
    y += 20
    parts.append(_text(PAD, y, picture.says, "quiet"))
    y += 24
    parts += _legend(y, picture.legend)
    y += 12
    for group in picture.groups:
        y += 24
        parts.append(_text(PAD, y, group.head, "head"))
        y += 10
        for line in group.lines:
            tall = LINE * len(line.bars)
            mark = LEFT + (line.aim or 0.0) / most * BARS
            parts.append(_text(LEFT - 10, y + tall / 2 + 4, line.label, "", anchor="end"))
            for place, bar in enumerate(line.bars):
                top, long = y + place * LINE, max(1.5, bar.value / most * BARS)
                parts.append(
                    f'<rect class="{bar.whose}" x="{LEFT}" y="{top + 1.5:g}" width="{long:.1f}" '
                    f'height="{LINE - 3}" rx="2"/>'
                )
                end = LEFT + long
                if end - 4 < mark < end + 60:  # the words go behind the mark, not under it
                    end = mark
                parts.append(_text(end + 7, top + 11.5, bar.text, "quiet"))
            if line.aim is not None:
                parts.append(f'<path class="aim" d="M{mark:.1f} {y - 3}V{y + tall + 3}"/>')
            y += tall + GAP
    height = y + PAD - GAP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img" aria-label="{html.escape(picture.title)}">\n'
        f"<style>{STYLE}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n'
        f'<rect class="edge" x=".5" y=".5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, kind: str, anchor: str = "start") -> str:
    of = f' class="{kind}"' if kind else ""
    at = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{of}{at}>{html.escape(words)}</text>'


def _legend(y: float, legend: dict[str, str]) -> Iterator[str]:
    x = PAD
    for whose, words in legend.items():
        if whose == "aim":
            yield f'<path class="aim" d="M{x + 6} {y - 11}V{y + 2}"/>'
        else:
            yield f'<rect class="{whose}" x="{x}" y="{y - 10}" width="12" height="12" rx="2"/>'
        yield _text(x + 18, y, words, "quiet")
        x += 44 + int(6.6 * len(words))


# What is drawn


def pictures(results: dict[str, Kept]) -> dict[str, str]:
    """Every picture for which something was measured, by its file's name."""
    made = {
        "bench-raw.svg": _beside_raw(results),
        "bench-peers.svg": _beside_peers(results),
        "bench-pickup.svg": _pick_up(results),
        "bench-webhooks.svg": _webhooks(results),
    }
    return {name: draw(picture) for name, picture in made.items() if picture.groups}


def _per_second(value: float) -> str:
    return f"{value:,.0f}/s"


def _beside_raw(results: dict[str, Kept]) -> Picture:
    wanted = {
        ("enqueue, 100 callers", "raw, 100 rows a commit"): "enqueue, 100 callers",
        ("enqueue_many of 1000", "raw, 1000 rows a commit"): "enqueue_many of 1,000",
        ("drain, history on", "raw, claim 500 + delete"): "drain, history on",
    }
    groups: list[Group] = []
    for store, found in results.items():
        lines = [
            Line(wanted[row.name, row.against], _pair(row))
            for row in found.of("throughput")
            if (row.name, row.against) in wanted
        ]
        if lines:
            groups.append(Group(NAMES[store], lines))
    return Picture(
        "Jobs a second, beside a hand-written loop on the same driver",
        "One process each way. The loop keeps no history, checks no lease, calls no function.",
        {"ours": "relevo", "raw": "hand-written loop"},
        groups,
    )


def _pair(row: Row) -> list[Bar]:
    ours = Bar(row.figure, "ours", _per_second(row.figure))
    if row.reference is None:
        return [ours]
    ratio = f"{_per_second(row.reference)}   ({row.ratio or 0:.2f} × of it)"
    return [ours, Bar(row.reference, "raw", ratio)]


def _beside_peers(results: dict[str, Kept]) -> Picture:
    groups: list[Group] = []
    for store, found in results.items():
        for name in dict.fromkeys(row.name for row in found.of("peers") if row.other):
            rows = [row for row in found.of("peers") if row.name == name]
            ours = Line("relevo", [Bar(rows[0].figure, "ours", _per_second(rows[0].figure))])
            lines = [ours]
            for row in rows:
                said = f"{_per_second(row.reference or 0)}   (relevo {row.ratio or 0:.1f} ×)"
                lines.append(Line(pages.peer_name(row), [Bar(row.reference or 0, "peer", said)]))
            groups.append(Group(f"{NAMES[store]}: {name}", lines))
    return Picture(
        "Jobs a second, beside other queues on the same server",
        "The same no-op jobs, one worker process, at least once.",
        {"ours": "relevo", "peer": "other queues"},
        groups,
    )


def _pick_up(results: dict[str, Kept]) -> Picture:
    groups: list[Group] = []
    for store, found in results.items():
        rows = found.of("latency")
        lines: list[Line] = []
        for row in rows:
            label = row.name.removeprefix("idle pick-up ")
            text = f"{number(row.figure, 'ms')} ms"
            lines.append(Line(label, [Bar(row.figure, "ours", text)], row.aim and row.aim.value))
        for row in {row.against: row for row in rows}.values():
            label = row.against.removeprefix("raw ")
            text = f"{number(row.reference, 'ms')} ms"
            lines.append(Line(label, [Bar(row.reference or 0.0, "raw", text)]))
        if lines:
            groups.append(Group(NAMES[store], lines))
    return Picture(
        "Milliseconds until an idle worker starts a job",
        "From before the call of enqueue() to the first line of the worker.",
        {"ours": "relevo", "raw": "by hand", "aim": "aim for p99"},
        groups,
    )


def _webhooks(results: dict[str, Kept]) -> Picture:
    groups: list[Group] = []
    for store, found in results.items():
        rows = [row for row in found.of("ingress") if row.unit == "calls/s"]
        if not rows:
            continue
        ours = Bar(rows[0].figure, "ours", _per_second(rows[0].figure))
        lines = [Line("kept with its job", [ours])]
        for row in rows:
            whose = "raw" if "same server" in row.against else "peer"
            label = "nothing kept" if whose == "raw" else row.against
            said = f"{_per_second(row.reference or 0)}   (relevo {row.ratio or 0:.2f} ×)"
            lines.append(Line(label, [Bar(row.reference or 0, whose, said)]))
        groups.append(Group(NAMES[store], lines))
    return Picture(
        "Webhooks a second: verified, kept with their job, answered",
        "One process, 100 connections, bodies of 1 KB, HMAC checked, durable before the answer.",
        {"ours": "relevo", "raw": "same check, nothing kept", "peer": "the usual way"},
        groups,
    )


def redraw() -> list[Path]:
    """Write every picture and every page anew; those that changed."""
    results = kept()
    texts = {IMAGES / name: text for name, text in pictures(results).items()}
    texts |= pages.written(results)
    changed = [
        path for path, text in texts.items() if not path.exists() or path.read_text() != text
    ]
    for path in changed:
        path.write_text(texts[path])
    return changed


if __name__ == "__main__":
    for path in redraw():
        print(path.relative_to(Path(__file__).parents[1]))
