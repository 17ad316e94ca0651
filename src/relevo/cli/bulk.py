"""Changes of many jobs by a filter, as every group of verbs does them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer
from msgspec.structs import replace

from relevo.cli.tables import counted
from relevo.cli.terminal import OK, PROBLEM, Terminal
from relevo.clock import milliseconds, stamp
from relevo.desk import COUNT_MAX, BulkVerb, Desk, Pace, Sweep, meant
from relevo.errors import DefinitionError
from relevo.lengths import is_length
from relevo.store import Filter

SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="2h", help="Ended, or enqueued if it has not ended, so long ago at most."
    ),
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="10m", help="Longer ago than that, as --since.")
]
ErrorOption = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="Found in the last error.")
]
LaneOption = Annotated[str | None, typer.Option("--lane", help="One lane of the queue.")]
GroupOption = Annotated[
    str | None, typer.Option("--group", metavar="FINGERPRINT", help="All jobs of one error.")
]
MostOption = Annotated[
    int | None, typer.Option("--limit", min=1, metavar="N", help="So many at most.")
]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="50/s", help="No faster than that.")
]
CanaryOption = Annotated[
    int | None,
    typer.Option("--canary", metavar="N", help="So many first; stop if one of them fails."),
]
PatienceOption = Annotated[
    str, typer.Option("--patience", metavar="60s", help="How long canaries may take.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say how many there are.")]

DONE: dict[BulkVerb, str] = {"retry": "retried", "cancel": "cancelled", "discard": "discarded"}


async def moment(desk: Desk, text: str | None, name: str) -> int | None:
    """The store's moment that was meant: so long ago, or written in full."""
    if text is None:
        return None
    if is_length(text):
        return await desk.store.now() - milliseconds(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise DefinitionError(
            f"{name} is how long ago, such as 2h, or a moment such as 2027-01-31T09:00+01:00, "
            f"not {text!r:.40}"
        ) from error
    return stamp(at if at.tzinfo else at.astimezone())


async def between(desk: Desk, where: Filter, since: str | None, until: str | None) -> Filter:
    """A filter of what lies between two moments, too."""
    return replace(
        where,
        since=await moment(desk, since, "--since"),
        until=await moment(desk, until, "--until"),
    )


async def change_many(
    terminal: Terminal,
    desk: Desk,
    verb: BulkVerb,
    where: Filter,
    pace: Pace,
    *,
    note: str,
    what: str = "job",
    dry_run: bool = False,
    yes: bool = False,
) -> int:
    """Ask, act, and say how far it has come; Ctrl-C stops it where it is."""
    where, pace = meant(verb, where), pace.checked()
    count = await desk.count(where, most=COUNT_MAX)
    count = count if pace.limit is None else min(count, pace.limit)
    done = DONE[verb]
    if dry_run or not count:
        told = f"{count:,} would be {done}" if count else "nothing matched"
        terminal.show({"matched": count}, lambda: told)
        return OK if count else PROBLEM
    terminal.ask(f"{verb.capitalize()} {counted(count, what)}?", yes)
    with terminal.progress(f"{done.removesuffix('ed')}ing", count) as progress:
        sweep = await desk.change_where(
            verb, where, terminal.person, note, pace=pace, progress=progress
        )
    return swept(terminal, sweep, done)


def swept(terminal: Terminal, sweep: Sweep, what: str) -> int:
    """Say what became of a change of many."""
    if not terminal.json and sweep.refused:
        terminal.warn(f"{sweep.refused:,} were not in a state for it, or a younger job has the key")
    if not terminal.json and sweep.outlived:
        terminal.warn(
            f"{sweep.outlived:,} of them ran so long ago that what they enqueued then may not be "
            "known any more, and may be enqueued once again"
        )
    if not terminal.json and sweep.stopped:
        terminal.warn(f"stopped: {sweep.stopped}")
    terminal.show(sweep, lambda: f"{sweep.changed:,} of {sweep.total:,} {what}")
    return PROBLEM if sweep.stopped or not sweep.changed else OK
