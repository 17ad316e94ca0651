"""Every event of a repository, an organization or an app of GitHub is noted once."""

import os

from sqlalchemy import text

from relevo import App, Command, Delivery, Intake, PlainContext, exponential, sources

app = App("github")


class Note(Command, queue="github:notes:add", attempts=8, backoff=exponential("2s"), timeout="1m"):
    event: str


@app.webhook("/hooks/github", source=sources.github(os.environ["GITHUB_WEBHOOK_SECRET"]))
async def told(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Note(f"{delivery.event_type} {delivery.event_id}"))


@app.worker
def note(order: Note, ctx: PlainContext) -> None:
    with ctx.transaction() as tx:
        tx.execute(text("create table if not exists notes (event text primary key)"))
        tx.execute(text("insert into notes values (:event)"), {"event": order.event})
