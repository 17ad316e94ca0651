"""relevo subscriptions: the stream workers, one command each, and what became of every job."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from relevo.cli.terminal import OK, Terminal, Verbs, say
from relevo.cli.work import stop_on_signals
from relevo.errors import DefinitionError, SettingsError

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
