"""relevo events: list, show, subscribers, unsubscribe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from relevo.cli.tables import ago, at, counted, fields, short, span, table
from relevo.cli.terminal import Cursor, Limit, NoteOption, Reveal, Terminal, Verbs, Yes
from relevo.desk import EventView, SubscriberView

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Events: what was published, and who subscribes to it.", name="events")

Name = Annotated[
    str | None, typer.Option("--event", metavar="NAME", help="Only events of this name.")
]


@group.verb("ls")
async def ls(
    terminal: Terminal, event: Name = None, limit: Limit = 20, cursor: Cursor = None
) -> None:
    """List published events, newest first, and what became of each."""
    async with terminal.desk() as desk:
        page = await desk.events(name=event, cursor=cursor, limit=limit)
        seen = [replace(each, event=desk.masked(each.event)) for each in page.events]
    shown = {"events": seen, "cursor": page.cursor}
    terminal.show(shown, lambda: events_table(seen))
    if page.cursor and not terminal.json:
        terminal.warn(f"there may be more: --cursor {page.cursor}")


@group.verb("show")
async def show(
    terminal: Terminal,
    id: Annotated[str, typer.Argument(metavar="ID", help="Of the event, or a subscriber's job.")],
    reveal: Reveal = False,
) -> None:
    """Show an event and the job of each of its subscribers."""
    async with terminal.desk() as desk:
        seen = await desk.event(id)
        if not reveal:
            seen = replace(seen, event=desk.masked(seen.event))
    terminal.show(seen, lambda: event_text(seen))


@group.verb("subscribers")
async def subscribers(terminal: Terminal, event: Name = None) -> None:
    """List who subscribes to what, what waits for each, and whether a worker serves it."""
    async with terminal.desk() as desk:
        found = await desk.subscribers(event)
    terminal.show(found, lambda: subscribers_table(found))


@group.verb("unsubscribe")
async def unsubscribe(
    terminal: Terminal,
    event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.")],
    name: Annotated[
        str, typer.Argument(metavar="SUBSCRIBER", help="As `events subscribers` names it.")
    ],
    note: NoteOption = "",
    yes: Yes = False,
) -> None:
    """Take a subscriber off the list, so that it gets no later events; refused while a worker
    serves it. Its waiting jobs stay."""
    terminal.ask(f"{name} gets no {event} from now on. Unsubscribe it?", yes)
    async with terminal.desk() as desk:
        was = await desk.unsubscribe(event, name, terminal.person, note)
    left = f"; {counted(was.waiting, 'job')} still in {was.queue}" if was.waiting else ""
    terminal.show(was, lambda: f"{name} gets no {event} any more{left}")


def events_table(events: list[EventView]) -> RenderableType:
    return table(
        ("published", "event", "id", "subscribers", "payload"),
        (
            (
                ago(each.event.inserted_at),
                each.event.kind,
                each.event.id,
                _reached(each),
                short(each.event.payload.decode(), 60),
            )
            for each in events
        ),
    )


def _reached(event: EventView) -> str:
    """How many subscribers have ended it well, of how many."""
    if not event.is_spread:
        return f"not yet spread ({event.event.state})"
    states: dict[str, int] = {}
    for each in event.given:
        states[each.state or "not given"] = states.get(each.state or "not given", 0) + 1
    return ", ".join(f"{count} {state}" for state, count in states.items()) or "none"


def event_text(seen: EventView) -> RenderableType:
    from rich.console import Group

    event = seen.event
    facts = {
        "event": event.kind,
        "id": event.id,
        "published": at(event.inserted_at),
        "thread": event.thread,
        "state": "spread" if seen.is_spread else f"not yet spread ({event.state})",
        "why": "" if event.failure is None else event.failure.message,
        "payload": event.payload.decode(),
    }
    rows = (
        (each.subscriber, each.queue, each.job, each.state or "not given, or pruned")
        for each in seen.given
    )
    return Group(
        fields(facts.items()),
        table(("subscriber", "queue", "job", "state"), rows),
    )


def subscribers_table(found: list[SubscriberView]) -> RenderableType:
    return table(
        ("event", "subscriber", "queue", "waiting", "lag", "dead", "worker", "since", "where"),
        (
            (
                each.event,
                each.name,
                each.queue,
                each.waiting,
                span(each.lag / 1000) if each.lag else "",
                each.dead,
                "runs" if each.is_served else "none",
                f"{ago(each.registered_at)}{'' if each.behind is None else ', catching up'}",
                "; ".join(f"{name}={values}" for name, values in each.where.items()),
            )
            for each in found
        ),
    )
