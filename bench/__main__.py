"""`python -m bench`: measure some stores and print the table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
from rich.console import Console
from rich.status import Status

from bench import backlog, events, groups, idle, ingress, latency, peers, plots, report, throughput
from bench.measure import Row, TooSlow, load
from bench.places import PLACES, Place, on_disk

SECTIONS = ("throughput", "ingress", "latency", "backlog", "events", "groups", "idle")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("stores", nargs="*", metavar="STORE", help="sqlite, postgres, redis; all")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, metavar="SECTION", default=SECTIONS)
    parser.add_argument("--jobs", type=int, default=50_000, help="jobs a sample (50,000)")
    parser.add_argument("--rounds", type=int, default=3, help="samples a row (3)")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="the long queue (1,000,000)")
    parser.add_argument("--pings", type=int, default=200, help="idle pick-ups a round (200)")
    parser.add_argument("--seconds", type=float, default=60, help="how long to sit idle (60)")
    parser.add_argument("--peers", action="store_true", help="measure other queues beside us too")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--results", action="store_true", help="write them to bench/results, draw, and tell"
    )
    chosen = parser.parse_args()
    chosen.stores = chosen.stores or list(PLACES)
    for store in chosen.stores:
        if store not in PLACES:
            parser.error(f"no store is called '{store}': choose from {', '.join(PLACES)}")
    chosen.jobs = max(1_000, chosen.jobs // 1_000 * 1_000)
    return chosen


def rows(place: Place, chosen: argparse.Namespace, say: Callable[[str], None]) -> Iterator[Row]:
    """Every row of one store; a section that hangs or breaks is named, and the next goes on."""
    sections: dict[str, Callable[[], Iterator[Row]]] = {
        "throughput": partial(throughput.measure, place, chosen.jobs, chosen.rounds, say),
        "ingress": partial(ingress.measure, place, chosen.jobs, chosen.rounds, say),
        "latency": partial(latency.measure, place, chosen.pings, chosen.rounds, say),
        "backlog": partial(backlog.measure, place, chosen.backlog, chosen.rounds, say),
        "events": partial(events.measure, place, chosen.jobs, chosen.rounds, say),
        "groups": partial(groups.measure, place, chosen.jobs, chosen.rounds, say),
        "idle": partial(idle.measure, place, chosen.seconds, say),
    }
    wanted = [sections[name] for name in SECTIONS if name in chosen.only]
    if chosen.peers:
        wanted.append(partial(peers.measure, place, chosen.jobs, chosen.rounds, say))
    for section in wanted:
        try:
            yield from section()
        except (TooSlow, RuntimeError, AssertionError) as error:
            chosen.failed = True
            print(f"{place.name}: {error}", file=sys.stderr)


def _say(status: Status, store: str, what: str) -> None:
    status.update(f"{store}: {what}")


def main() -> int:
    chosen = options()
    chosen.failed = False
    progress = Console(stderr=True)
    if not on_disk():
        progress.print("[yellow]temporary files are in memory: commits cost nothing; set TMPDIR[/]")
    found: list[dict[str, Any]] = []
    for store in chosen.stores:
        about: dict[str, Any] = {
            "machine": report.machine(),
            "load": load(),
            "jobs": chosen.jobs,
            "rounds": chosen.rounds,
        }
        with Status(f"{store}: starting", console=progress) as status:
            place = PLACES[store]()
            try:
                about["versions"] = report.versions() | place.versions()
                say = partial(_say, status, store)
                measured = list(rows(place, chosen, say))
            finally:
                place.close()
        run = report.taken(store, measured, about)
        found.append(report.as_json(run))
        if not chosen.json:
            report.show(store, measured, Console(width=None if sys.stdout.isatty() else 170))
        if chosen.results and measured:
            progress.print(f"written to {report.save(run).name}")
    if chosen.results:
        for path in plots.redraw():
            progress.print(f"redrawn {path.name}")
    if chosen.json:
        sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 1 if chosen.failed else 0


if __name__ == "__main__":
    sys.exit(main())
