"""relevo subscriptions: the stream workers, one command each, and what became of every job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.terminal import OK, NoteOption, Terminal, Verbs, say
from relevo.cli.work import stop_on_signals
from relevo.errors import DefinitionError, SettingsError

if TYPE_CHECKING:
    from relevo.apps.subscriptions.support import Support

NAMES = ("email", "list", "spreadsheet")

group = Verbs("Stripe subscriptions: stream workers and jobs.", name="subscriptions")


@group.verb("work")
async def work(
    terminal: Terminal,
    names: Annotated[
        list[str], typer.Argument(metavar="WORKER…", help="email, list or spreadsheet.")
    ],
) -> int:
    """Serve Redis streams until told to stop; the names choose whose."""
    wrong = [name for name in names if name not in NAMES]
    if wrong:
        raise DefinitionError(f"no worker {wrong[0]!r:.40}: there are {', '.join(NAMES)}")
    terminal.start_logging(None)
    stop = asyncio.Event()
    stop_on_signals(stop)
    async with terminal.engine(terminal.apps(["subscriptions"])) as relevo:
        from relevo.apps.subscriptions.streams import Streams, StreamWorker

        if not relevo.use(Streams).is_configured:
            raise SettingsError(
                "REDIS_HOST is not set, so there is no stream to serve; without Redis the same "
                "work is done by `relevo work --app subscriptions`"
            )
        workers = [StreamWorker(relevo, name) for name in dict.fromkeys(names)]
        say(f"serving {', '.join(names)}")
        async with asyncio.TaskGroup() as group:
            for worker in workers:
                group.create_task(worker.run(stop))
    return OK


@group.verb("ls")
async def ls(
    terminal: Terminal,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="How many at most, up to 1000.")
    ] = 50,
) -> int:
    """List the newest jobs, each with its three flags."""
    from relevo.apps.subscriptions.records import Records

    async with terminal.engine() as relevo:
        jobs = await Records(relevo).jobs(limit)
    rows: list[dict[str, Any]] = [
        {
            "id": job.id,
            "subscription": job.subscription_id,
            "email_sent": job.email_sent,
            "list_added": job.list_added,
            "list_skipped": job.list_skipped,
            "spreadsheet_saved": job.spreadsheet_saved,
            "created_at": job.created_at.isoformat(),
        }
        for job in jobs
    ]
    terminal.show(rows, lambda: "\n".join(map(_line, rows)) or "no subscription yet")
    return OK


failures = Verbs("What failed for good: list, retry.", name="failures")
group.add(failures)

Integration = Annotated[
    str | None,
    typer.Option("--integration", help="email, list, spreadsheet or publish."),
]


@asynccontextmanager
async def _support(terminal: Terminal) -> AsyncGenerator[Support]:
    from relevo.apps.subscriptions.records import Records
    from relevo.apps.subscriptions.support import Support

    async with terminal.engine() as relevo:
        yield Support(relevo, Records(relevo), relevo.desk)


@failures.verb("ls")
async def failures_ls(
    terminal: Terminal,
    integration: Integration = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1_000, help="How many at most, up to 1000.")
    ] = 50,
) -> int:
    """List what failed for good or is held, newest first, with the reason."""
    async with _support(terminal) as support:
        found = await support.failures(integration=integration, limit=limit)
    rows = [
        {
            "job": each.job_id,
            "integration": each.integration,
            "state": each.state,
            "reason": each.reason,
            "tries": each.tries,
            "failed_at": each.failed_at.isoformat(),
            "order": each.order or None,
        }
        for each in found
    ]
    terminal.show(
        rows,
        lambda: (
            "\n".join(
                f"{row['job']!s:32}  {row['integration']:11}  {row['state']:6}  {row['reason']}"
                for row in rows
            )
            or "nothing has failed"
        ),
    )
    return OK


@failures.verb("retry")
async def failures_retry(
    terminal: Terminal,
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job, as `failures ls` names it.")
    ] = None,
    integration: Integration = None,
    every: Annotated[bool, typer.Option("--all", help="All that failed.")] = False,
    note: NoteOption = "",
) -> int:
    """Order again what failed: one job, all, or all of one integration; never what is held."""
    if (job is None) is not every:
        raise DefinitionError("name a job, or say --all")
    async with _support(terminal) as support:
        if job is None:
            done = await support.retry_all(terminal.person, note, integration=integration)
        else:
            done = await support.retry_job(job, terminal.person, note, integration=integration)
    terminal.show(
        {"retried": done.retried, "held": done.held},
        lambda: f"ordered again: {done.retried}; held for a decision: {done.held}",
    )
    return OK


def _line(row: dict[str, Any]) -> str:
    marks = [
        f"{name} {'yes' if row[flag] else 'no'}"
        for name, flag in (
            ("email", "email_sent"),
            ("list", "list_added"),
            ("spreadsheet", "spreadsheet_saved"),
        )
    ]
    return f"{row['id']}  {row['subscription']:30}  {'  '.join(marks)}"
