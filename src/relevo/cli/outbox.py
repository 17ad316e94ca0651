"""relevo outbox: letters on their way to a store that lives elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relevo.cli.tables import ago, span, table
from relevo.cli.terminal import SQL, Limit, Reveal, Terminal, Verbs
from relevo.desk import Desk, OutboxView
from relevo.errors import SettingsError

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("The outbox: letters waiting for the store.", name="outbox")


@group.verb("ls")
async def ls(terminal: Terminal, limit: Limit = 50, reveal: Reveal = False) -> None:
    """List the letters that wait, oldest first, and how far the store lags behind."""
    store = terminal.store()
    ledger = terminal.ledger(store)
    if ledger is None and store.name not in SQL:
        raise SettingsError(
            "there is no database beside this store: give --database or RELEVO_DATABASE_URL"
        )
    if ledger is None:
        view = OutboxView(waiting=[], carried=[], lag=0, is_cut=False)
        terminal.show(view)
        terminal.warn("no outbox is needed: the store is a database, jobs commit with your rows")
        return
    # The store itself may be away: that is when people look.
    try:
        await ledger.open()
        desk = Desk(ledger)
        view = await desk.outbox(ledger, await ledger.now(), limit)
    finally:
        await ledger.close()
        await store.close()
    if not reveal:
        view = OutboxView(
            waiting=[desk.masked_letter(letter) for letter in view.waiting],
            carried=[desk.masked_letter(letter) for letter in view.carried],
            lag=view.lag,
            is_cut=view.is_cut,
        )
    terminal.show(view, lambda: letters_table(view))
    if not terminal.json:
        many = "many" if view.is_cut else len(view.waiting)
        terminal.warn(f"{many} to be carried, the oldest for {span(view.lag / 1000)}")


def letters_table(view: OutboxView) -> RenderableType:
    return table(
        ("job", "queue", "kind", "state", "posted", "key"),
        (
            (
                letter.job.id,
                letter.job.queue,
                letter.job.kind,
                "carried" if letter.is_carried else "waiting",
                ago(letter.posted_at),
                letter.job.key,
            )
            for letter in (*view.waiting, *view.carried)
        ),
    )
