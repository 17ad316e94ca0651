"""relevo deliveries: what came in at the doors, why some were turned away, and trying again."""

from __future__ import annotations

import asyncio
import http.client
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from relevo.cli.bulk import moment
from relevo.cli.tables import ago, at, cell, counted, data, fields, short, table
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
from relevo.desk import (
    COUNTED,
    DeliveryJob,
    DeliveryQuery,
    DeliveryView,
    Pace,
    Replay,
    Replays,
    view,
)
from relevo.engine import Relevo
from relevo.errors import DefinitionError, NotFoundError, SettingsError, StoreUnavailable
from relevo.intake import Door, answer_of
from relevo.job import State, Verdict
from relevo.pairs import Headers
from relevo.payload import mask
from relevo.signatures import RIGHT, explain
from relevo.store import DeliveryState, Kept, Letterbox
from relevo.unrouted import Unrouted
from relevo.webhook import Delivery

SECONDS = 30.0
GROUPED = (DeliveryState.FAILED, DeliveryState.DIFFERS, DeliveryState.REFUSED)

group = Verbs("Deliveries: list, failed, show, replay, verify, send.", name="deliveries")

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

EndpointOption = Annotated[
    str | None, typer.Option("--endpoint", metavar="APP:/PATH", help="One webhook only.")
]
StateOption = Annotated[DeliveryState | None, typer.Option("--state", help="What became of it.")]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="2h", help="Received so long ago at most, or an ISO moment."),
]


@group.verb("ls")
async def ls(
    terminal: Terminal,
    endpoint: EndpointOption = None,
    state: StateOption = None,
    key: Annotated[str | None, typer.Option("--key", help="The provider's own id.")] = None,
    text: Annotated[
        str | None, typer.Option("--text", help="Found in key, body or reason.")
    ] = None,
    unrouted: Annotated[
        bool,
        typer.Option("--unrouted", help="Calls of the last week that no endpoint took, and why."),
    ] = False,
    since: SinceOption = None,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Grouped by endpoint and error, as `failed` does.")
    ] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List what was delivered, newest first."""
    if by_error:
        if key is not None or text is not None or cursor is not None:
            raise DefinitionError("--by-error takes --state, --endpoint, --since and --limit only")
        states = tuple(GROUPED) if state is None else (state,)
        await _groups(terminal, states, endpoint, since, limit)
        return
    where = Letterbox(endpoint=endpoint, state=state, key=key, text=text)
    if unrouted:
        if where != Letterbox(endpoint=endpoint) or cursor is not None:
            raise DefinitionError("--unrouted goes with --endpoint and --limit only")
        await _unrouted(terminal, endpoint, limit)
        return
    async with terminal.desk() as desk:
        start = await moment(desk, since, "--since")
        found, more = await desk.deliveries(where, cursor, limit, since=start)
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


@group.verb("failed")
async def failed(
    terminal: Terminal,
    endpoint: EndpointOption = None,
    since: SinceOption = None,
    limit: Limit = 50,
) -> None:
    """List failed deliveries by endpoint and error, most first."""
    await _groups(terminal, (DeliveryState.FAILED,), endpoint, since, limit)


async def _groups(
    terminal: Terminal,
    states: tuple[DeliveryState, ...],
    endpoint: str | None,
    since: str | None,
    limit: int,
) -> None:
    async with terminal.desk() as desk:
        start = await moment(desk, since, "--since")
        found = await desk.delivery_groups(states, endpoint, since=start, limit=limit)
    columns = ("group", "endpoint", "state", "count", "last", "first", "sample", "error")
    rows = [
        (
            each.fingerprint,
            each.endpoint,
            each.state,
            each.count,
            ago(each.last_at),
            ago(each.first_at),
            each.sample,
            short(each.error, 80),
        )
        for each in found.groups
    ]
    terminal.show(found, lambda: table(columns, rows))
    if found.is_cut and not terminal.json:
        terminal.warn(f"of each state only the newest {COUNTED:,} are counted")


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
        kept = await desk.delivery_view(id)
        kept = kept if reveal else desk.masked_delivery(kept)
    terminal.show(kept, lambda: fields(_told(kept)))


def _told(kept: DeliveryView) -> list[tuple[str, Any]]:
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
        ("first", f"delivery {kept.first} came before with this key" if kept.first else None),
        ("other bodies", "\n".join(map(_other, kept.others))),
        ("run again by", None if kept.handler is None else _handler(kept.handler)),
        ("jobs", "\n".join(job_text(each) for each in kept.orders if each is not kept.handler)),
    ]


def _other(kept: Kept) -> str:
    return f"{kept.id} {kept.state} {at(kept.received_at)}"


def _handler(job: DeliveryJob) -> str:
    """The job that runs the function of a delivery."""
    told = f"job {job.id} {job.state}, attempt {job.attempt} of {job.attempts}"
    is_due = job.state in (State.READY, State.SCHEDULED)
    return f"{told}, next {ago(job.run_at)}" if is_due and job.run_at else told


def job_text(job: DeliveryJob) -> str:
    """A job of a delivery, as it was when the delivery was stored, and as it is now."""
    match job.verdict:
        case None:
            return f"{job.id} is gone"
        case Verdict.NEW:
            return f"{job.id} new, {job.state} now"
        case verdict:
            had = "had ended" if verdict is Verdict.DONE else "was in progress"
            told = f"joined job {job.id}, which {had}"
            return told if job.is_used else f"{told}; its payload was not used"


@group.verb("replay")
async def replay(
    terminal: Terminal,
    id: Annotated[str | None, typer.Argument(metavar="[ID]", help="A delivery's id.")] = None,
    state: Annotated[
        DeliveryState | None,
        typer.Option("--state", help="All of this state: failed, differs, refused, accepted."),
    ] = None,
    endpoint: EndpointOption = None,
    since: SinceOption = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="10m", help="Received before, as --since.")
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", metavar="TEXT", help="Found in the reason.")
    ] = None,
    fingerprint: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="As `deliveries failed` says.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="So many at most, the oldest first.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="5/s", help="Handle no more than so many.")
    ] = None,
    canary: Annotated[
        int | None,
        typer.Option("--canary", metavar="N", help="So many first; stop if one of them fails."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Only tell what would be enqueued, and what has happened."),
    ] = False,
    repeat_effects: Annotated[
        bool,
        typer.Option("--repeat-effects", help="Make effects that are confirmed once more, too."),
    ] = False,
    app: AppOption = None,
    note: NoteOption = "",
    yes: Yes = False,
    reveal: Reveal = False,
) -> int:
    """Run today's code on the raw bytes of one delivery, or of all that failed.

    A failed one, or one that differs, is handled itself; any other becomes the next generation of
    its key, whose jobs run again, unless their unique key is known already. Effects that are
    confirmed are not made again.
    """
    filters = (endpoint, since, until, error, fingerprint, limit, rate, canary)
    if (id is None) == (state is None) or (id is not None and filters != (None,) * len(filters)):
        raise DefinitionError("name one delivery, or --state with --endpoint, --since, --error …")
    async with _engine(terminal, app) as engine:
        person, handling, desk = terminal.person, engine.handling, engine.desk
        if state is not None:
            query = DeliveryQuery(
                state=state,
                endpoint=endpoint,
                since=await moment(desk, since, "--since"),
                until=await moment(desk, until, "--until"),
                error=error,
                group=fingerprint,
            )
            pace = Pace(limit=limit, rate=rate, canary=canary)
            return await _replay_many(
                terminal, engine, query, pace, note, dry_run, repeat_effects, yes
            )
        assert id is not None  # noqa: S101 - asked above
        if not dry_run:
            kept = await desk.delivery(id)
            again = ", and make its effects once more" if repeat_effects else ""
            terminal.ask(f"Let {kept.endpoint} {kept.key or ''} in again{again}?", yes)
        done = await desk.replay(
            id, person, handling, note, dry_run=dry_run, repeat_effects=repeat_effects
        )
    shown = view(done)
    payloads = [each.payload if reveal else mask(each.payload) for each in done.orders]
    for order, payload in zip(shown["orders"], payloads, strict=True):
        order["payload"] = view(payload)
    terminal.show(shown, lambda: _replayed(done, payloads, repeat_effects))
    return OK


async def _replay_many(
    terminal: Terminal,
    engine: Relevo,
    query: DeliveryQuery,
    pace: Pace,
    note: str,
    dry_run: bool,
    repeat_effects: bool,
    yes: bool,
) -> int:
    desk, person, handling = engine.desk, terminal.person, engine.handling
    would = await desk.replay_where(query, person, handling, note, limit=pace.limit, dry_run=True)
    if dry_run or not would.matched:
        terminal.show(would, lambda: _would_replay(would, repeat_effects))
        return OK if would.matched else PROBLEM
    asked = f"Handle {counted(would.matched, 'delivery', 'deliveries')} again"
    if repeat_effects and would.effects:
        asked += f", and make {_effects_of(would)} once more"
    terminal.ask(f"{asked}?", yes)
    with terminal.progress("replaying", would.matched) as progress:
        done = await desk.replay_where(
            query,
            person,
            handling,
            note,
            limit=pace.limit,
            rate=pace.rate,
            canary=pace.canary,
            repeat_effects=repeat_effects,
            progress=progress,
        )
    if done.stopped and not terminal.json:
        terminal.warn(f"stopped: {done.stopped}")
    terminal.show(done, lambda: _replayed_many(done))
    return PROBLEM if done.failed else OK


def _would_replay(would: Replays, repeats: bool) -> Any:
    from rich.console import Group

    columns = ("at", "id", "endpoint", "key", "reason")
    rows = [
        (at(k.received_at), k.id, k.endpoint, short(k.key, 40), short(k.reason, 60))
        for k in would.deliveries
    ]
    if not rows:
        return "nothing matched"
    if not would.effects:
        return table(columns, rows)
    happened = [(e.name, e.queue, e.count, e.deliveries, e.sample) for e in would.effects]
    effects = table(("effect", "queue", "confirmed", "deliveries", "oldest key"), happened)
    made = "made twice where their jobs run again:"
    if not repeats:
        made = "not made again; made twice with --repeat-effects:"
    return Group(table(columns, rows), cell(f"{_effects_of(would)} confirmed, and {made}"), effects)


def _effects_of(would: Replays) -> str:
    told = counted(sum(each.count for each in would.effects), "effect")
    if would.effects_of < would.matched:
        told += f" (of the oldest {would.effects_of:,} deliveries alone)"
    return told


def _replayed_many(done: Replays) -> Any:
    from rich.console import Group

    rows = [
        (what, each.count, each.sample, short(each.error, 120))
        for what, some in (("failed again", done.errors), ("skipped", done.skips))
        for each in some
    ]
    told = cell(str(done))
    return Group(told, table(("what", "count", "sample", "why"), rows)) if rows else Group(told)


def _replayed(done: Replay, payloads: list[bytes], repeats: bool) -> Any:
    from rich.console import Group

    what = "would be" if done.is_dry else "is"
    head = f"{done.endpoint} {done.key} {what} generation {done.generation}"
    answer = f"answer {done.answer.status} {done.answer.body.decode(errors='replace')[:200]}"
    rows = [
        (order.queue, order.kind, order.key, data(payload))
        for order, payload in zip(done.orders, payloads, strict=True)
    ]
    orders = table(("queue", "kind", "key", "payload"), rows) if rows else "nothing to enqueue"
    if any(order.key for order in done.orders):
        joins = "a job whose unique key is known already is not made again"
        seen = "" if done.is_dry else f": see `relevo deliveries show {done.id}`"
        orders = Group(orders, cell(joins + seen))
    happened = [(at(one.confirmed_at), one.name, one.key, one.job) for one in done.effects]
    if not happened:
        return Group(cell(head), cell(answer), orders)
    told = f"{len(happened)} confirmed, and not made again; made twice with --repeat-effects:"
    if repeats:
        told = f"{len(happened)} confirmed, and made twice where their jobs run again:"
    effects = table(("confirmed", "effect", "key", "job"), happened)
    if done.refused and not repeats:
        told = f"{len(happened)} confirmed; it is refused without --repeat-effects: {done.refused}"
    return Group(cell(head), cell(answer), orders, cell(told), effects)


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
