"""relevo deliveries: what came in at the doors, why some were turned away, and trying again."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from relevo.cli.tables import at, cell, data, fields, short, table
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    AppOption,
    AsIs,
    Cursor,
    Limit,
    NoteOption,
    Reveal,
    Terminal,
    Verbs,
    Yes,
    read_stdin,
)
from relevo.clock import SystemClock
from relevo.desk import Replay, view
from relevo.engine import Relevo
from relevo.errors import DefinitionError, NotFoundError, SettingsError, StoreUnavailable
from relevo.intake import Door, answer_of
from relevo.pairs import Headers
from relevo.payload import mask
from relevo.signatures import RIGHT, explain
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.unrouted import Unrouted
from relevo.webhook import Delivery

SECONDS = 30.0

group = Verbs("Deliveries: list, show, replay, verify, send.", name="deliveries")

Id = Annotated[str, typer.Argument(metavar="ID", help="A delivery's id.")]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="The webhook's path.")]
BodyOption = Annotated[
    Path | None, typer.Option("--body", metavar="FILE", help="The body's bytes; - is stdin.")
]
HeaderOption = Annotated[
    list[str] | None, typer.Option("--header", "-H", metavar="NAME: VALUE", help="Repeatable.")
]
QueryOption = Annotated[str, typer.Option("--query", help="Without the question mark.")]
MethodOption = Annotated[str, typer.Option("--method", help="POST unless told otherwise.")]


@group.verb("ls")
async def ls(
    terminal: Terminal,
    endpoint: Annotated[
        str | None, typer.Option("--endpoint", metavar="APP:/PATH", help="One webhook only.")
    ] = None,
    state: Annotated[
        DeliveryState | None, typer.Option("--state", help="How it was taken.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="The provider's own id.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Found in key, body or reason.")
    ] = None,
    unrouted: Annotated[
        bool,
        typer.Option("--unrouted", help="Calls of the last week that no endpoint took, and why."),
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List what was delivered, newest first."""
    where = Letterbox(endpoint=endpoint, state=state, key=key, text=text)
    if unrouted:
        if where != Letterbox(endpoint=endpoint) or cursor is not None:
            raise DefinitionError("--unrouted goes with --endpoint and --limit only")
        await _unrouted(terminal, endpoint, limit)
        return
    async with terminal.desk() as desk:
        found, more = await desk.deliveries(where, cursor, limit)
    waiting = await spooled(terminal)
    columns = ("at", "id", "endpoint", "state", "status", "key", "jobs", "repeats", "reason")
    terminal.show(
        {"deliveries": found, "cursor": more, "spooled": waiting},
        lambda: table(columns, map(_line, found)),
    )
    if waiting and not terminal.json:
        terminal.warn(f"{waiting:,} deliveries wait in the spool until the store takes them")
    if more and not terminal.json:
        terminal.warn(f"there are more: --cursor {more}")


async def _unrouted(terminal: Terminal, endpoint: str | None, limit: int) -> None:
    async with terminal.desk() as desk:
        found = await desk.unrouted(endpoint)
    some = found[:limit]
    columns = ("last", "endpoint", "status", "cause", "address", "count", "call", "headers", "size")
    terminal.show(
        {"unrouted": [view(each) | {"advice": each.advice} for each in some]},
        lambda: table((*columns, "hash"), map(_stray, some)),
    )
    if not terminal.json:
        for place, advice in {(each.endpoint, each.cause): each.advice for each in some}.items():
            terminal.warn(f"{' '.join(place)}: {advice}")
        if len(found) > limit:
            terminal.warn(f"there are {len(found) - limit:,} more: --limit")


def _stray(seen: Unrouted) -> tuple[Any, ...]:
    return (
        at(seen.last_at),
        seen.endpoint,
        seen.status or None,
        seen.cause,
        seen.address or "others",
        seen.count,
        short(f"{seen.method} {seen.path}", 60),
        short(", ".join(seen.headers), 60),
        seen.size,
        seen.hash or None,
    )


def _line(kept: Kept) -> tuple[Any, ...]:
    return (
        at(kept.received_at),
        kept.id,
        kept.endpoint,
        kept.state,
        kept.status,
        short(kept.key, 40),
        len(kept.jobs),
        f"{kept.repeats} (differs)" if kept.differs else kept.repeats,
        short(kept.reason, 60) or None,
    )


async def spooled(terminal: Terminal) -> int:
    """How many deliveries wait in this machine's spool."""
    from relevo.ingress.spool import Spool, spool_path

    engine = Relevo(terminal.store(), spool=terminal.settings.spool)
    path = spool_path(engine, engine.spool)
    if path is None:
        return 0
    spool = Spool(engine, path)
    try:
        return await spool.waiting()
    except StoreUnavailable as error:
        terminal.warn(str(error))
        return 0
    finally:
        await spool.close()


@group.verb("show")
async def show(terminal: Terminal, id: Id, reveal: Reveal = False) -> None:
    """Show one delivery: what came, what was answered, and the jobs that came of it."""
    async with terminal.desk() as desk:
        kept = await desk.delivery(id)
        kept = kept if reveal else desk.masked_delivery(kept)
    terminal.show(kept, lambda: fields(_told(kept)))


def _told(kept: Kept) -> list[tuple[str, Any]]:
    shown = view(kept)
    answer = shown["answer"]
    return [
        ("id", kept.id),
        ("endpoint", kept.endpoint),
        ("key", kept.key),
        ("generation", kept.generation or None),
        ("state", kept.state),
        ("reason", kept.reason),
        ("received", at(kept.received_at)),
        ("request", f"{kept.method} {kept.path}" + (f"?{kept.query}" if kept.query else "")),
        ("headers", "\n".join(f"{name}: {value}" for name, value in shown["headers"] or ())),
        ("body", data(kept.body)),
        ("answered", kept.status),
        ("answer", None if answer is None else data(answer_of(kept).body)),
        ("unreadable", ", ".join(shown.get("unreadable", ()))),
        ("came again", kept.repeats or None),
        ("last", at(kept.repeated_at)),
        ("differs", "it came again with another body" if kept.differs else None),
        ("jobs", "\n".join(map(partial(_job, kept), kept.jobs))),
    ]


def _job(kept: Kept, id: str) -> str:
    return f"joined job {id}; its payload was not used" if id in kept.joined else id


@group.verb("replay")
async def replay(
    terminal: Terminal,
    id: Id,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only tell what would be enqueued.")
    ] = False,
    repeat_effects: Annotated[
        bool,
        typer.Option("--repeat-effects", help="Make effects that are confirmed once more, too."),
    ] = False,
    app: AppOption = None,
    note: NoteOption = "",
    yes: Yes = False,
    reveal: Reveal = False,
) -> None:
    """Run today's code on a delivery's raw bytes, as the next generation of its key.

    All of its jobs run again. Effects that are confirmed are not made again.
    """
    async with _engine(terminal, app) as engine:
        person, handling = terminal.person, engine.handling
        if not dry_run:
            kept = await engine.desk.delivery(id)
            again = ", and make its effects once more" if repeat_effects else ""
            terminal.ask(f"Let {kept.endpoint} {kept.key or ''} in again{again}?", yes)
        done = await engine.desk.replay(
            id, person, handling, note, dry_run=dry_run, repeat_effects=repeat_effects
        )
    shown = view(done)
    payloads = [each.payload if reveal else mask(each.payload) for each in done.orders]
    for order, payload in zip(shown["orders"], payloads, strict=True):
        order["payload"] = view(payload)
    terminal.show(shown, lambda: _replayed(done, payloads))


def _replayed(done: Replay, payloads: list[bytes]) -> Any:
    from rich.console import Group

    what = "would be" if done.is_dry else "is"
    head = f"{done.endpoint} {done.key} {what} generation {done.generation}"
    answer = f"answer {done.answer.status} {done.answer.body.decode(errors='replace')[:200]}"
    rows = [
        (order.queue, order.kind, order.key, data(payload))
        for order, payload in zip(done.orders, payloads, strict=True)
    ]
    orders = table(("queue", "kind", "key", "payload"), rows) if rows else "nothing to enqueue"
    return Group(cell(head), cell(answer), orders)


@group.verb("verify")
async def verify(
    terminal: Terminal,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="One that was kept.")] = None,
    path: Annotated[str | None, typer.Option("--path", help="The webhook's path.")] = None,
    body: BodyOption = None,
    header: HeaderOption = None,
    query: QueryOption = "",
    method: MethodOption = "POST",
    app: AppOption = None,
) -> int:
    """Explain a bad signature: of a delivery that was turned away, or of a raw body and headers.

    Signatures are not kept. What was wrong with one that came is what was found when it came.
    """
    if id is not None:
        async with terminal.desk() as desk:
            kept = await desk.delivery(id)
        # Whoever signed well and was refused for something else was not answered 401.
        is_good = kept.state is DeliveryState.ACCEPTED or kept.status != 401
        why = kept.reason
        if is_good:
            is_refused = kept.state is DeliveryState.REFUSED and why
            why = f"{RIGHT}; it was refused for another reason: {why}" if is_refused else RIGHT
        terminal.show({"id": kept.id, "ok": is_good, "why": why}, lambda: AsIs(why))
        return OK if is_good else PROBLEM
    if path is None:
        raise DefinitionError("name a delivery, or give --path with --body and --header")
    async with _engine(terminal, app) as engine:
        door = _door(engine, path)
        made = _delivery(path, await _body(body), header, query, method, door)
        why = explain(made, door.scheme, made.received_at)
    # It tells no secret, and says the word too often for the mask to know that.
    terminal.show({"ok": why == RIGHT, "why": why}, lambda: AsIs(why))
    return OK if why == RIGHT else PROBLEM


@group.verb("send")
async def send(
    terminal: Terminal,
    path: PathArgument,
    body: BodyOption = None,
    header: HeaderOption = None,
    query: QueryOption = "",
    method: MethodOption = "POST",
    type: Annotated[
        str, typer.Option("--type", help="The event's type, where a header tells it.")
    ] = "",
    id: Annotated[
        str, typer.Option("--id", help="The delivery's id, where a header tells it.")
    ] = "",
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Otherwise RELEVO_HOST and RELEVO_PORT."),
    ] = None,
    app: AppOption = None,
) -> int:
    """Sign a body with the door's own secret and post it to a running relevo."""
    async with _engine(terminal, app) as engine:
        door = _door(engine, path)
        made = _delivery(path, await _body(body), header, query, method, door)
        made = door.rules.signed(made, SystemClock().now(), type, id)
    base = terminal.server(to)
    began = time.perf_counter()
    status, answer = await asyncio.to_thread(_post, base, made)
    took = round((time.perf_counter() - began) * 1e3)
    terminal.show(
        {"status": status, "answer": view(answer), "ms": took},
        lambda: f"{status} in {took} ms: {answer.decode(errors='replace')[:2_000]}",
    )
    return OK if 200 <= status < 300 else PROBLEM


def _post(base: str, sent: Delivery) -> tuple[int, bytes]:
    address = urlsplit(base)
    secure = address.scheme == "https"
    kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
    connection = kind(address.hostname or "", address.port, timeout=SECONDS)
    target = f"{address.path.rstrip('/')}{sent.path}" + (f"?{sent.query}" if sent.query else "")
    try:
        connection.request(sent.method, target, sent.body, dict(sent.headers.pairs))
        answer = connection.getresponse()
        return answer.status, answer.read(1_000_000)
    except (OSError, http.client.HTTPException) as error:
        raise SettingsError(f"nobody answers at {base}: {error}") from error
    finally:
        connection.close()


def _delivery(
    path: str, body: bytes, headers: list[str] | None, query: str, method: str, door: Door
) -> Delivery:
    usual = next(iter(door.content_types), "")
    pairs = {"content-type": usual if "/" in usual else "application/json"} if body else {}
    for line in headers or ():
        name, colon, value = line.partition(":")
        if not colon:
            raise DefinitionError("write a header as 'Name: value'")
        pairs[name.strip().lower()] = value.strip()
    return Delivery(
        path=path,
        method=method.upper(),
        query=query,
        headers=Headers(pairs.items()),
        body=body,
        received_at=SystemClock().now(),
        base=door.base,
        rules=door.rules,
    )


async def _body(file: Path | None) -> bytes:
    if file is None:
        return b""
    if str(file) == "-":
        return read_stdin().encode()
    try:
        return await asyncio.to_thread(file.read_bytes)
    except OSError as error:
        raise DefinitionError(f"cannot read {file}: {error.strerror}") from error


def _door(engine: Relevo, path: str) -> Door:
    door = engine.receiver.doors.get(path)
    if door is None:
        paths = ", ".join(engine.receiver.doors) or "none at all"
        raise NotFoundError(f"no webhook stands at {path}; there are {paths}")
    return door


@asynccontextmanager
async def _engine(terminal: Terminal, names: list[str] | None) -> AsyncGenerator[Relevo]:
    apps = terminal.apps(names)
    if not apps:
        raise SettingsError("no app here: name one with --app module:attribute or RELEVO_APPS")
    async with terminal.engine(apps) as engine:
        yield engine
