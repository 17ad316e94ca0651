"""relevo hotel: the bots, their lists, and a message pushed by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.tables import ago, short, table
from relevo.cli.terminal import PROBLEM, Reveal, Terminal, Verbs, read_stdin
from relevo.errors import DefinitionError, NotFoundError
from relevo.ids import new_id
from relevo.store import Audit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from relevo.apps.hotel.hotel import Hotel

group = Verbs(
    "Hotel: bots alive or silent, on and off, their lists, a message by hand.", name="hotel"
)

HotelId = Annotated[str, typer.Argument(metavar="HOTEL", help="The hotel's id, such as hotel999.")]
EntryId = Annotated[str, typer.Argument(metavar="ID", help="The entry's id, from `dead`.")]
EntryOrAll = Annotated[str, typer.Argument(metavar="[ID]", help="The entry's id, from `dead`.")]
Every = Annotated[bool, typer.Option("--all", help="All dead entries of the hotel.")]
EDITED = 10_000  # entries that one `edit --all` looks at


@asynccontextmanager
async def opened(terminal: Terminal) -> AsyncGenerator[Hotel]:
    """The hotels of this environment."""
    from relevo.apps.hotel import app
    from relevo.apps.hotel.hotel import Hotel

    async with terminal.engine([app]) as relevo:
        yield relevo.use(Hotel)


def ours(hotel: Hotel, id: str) -> str:
    if id not in hotel.settings.hotels:
        raise NotFoundError(
            f"no hotel {id!r:.60} here: HOTEL_IDS lists {list(hotel.settings.hotels)}"
        )
    return id


@group.verb("bots")
async def bots(terminal: Terminal) -> int:
    """List the bots: alive or silent, for how long still, and what waits for them.

    Answers 1 when one of them is silent.
    """
    from relevo.apps.hotel.panel import bots as all_bots

    async with opened(terminal) as hotel:
        found = await all_bots(hotel)
    rows: list[dict[str, Any]] = [
        {
            "hotel": bot.hotel,
            "state": bot.state,
            "heartbeat": bot.pulse.value,
            "heartbeat_at": bot.pulse.at,
            "ttl": bot.pulse.ttl,
            "enabled": bot.is_enabled,
            "waiting": bot.waiting,
            "processing": bot.processing,
            "dead": bot.dead,
            "problem": bot.problem,
        }
        for bot in found
    ]
    terminal.show(rows, lambda: _table(rows))
    return PROBLEM if any(row["state"] in ("silent", "failed") for row in rows) else 0


def _table(rows: list[dict[str, Any]]) -> RenderableType:
    names = ("hotel", "state", "heartbeat", "ttl", "waiting", "processing", "dead", "problem")
    shown = ({**row, "heartbeat": ago(row["heartbeat_at"]) or row["heartbeat"]} for row in rows)
    return table(
        names, ([row[name] if row[name] is not None else "" for name in names] for row in shown)
    )


@group.verb("on")
async def on(terminal: Terminal, hotel: HotelId) -> None:
    """Let a hotel's bot work again."""
    await _switch(terminal, hotel, is_on=True)


@group.verb("off")
async def off(terminal: Terminal, hotel: HotelId) -> None:
    """Pause a hotel's bot: it goes on beating and touches nothing."""
    await _switch(terminal, hotel, is_on=False)


async def _switch(terminal: Terminal, id: str, *, is_on: bool) -> None:
    async with opened(terminal) as hotel:
        await hotel.board.enable(ours(hotel, id), is_on)
        verb = "bot enabled" if is_on else "bot paused"
        await _write_down(terminal, hotel, verb, id, "")
    word = "on" if is_on else "off"
    terminal.show({"hotel": id, "enabled": is_on}, lambda: f"the bot of {id} is {word}")


@group.verb("push")
async def push(
    terminal: Terminal,
    hotel: HotelId,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What the guest writes.")] = "Hola!",
    guest: Annotated[str, typer.Option("--guest", help="The guest's id.")] = "guest-X",
    message: Annotated[str, typer.Option("--message", help="The message's id.")] = "",
    channel: Annotated[str, typer.Option("--channel", help="The channel.")] = "channelManager",
    raw: Annotated[bool, typer.Option("--raw", help="TEXT is the whole entry, as it is.")] = False,
) -> None:
    """Push a guest's message to a hotel's list, as a foreign producer would."""
    id = message or f"cm-msg-{new_id()}"
    entry = text.encode() if raw else _entry(hotel, text, guest, id, channel)
    async with opened(terminal) as open_hotel:
        await open_hotel.board.queue(ours(open_hotel, hotel)).push([entry])
    told = {"hotel": hotel, "messageId": None if raw else id}
    terminal.show(told, lambda: "pushed" if raw else f"pushed {id}")


def _entry(hotel: str, text: str, guest: str, id: str, channel: str) -> bytes:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    payload = {
        "messageId": id,
        "conversationId": f"{hotel}-{channel}-{guest}",
        "guestId": guest,
        "channel": channel,
        "timestamp": now,
        "content": text,
    }
    told = {
        "eventId": f"evt-{id}",
        "eventType": "guest_message",
        "channel": "channelManager",
        "payload": payload,
        "receivedAt": now,
    }
    return json.dumps(told, ensure_ascii=False).encode()


@group.verb("dead")
async def dead(terminal: Terminal, hotel: HotelId, reveal: Reveal = False) -> None:
    """List what a bot could not read, as it came, and why."""
    async with opened(terminal) as open_hotel:
        found = await open_hotel.board.queue(ours(open_hotel, hotel)).buried(200)
    rows: list[dict[str, Any]] = [
        {
            "id": each.id,
            "reason": each.reason,
            "at": round(each.at * 1000),
            "bytes": len(each.entry),
            "entry": each.entry.decode("utf-8", "replace") if reveal else None,
        }
        for each in found
    ]
    terminal.show(
        rows,
        lambda: table(
            ("id", "reason", "since", "bytes", "entry"),
            (
                (
                    row["id"],
                    row["reason"],
                    ago(row["at"]) if row["at"] else "",
                    row["bytes"],
                    short(row["entry"] or "", 200),
                )
                for row in rows
            ),
        ),
    )


@group.verb("retry")
async def retry(
    terminal: Terminal, hotel: HotelId, id: EntryOrAll = "", every: Every = False
) -> None:
    """Put a dead entry, or all of them, back at the end of the line."""
    _one_or_all(id, every)
    if not every:
        await _resolve(terminal, hotel, id, "entry sent back")
        return
    async with opened(terminal) as open_hotel:
        count = await open_hotel.board.queue(ours(open_hotel, hotel)).revive_all()
        await _write_down(terminal, open_hotel, "entries sent back", hotel, f"{count}")
    terminal.show({"hotel": hotel, "requeued": count}, lambda: f"{count} sent back")


@group.verb("edit")
async def edit(
    terminal: Terminal,
    hotel: HotelId,
    id: EntryOrAll = "",
    entry: Annotated[
        str,
        typer.Option("--entry", metavar="JSON", help="Fields to change, as an object; - reads it."),
    ] = "-",
    whole: Annotated[
        bool, typer.Option("--whole", help="--entry takes the place of the entry.")
    ] = False,
    every: Every = False,
) -> int:
    """Change a dead entry, or all of them, and put it back at the end of the line.

    The fields that --entry names are merged into the entry, at every depth. An entry that the bot
    could not read even so stays dead, and the answer is 1.
    """
    from relevo.apps.hotel.reading import Unfit, edited

    _one_or_all(id, every)
    if whole and every:
        raise DefinitionError("--whole would make all entries the same one: name an entry")
    change = (read_stdin() if entry == "-" else entry).encode()
    requeued, left = 0, list[dict[str, str]]()
    async with opened(terminal) as open_hotel:
        queue = open_hotel.board.queue(ours(open_hotel, hotel))
        found = (await queue.buried(EDITED))[::-1] if every else [await queue.find(id)]
        now = await open_hotel.relevo.time.now()
        for each in found:
            if each is None:
                raise NotFoundError(f"no entry {id:.40} in the dead list of {hotel}")
            try:
                made = edited(hotel, each.entry, change, now, whole=whole)
            except Unfit as error:
                left.append({"id": each.id, "reason": str(error)})
                continue
            if await queue.revive(each.id, made):
                requeued += 1
                verb = "entry edited and sent back"
                await _write_down(terminal, open_hotel, verb, each.id, hotel)
    told = {"hotel": hotel, "requeued": requeued, "left": left}
    terminal.show(told, lambda: _edits(requeued, left))
    return PROBLEM if left else 0


def _edits(requeued: int, left: list[dict[str, str]]) -> str:
    lines = [f"{each['id']} stays dead: {each['reason']}" for each in left]
    return "\n".join([*lines, f"{requeued} changed and sent back"])


def _one_or_all(id: str, every: bool) -> None:
    if every == bool(id):
        raise DefinitionError("name one entry, from `relevo hotel dead`, or say --all")


async def _write_down(terminal: Terminal, hotel: Hotel, verb: str, target: str, note: str) -> None:
    act = Audit(who=terminal.person.name, verb=verb, target=target, note=note)
    await hotel.relevo.store.audit([act])


@group.verb("discard")
async def discard(terminal: Terminal, hotel: HotelId, id: EntryId) -> None:
    """Throw a dead entry away."""
    await _resolve(terminal, hotel, id, "entry discarded")


async def _resolve(terminal: Terminal, id: str, entry: str, verb: str) -> None:
    if len(entry) != 32:
        raise DefinitionError("an entry's id has 32 characters: `relevo hotel dead` lists them")
    async with opened(terminal) as hotel:
        queue = hotel.board.queue(ours(hotel, id))
        is_back = verb == "entry sent back"
        if not await (queue.revive(entry) if is_back else queue.discard(entry)):
            raise NotFoundError(f"no entry {entry} in the dead list of {id}")
        await _write_down(terminal, hotel, verb, entry, id)
    terminal.show({"hotel": id, "id": entry}, lambda: verb)
