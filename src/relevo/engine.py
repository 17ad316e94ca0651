"""Relevo: one store, one database, some apps; opens and closes them."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, cast
from weakref import WeakSet

import msgspec

from relevo.app import App, Binding
from relevo.backoff import Backoff
from relevo.batch import Coalescer
from relevo.breaker import Breakers
from relevo.budget import Budget
from relevo.calling import Threads
from relevo.changes import Changes
from relevo.child_names import added, joined_once, with_children
from relevo.client_errors import Row
from relevo.clock import Clock, Duration, SystemClock, duration, milliseconds
from relevo.context import Context, calls_here, current
from relevo.counters import Counters
from relevo.desk import Desk
from relevo.durations import Durations
from relevo.errors import (
    DefinitionError,
    MisuseError,
    NotFoundError,
    SettingsError,
    StoreUnavailable,
)
from relevo.events import Published, Subscribers
from relevo.flow import Flow, Node, node_id
from relevo.follow_ups import FollowUps, digest, with_origin
from relevo.group import NAME_MAX, CloseGroup, Group
from relevo.handles import FlowHandle, JobHandle, id_of
from relevo.ids import new_id
from relevo.intake import Handling, Intake, Receiver
from relevo.job import (
    LIVE,
    After,
    Before,
    Ending,
    Lease,
    NewJob,
    Policy,
    Receipt,
    State,
    Unique,
    Verdict,
)
from relevo.joining import Joining
from relevo.message import (
    Command,
    Event,
    KeyPart,
    Message,
    Priority,
    Spec,
    codec,
)
from relevo.once import Call, Ledger, Once, OnceOptions
from relevo.orders import (
    Started,
    Wishes,
    altered,
    job_of,
    key_of,
    mistaken,
    spec_of,
    taken,
    with_key,
)
from relevo.outage import outage, places
from relevo.outbox import Database, driver
from relevo.pending import noted
from relevo.recurring import Recurring
from relevo.relay import Relayed
from relevo.restored import Restored
from relevo.sealing import Seal
from relevo.settings import Settings, public_url_of
from relevo.store import BATCH, Effect, Filter, Gate, Note, SqlStore, Store, Want
from relevo.stored import Releasing
from relevo.stores import open_store
from relevo.stores.places import CONNECTIONS, LEAST, Places
from relevo.stores.sealed import sealed
from relevo.storetime import StoreTime
from relevo.storewatch import StoreWatch
from relevo.telemetry import Telemetry
from relevo.waiting import Waiting
from relevo.worker import OnBlocked, Worker

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession

T = TypeVar("T")

KEEP_DEAD = timedelta(days=90)
SQL = ("sqlite", "postgres")
FLOW_KEY_TTL = 30 * 86_400_000
FLOW_RESULT_KEEP = 86_400_000  # a parent reads its children's results, and may do so again
# For so long a flow without jobs may be one that is being stored, and is stored again by its ids;
# so for as long one that has ended is known, or what ended it would run twice.
FLOW_HALF_KNOWN = 3_600_000
FLOW_BEGINS = 5_000  # milliseconds between a flow's key and its nodes: a call to the store takes no
# longer
FLOW_AGAIN = 0.05  # seconds until a start looks again what became of another of its key


STARTED = "flow-started"
"""The kind of the notes that tell which flow stands for what a run started under a key."""

GROUPS = "group"
"""The kind of the notes that tell which job waits for the members of a group."""

JOINED = "flow-joined"
"""The kind of the notes that tell that this flow, another's, was stored by then."""


def _cause() -> Context | Intake | None:
    """The run or the delivery that this task is about."""
    cause = current.get()
    # A task that outlives either orders on its own: its orders would take the numbers of those
    # that a repeated run, or a repeated delivery, asks for.
    if cause is None or cause.is_over:
        return None
    if isinstance(cause, Context) and cause.uncommitted is not None:
        # Where there is one writer, it would wait for the commit, and that for it.
        cause.refuse_late("an order or a transaction of relevo")
    return cause


class Relevo:
    """The engine. Use it as `async with Relevo("sqlite:///relevo.db", apps=[app]) as relevo:`."""

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        apps: Iterable[App] = (),
        database: str | None = None,
        clock: Clock | None = None,
        keep_dead: Duration | None = None,
        spool: str | None = None,
        seal: Seal | None = None,
        public_url: str | None = None,
        connections: int | None = None,
    ) -> None:
        """Without a store, the settings of the environment count, as for `relevo work`.

        A store that is given leaves RELEVO_STORE_URL, RELEVO_DATABASE_URL, RELEVO_SEAL_KEYS and the
        other settings of a store aside: what is given here is all there is.
        """
        self.telemetry = Telemetry()
        if store is None:
            settings = Settings.read()
            store = settings.store_url
            database = database or settings.database_url
            seal = seal or settings.seal_keys
            spool = spool or settings.spool
            keep_dead = settings.keep_dead if keep_dead is None else keep_dead
            connections = settings.connections if connections is None else connections
            if settings.tracing == "on":
                self.telemetry.trace()
        keep_dead = KEEP_DEAD if keep_dead is None else keep_dead
        connections = CONNECTIONS if connections is None else connections
        if connections < LEAST:
            raise SettingsError(f"connections is {LEAST} or more, not {connections}")
        self.clock = clock or SystemClock()
        self.seal = seal
        if isinstance(store, os.PathLike):
            raise DefinitionError(f"a store's address is text: 'sqlite:///{os.fspath(store)}'")
        opened = open_store(store, clock=self.clock) if isinstance(store, str) else store
        self.store: Store = sealed(opened, seal)
        limited = opened
        self._relay: Relayed | None = None
        self._relaying: asyncio.Task[None] | None = None
        if database is not None and self.store.name not in SQL:
            limited = open_store(database, clock=self.clock)
            ledger = cast("SqlStore", limited)
            self._relay = Relayed(self.store, sealed(ledger, seal), self.telemetry)
            self.store = self._relay.as_store()
        self.apps = tuple(apps)
        self.keep_dead = duration(keep_dead)
        # Whether a delivery and its jobs are stored in one step.
        self.is_atomic = self._relay is not None or self.store.name in SQL
        self.desk = Desk(self.store, keep_dead=self.keep_dead)
        self.joining = Joining(self.store, self.telemetry)
        if self._relay is not None:
            self._relay.joined = self.joining.noticed
        self.time = StoreTime(self.store, self.clock)
        self.breakers = Breakers(self.store, self.time)
        self.waiting = Waiting(self.store, self.time)
        self.changes = Changes(self.store, self.time)
        self.breakers.changes = self.changes
        self.durations = Durations()  # of the workers of this process
        self.watch = StoreWatch(self.store, self.clock)
        self.restored = Restored(self.store)
        self.counters = Counters(self.store, self.telemetry, self.restored)
        self.bindings: dict[tuple[str, str], Binding] = {}
        self.listeners: list[Binding] = []
        self.subscribers = Subscribers(self.store)
        self._error_rows: dict[str, tuple[Row, ...]] = {}
        self._paths: dict[str, str] = {}
        if database is None or self._relay is not None:
            database = self.store.dsn
        self.places: Places = getattr(limited, "places", None) or Places()
        self.places.most = connections
        self._database = Database(self.store, database, self.places)
        self._our_servers = places((self.store.dsn, opened.dsn, database))
        self._inserts: Coalescer[NewJob, Receipt] = Coalescer(
            self.store.insert, elsewhere=self.store.name != "sqlite"
        )
        self._effects: dict[str, tuple[Coalescer[Effect, Effect], Coalescer[Effect, bool]]] = {}
        self.receiver = Receiver(self)
        self.handling = Handling(self)
        self.threads = Threads(lambda: sum(worker.concurrency for worker in self.workers))
        # Under which providers reach the webhooks; some sign it.
        self.public_url = public_url_of(public_url or os.environ.get("RELEVO_PUBLIC_URL", ""))
        self.spool = spool  # a path, "off", or None: beside the store's file, or right here
        self._front: Any = None
        self.is_open = False
        self.leaving = asyncio.Event()  # set when the program ends: answers without end do too
        self.workers: list[Worker] = []  # those of this process
        self._working: set[asyncio.Task[None]] = set()
        self._opened = AsyncExitStack()
        self._resources: dict[type, Any] = {}
        self.recurring = Recurring(self)
        for app in self.apps:
            self._register(app)
        for binding in (*self.recurring.bindings(), *self.handling.bindings()):
            self._bind(binding)
        self._releasing = Releasing(self.store, self.bindings)

    def _register(self, app: App) -> None:
        if sum(other.name == app.name for other in self.apps) > 1:
            raise DefinitionError(f"two apps are called '{app.name}'")
        for route in app.webhooks:
            if self._paths.setdefault(route.path, app.name) != app.name or (
                sum(other.path == route.path for other in app.webhooks) > 1
            ):
                raise DefinitionError(f"two webhooks stand at {route.path}")
        for binding in (*app.workers, *app.listeners):
            self._bind(binding)
            self._bind_close(binding)
        self.listeners += app.listeners

    def _bind(self, binding: Binding) -> None:
        place = (binding.spec.queue, binding.spec.kind)
        if place in self.bindings:
            raise DefinitionError(
                f"{binding.name} and {self.bindings[place].name} both take {place[1]} from "
                f"{place[0]}: a command has one worker, and each listener a queue of its own: "
                "give one of two listeners of one name another with listener(name=…)"
            )
        self.bindings[place] = binding
        rows = next((app.errors for app in self.apps if app.name == binding.app), ())
        known = self._error_rows.get(place[0], ())
        self._error_rows[place[0]] = (*known, *(row for row in rows if row not in known))

    def _bind_close(self, binding: Binding) -> None:
        """A group is closed in the queue of the job that waits for it."""
        spec = CloseGroup.__relevo__
        place = (binding.spec.queue, spec.kind)
        if place not in self.bindings:
            mine = dataclasses.replace(
                binding.spec,
                kind=spec.kind,
                attempts=spec.attempts,
                backoff=spec.backoff,
                key=None,
                unique="unfinished",
                breaker=None,
                dependency=None,
                lane=None,
                keep=spec.keep,
            )
            self.bindings[place] = Binding(binding.app, self._close, CloseGroup, mine, True, True)

    # life

    async def __aenter__(self) -> Relevo:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Open the store; the embedded one is brought up to date by itself."""
        embedded = self.store if self._relay is None else self._relay.ledger
        if embedded.name == "sqlite":
            await embedded.migrate()
        try:
            await self.store.open()
        except BaseException:
            await self.store.close()  # of two, one may be open
            raise
        if self._relay is not None:
            self._relaying = asyncio.create_task(self._relay.run(), name="relevo-relay")
        try:
            for app in self.apps:
                for resource in app.resources:
                    opened = await self._opened.enter_async_context(resource(self))
                    self._resources[type(opened)] = opened
            self._inserts.move_in()
            self.is_open = True
            _open.add(self)
            if self._front is not None:
                await self._front.start()
        except BaseException:
            await self.close()
            raise
        self.watch.opened()

    def use(self, kind: type[T]) -> T:
        """An opened resource of the apps, by its type."""
        found = self._resources.get(kind)
        if found is None:
            raise MisuseError(
                f"no {kind.__name__} is open: list what opens it in App(…, resources=[…]) and "
                "open the engine first"
            )
        return found

    async def close(self) -> None:
        """Stop working, wait for what is on its way, then let go of everything."""
        await self.rest()
        await self.store.close()

    async def rest(self) -> None:
        """The same, but for the store, which whoever opened it goes on using."""
        for worker in self.workers:
            worker.stop()
        if self._working:
            # Else it would go on trying to settle what it has done, in a store that is closed.
            await asyncio.wait(self._working)
        self.is_open = False
        _open.discard(self)
        if self._front is not None:
            await self._front.stop()
        await self.receiver.close()
        await self.watch.close()
        await self.joining.close()
        if not self.watch.is_away:
            await self.counters.close()
        await self._opened.aclose()
        self._resources.clear()
        self.threads.close()
        await self._inserts.close()
        for intents, endings in self._effects.values():
            await intents.close()
            await endings.close()
        await self._database.close()
        if self._relaying is not None:
            self._relaying.cancel()
            await asyncio.wait({self._relaying})

    def asgi(self) -> Any:
        """The ASGI application: webhooks, the apps' sites, the API and the dashboard.

        Mount it where you like. It opens the engine with the server's lifespan, unless the engine
        is open already; so inside another program open the engine in that program's lifespan.
        """
        if self._front is None:
            # By name: the front knows the engine, and the engine must not know the web.
            self._front = importlib.import_module("relevo.front").Front(self)
        return self._front

    # in

    @noted("relevo", calls_here)
    async def enqueue(
        self,
        command: Command,
        *,
        tx: Any = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        key: KeyPart | None = None,
        unique: Unique | None = None,
        priority: Priority | None = None,
        attempts: int | None = None,
        backoff: Backoff | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Order something. When this returns, or `tx` commits, the job is safe.

        Inside `ctx.transaction()` the order joins that transaction by itself. A `key` says what it
        is for with `unique`, here or in the command's class; `differs` in the receipt says that the
        order joined a job whose payload is another, and its own is not used.
        """
        cause = _cause()
        if delay is at is key is unique is priority is attempts is backoff is timeout is None:
            job = self._job(command, spec_of(command), cause)
        else:
            job = self.order(
                command,
                cause=cause,
                delay=delay,
                at=at,
                key=key,
                unique=unique,
                priority=priority,
                attempts=attempts,
                backoff=backoff,
                timeout=timeout,
            )
        if tx is cause is None:
            stored: asyncio.Future[Sequence[Receipt]] = self._inserts.here().create_future()
            self._inserts.put([job], stored)
            return self._taken(job, (await stored)[0])
        [receipt] = await self._insert([job], tx)
        return receipt

    def order(
        self, command: Command, *, cause: Context | Intake | None, **wishes: Unpack[Wishes]
    ) -> NewJob:
        """Build the job that enqueue() would store, without storing it."""
        return self._job(command, spec_of(command), cause, wishes)

    async def enqueue_as(self, id: str, command: Command) -> Receipt:
        """Order something under an id of the caller's: the same id again is the same job."""
        cause = _cause()
        job = self._job(command, spec_of(command), cause, id=id)
        job = job if cause is None else cause.follow_ups.known(job)
        [receipt] = await self._insert([job], None)
        return receipt

    async def enqueue_for(self, follow_ups: FollowUps, command: Command) -> str | None:
        """Order something as one of the follow-ups of whatever these are of; returns the id of the
        job that it joined by its key, if it did."""
        job = job_of(command, spec_of(command), _cause(), self.telemetry.tracing, self.seal)
        job = follow_ups.adopt(job)
        [receipt] = await self._insert([job], None)
        return None if receipt.is_new or receipt.id == job.id else receipt.id

    @noted("relevo", calls_here)
    async def enqueue_many(self, commands: Iterable[Command], *, tx: Any = None) -> list[Receipt]:
        """Order many things, in batches; each is as safe as with enqueue()."""
        cause = _cause()
        jobs = [self._job(command, spec_of(command), cause) for command in commands]
        receipts: list[Receipt] = []
        try:
            for start in range(0, len(jobs), BATCH):
                receipts += await self._insert(jobs[start : start + BATCH], tx)
        except BaseException:
            _give_back(cause, [job.id for job in jobs])
            raise
        return receipts

    @noted("relevo", calls_here)
    async def publish(self, event: Event, *, tx: Any = None) -> Published:
        """Tell a fact to its subscribers, in this and in other programs of the store.

        When this returns, or `tx` commits, the event is stored. Each subscriber gets a job of its
        own; the publisher needs the event's class only.
        """
        if not isinstance(event, Event):  # pyright: ignore[reportUnnecessaryIsInstance] - as in spec_of()
            raise MisuseError(f"publish() takes an Event; {mistaken(event)}")
        cause = _cause()
        spec = event.__relevo__
        job = job_of(event, spec, cause, self.telemetry.tracing, self.seal)
        if job.key is not None:  # of the jobs of its subscribers: the event is told each time
            job = msgspec.structs.replace(with_key(job), key=None, digest=None, unique="unfinished")
        job = job if cause is None else cause.follow_ups.adopt(job)
        known = await self.subscribers.known(spec.kind)
        [receipt] = await self._insert([job], tx)
        reached = tuple(each.name for each in known if each.takes(job.payload))
        return Published(receipt.id, reached)

    # groups

    @noted("relevo", calls_here)
    async def group(self, name: str, *, then: Command | None = None, tx: Any = None) -> Group:
        """Open a group: `then` runs when it is closed and every member has ended.

        The same name is the same group, as long as its job is kept; another `then` is refused.
        Without `then` it is a group that was opened before. The key of `then` is not used: the
        group's name is in its place.
        """
        if not 0 < len(name) <= NAME_MAX:
            raise MisuseError(f"a group's name has 1 to {NAME_MAX} characters, not {len(name)}")
        cause = _cause()
        session = cause.tx if tx is None and cause is not None else tx
        recall, remember = self.store.recall, self.store.remember
        if session is not None:
            connection = await driver(session, lambda: None)
            recall = partial(self.store.recall_within, connection)
            remember = partial(self.store.remember_within, connection)
        spec = None if then is None else spec_of(then)
        for _ in range(10):
            [note] = await recall(GROUPS, [name])
            if note is not None:
                id, queue, mark = note.value.decode().split("\n")
                if then is None or spec is None:
                    return Group(self, id, queue, name)
                mine = self._mark(then, spec, cause)
                if mine[:2] == mark[:2] and mine != mark:  # under another key a digest says nothing
                    raise MisuseError(
                        f"the group '{name}' was opened with another `then`: take another name"
                    )
                return await self._open_group(Group(self, id, queue, name), then, spec, cause, tx)
            if then is None or spec is None:
                raise NotFoundError(f"no group is called '{name}': open it with `then=`")
            id = new_id()
            mine = Note(
                kind=GROUPS,
                name=name,
                value=f"{id}\n{spec.queue}\n{self._mark(then, spec, cause)}".encode(),
                ttl=milliseconds(self.keep_dead),
            )
            if (await remember([mine]))[0]:
                return await self._open_group(
                    Group(self, id, spec.queue, name), then, spec, cause, tx
                )
        raise StoreUnavailable(f"the group '{name}' is opened by too many at once; try again")

    def _mark(self, then: Command, spec: Spec, cause: Context | Intake | None) -> str:
        delivered = cause.delivered if isinstance(cause, Intake) else None
        payload = codec(type(then)).encode(then, delivered)
        said = msgspec.json.encode([spec.queue, spec.kind, msgspec.Raw(payload)])
        return digest(said, self.seal).hex()

    async def _open_group(
        self, group: Group, then: Command, spec: Spec, cause: Context | Intake | None, tx: Any
    ) -> Group:
        job = self._node(then, group.id, cause)
        job = msgspec.structs.replace(
            job,
            key=None,
            digest=None,
            unique="unfinished",
            keep=max(job.keep, FLOW_HALF_KNOWN),
            node=group.name,
            after=(After(group.id, "tally"),),
        )
        await self._insert([job], tx)
        return group

    async def add_to(
        self, group: Group, commands: Iterable[Command], tx: Any, wishes: Wishes
    ) -> list[Receipt]:
        """Order what a group waits for; for Group."""
        up = (Before(group.id, group.queue, "tally"),)
        cause = _cause()
        jobs = [
            msgspec.structs.replace(
                self._job(command, spec_of(command), cause, wishes or None), before=up
            )
            for command in commands
        ]
        receipts: list[Receipt] = []
        try:
            for start in range(0, len(jobs), BATCH):
                receipts += await self._insert(jobs[start : start + BATCH], tx)
        except BaseException:
            _give_back(cause, [job.id for job in jobs])
            raise
        return receipts

    async def close_group(self, group: Group, tx: Any) -> None:
        """Close a group, by a job where that has to wait for a commit; for Group."""
        cause = _cause()
        is_bare = cause is None or (isinstance(cause, Context) and cause.tx is None)
        if tx is None and is_bare:
            [closed] = await self.store.set_gate([group.id], Gate.CLOSED)
            if closed or (await self.store.job_groups([group.id]))[0] is not None:
                return
        # Behind what was ordered before it, perhaps by way of the outbox.
        spec = dataclasses.replace(CloseGroup.__relevo__, queue=group.queue)
        await self._insert([self._job(CloseGroup(group=group.id), spec, cause)], tx)

    async def _close(self, order: CloseGroup, ctx: Context) -> None:
        [closed] = await self.store.set_gate([order.group], Gate.CLOSED)
        if not closed and (await self.store.job_groups([order.group]))[0] is None:
            raise NotFoundError(f"the group of job {order.group} is not stored yet")

    # flows

    async def add_node(
        self, ctx: Context, flow: str, command: Command, name: str | None, on_failure: Policy
    ) -> Receipt:
        """Add a node to a flow that runs, beside the node that runs; for Context."""
        [job] = await self.store.find([ctx.id])
        parents = [] if job is None else await self.store.find(job.before)
        node = self._job(command, spec_of(command), ctx)
        node = msgspec.structs.replace(
            node,
            flow=flow,
            node=name or node.kind,
            keep=max(node.keep, FLOW_RESULT_KEEP),
            before=tuple(
                Before(parent.id, parent.queue, on_failure)
                for parent in parents
                if parent is not None and parent.flow == flow
            ),
        )
        [receipt] = await self._insert([node], None)
        if receipt.id != node.id:
            await self.store.remember([added(flow, receipt.id, node.node or node.kind)])
        return receipt

    @noted("relevo", calls_here)
    async def start(self, flow: Flow, *, key: KeyPart | None = None, tx: Any = None) -> Started:
        """Start a flow: all of its nodes are stored, or none.

        While a flow with the same name and key is unfinished, starting it again answers with that
        one; so does starting again after a crash that left it half known.
        """
        if not isinstance(flow, Flow):  # pyright: ignore[reportUnnecessaryIsInstance] - as in spec_of()
            raise MisuseError(f"start() takes a Flow; {mistaken(flow)}")
        key = None if key is None else key_of(key)
        nodes = flow.ordered()
        cause = _cause()
        fresh, origin = self._flow_ids(flow, nodes, key, cause)
        try:
            if key is None:
                return await self._start(flow, nodes, fresh, origin, cause, tx)
            return await self._start_keyed(flow, nodes, key, fresh, origin, cause, tx)
        except BaseException:
            _give_back(cause, [fresh])
            raise

    async def _start_keyed(
        self,
        flow: Flow,
        nodes: Sequence[Node],
        key: str,
        fresh: str,
        origin: str,
        cause: Context | Intake | None,
        tx: Any,
    ) -> Started:
        """Start a flow, or join the unfinished one of its name and key."""
        name = f"{flow.name}/{key}"
        delivered = cause.delivered if isinstance(cause, Intake) else None
        said = sorted(_told(nodes, delivered), key=lambda node: node[0])
        mark = digest(msgspec.json.encode(said), self.seal).hex()
        session = cause.tx if tx is None and cause is not None else tx
        recall, remember = self.store.recall, self.store.remember
        if session is not None:
            # Beside it, where there is one writer, both would wait for each other.
            connection = await driver(session, lambda: None)
            recall = partial(self.store.recall_within, connection)
            remember = partial(self.store.remember_within, connection)

        async def noted(kind: str, started: str) -> None:
            if cause is not None:
                keep = milliseconds(self.keep_dead)
                await remember([Note(kind=kind, name=fresh, value=started.encode(), ttl=keep)])

        async def join(other: str) -> Started:
            started = await self._start(flow, nodes, other, other, cause, tx)
            if not isinstance(cause, Intake):  # whose jobs are stored with the delivery, later
                await noted(JOINED, other)
            return started

        if cause is not None:
            [note] = await recall(STARTED, [fresh])
            if note is not None:  # an earlier run has asked for just this
                known = note.value.decode()
                if known == fresh:
                    return await self._start(flow, nodes, fresh, origin, cause, tx)
                if (await recall(JOINED, [fresh]))[0] is not None:
                    return Started(known, _node_ids(known, nodes), Verdict.IN_PROGRESS)
                # Its starter and that run may both have died before anything of it was stored.
                return await join(known)

        for _ in range(10):
            [note] = await recall("flow", [name])
            if note is not None:
                started, _, theirs = note.value.decode().partition("\n")
                is_known = True
                if theirs == mark:
                    asked = [node_id(started, node.name) for node in flow.ends()]
                    ends = await self.store.find(asked)
                    is_live = any(end is not None and end.state in LIVE for end in ends)
                    is_whole = None not in ends
                else:  # its nodes may have other names
                    is_live = await self._is_begun_here(name, note, cause, session)
                    # Asked in this order: what is stored in between would look as if it had ended.
                    is_whole = is_known = is_live or await self._has_nodes(started)
                    is_live = is_live or (is_known and await self._has_nodes(started, LIVE))
                    age = await self.store.now() - note.updated_at
                    if not is_known and started != fresh and age < FLOW_BEGINS:
                        # Its starter is about to store it: under its id, the nodes would mix.
                        await asyncio.sleep(FLOW_AGAIN)
                        continue
                if not is_live and not is_whole:
                    is_live = await self.store.now() - note.updated_at < FLOW_HALF_KNOWN
                if is_live:
                    # Before anything of it is stored: a repeated run may find that it has ended,
                    # and the key with another.
                    await noted(STARTED, started)
                    if started != fresh:
                        if theirs == mark or not is_known:
                            return await join(started)
                        # Nothing of it is stored: names that it does not have would be new nodes.
                        if not isinstance(cause, Intake):
                            await noted(JOINED, started)
                        answer = Started(started, _node_ids(started, nodes), Verdict.IN_PROGRESS)
                        # Digests under two keys, of which the first byte tells, say nothing.
                        if theirs[:2] != mark[:2]:
                            return answer
                        self.telemetry.flow_joined(flow.name, name, started)
                        self.joining.flow_noticed(flow.name, started)
                        return answer._replace(differs=True)
                    return await self._start(flow, nodes, fresh, origin, cause, tx)
            mine = Note(
                kind="flow",
                name=name,
                value=f"{fresh}\n{mark}".encode(),
                version=0 if note is None else note.version,
                ttl=FLOW_KEY_TTL,
            )
            if (await remember([mine]))[0]:
                await noted(STARTED, fresh)
                return await self._start(flow, nodes, fresh, origin, cause, tx)
        raise StoreUnavailable(f"the flow '{name}' is started by too many at once; try again")

    async def _is_begun_here(
        self, name: str, note: Note, cause: Context | Intake | None, session: Any
    ) -> bool:
        """Whether the flow that a note names is stored with what is going on here.

        Not before that commits can its nodes be found.
        """
        started = note.value.decode().partition("\n")[0]
        if isinstance(cause, Intake) and any(job.flow == started for job in cause.jobs):
            return True
        if session is None:
            return False
        [outside] = await self.store.recall("flow", [name])
        return outside is None or outside.version != note.version

    async def _has_nodes(self, flow: str, states: frozenset[State] = frozenset()) -> bool:
        page = await self.store.page(Filter(flow=flow, states=frozenset(states)), limit=1)
        return bool(page.jobs)

    def _flow_ids(
        self, flow: Flow, nodes: Sequence[Node], key: str | None, cause: Context | Intake | None
    ) -> tuple[str, str]:
        """The id and the origin of a flow that is to be started."""
        if cause is None:
            return (fresh := new_id()), fresh
        delivered = cause.delivered if isinstance(cause, Intake) else None
        said = msgspec.json.encode([flow.name, _told(nodes, delivered)])
        asked = cause.follow_ups.ask("flow", "flow", said, key)
        return asked.id, asked.origin

    async def _start(
        self,
        flow: Flow,
        nodes: Sequence[Node],
        id: str,
        origin: str,
        cause: Context | Intake | None,
        tx: Any,
    ) -> Started:
        ids = _node_ids(id, nodes)
        awaited = {child.name for node in nodes for child in node.after}
        made = {node.name: self._node(node.command, ids[node.name], cause) for node in nodes}
        children = {node.name: joined_once(node, made) for node in nodes if node.after}
        for node in nodes:
            if any(made[child.name].key is not None for child in node.after):
                made[node.name] = with_children(made[node.name], children[node.name])
        jobs = [
            msgspec.structs.replace(
                job := made[node.name],
                keep=max(job.keep, FLOW_RESULT_KEEP if node.name in awaited else FLOW_HALF_KNOWN),
                meta=with_origin(job.meta, job.id, node_id(origin, node.name)),
                bundle=id,
                flow=id,
                node=node.name,
                after=tuple(
                    After(
                        ids[alike[0].name],
                        "fail"
                        if any(child.on_failure == "fail" for child in alike)
                        else "continue",
                    )
                    for alike in children.get(node.name, ())
                ),
            )
            for node in nodes
        ]
        receipts = await self._insert(jobs, tx)
        is_new = any(each.is_new or each.verdict is Verdict.ORDERED for each in receipts)
        stand = {job.node or "": each.id for job, each in zip(jobs, receipts, strict=True)}
        return Started(id, stand, Verdict.NEW if is_new else Verdict.IN_PROGRESS)

    def _node(self, command: Command, id: str, cause: Context | Intake | None) -> NewJob:
        job = self._job(command, command.__relevo__, cause, id=id)
        return job if cause is None else cause.follow_ups.known(job)

    def _job(
        self,
        message: Message,
        spec: Spec,
        cause: Context | Intake | None,
        wishes: Wishes | None = None,
        *,
        id: str | None = None,
    ) -> NewJob:
        """The job of a message: under the id given, of its cause's making, or a fresh one."""
        job = job_of(message, spec, cause, self.telemetry.tracing, self.seal)
        if wishes is not None:
            job = altered(job, type(message), spec, wishes)
        if cause is not None and id is None:
            return cause.follow_ups.adopt(job)
        if job.key is not None and job.digest is None:
            print = digest(job.payload, self.seal)
            return msgspec.structs.replace(job, id=id or job.id, digest=print)
        return job if id is None else msgspec.structs.replace(job, id=id)

    async def _insert(self, jobs: Sequence[NewJob], tx: Any) -> list[Receipt]:
        cause = _cause()
        if tx is None and cause is not None:
            if isinstance(cause, Intake):
                cause.take(jobs)
                return [Receipt(job.id, Verdict.ORDERED) for job in jobs]
            tx = cause.tx
        ids = [
            job.flow if job.flow is not None and job.bundle == job.flow else job.id for job in jobs
        ]
        give_back = partial(_give_back, cause, ids)
        try:
            if tx is None:
                inserted = await self._inserts.add(jobs)
            else:
                queues = sorted({job.queue for job in jobs})
                connection = await driver(tx, lambda: self.store.committed(queues), give_back)
                inserted = await self.store.insert_within(connection, jobs)
            new = Verdict.NEW
            return [
                answer if answer.verdict is new else self._taken(job, answer)
                for job, answer in zip(jobs, inserted, strict=True)
            ]
        except BaseException:
            # Perhaps it is stored all the same: asked for again by this run, it has the same id.
            give_back()
            raise

    def _taken(self, job: NewJob, receipt: Receipt) -> Receipt:
        if receipt.differs:
            self.joining.noticed(job, receipt)
        return taken(job, receipt)

    @noted("relevo", calls_here)
    async def once(
        self,
        of: str,
        name: str,
        call: Call,
        *,
        queue: str,
        attempt: int = 1,
        type: Any = None,
        keep: Callable[[Any], Any] | None = None,
        **options: Unpack[OnceOptions],
    ) -> Any:
        """Context.once() for work that came by a queue of somebody else's; `of` is its id."""
        lease = Lease(
            id=of, queue=queue, kind=name, payload=b"", attempt=attempt, attempts=attempt, token=0
        )
        if not self.restored.is_known:
            await self.restored.learn()
        once = Once(
            ledger=self.ledger(queue),
            lease=lease,
            run=new_id(),
            name=name,
            call=call,
            invoke=self.threads.invoke,
            type=type,
            keep=keep,
            errors=self.error_rows(queue),
            is_shared=attempt == 1,  # later, the intent may be that of an attempt that died
            doubts=self.restored.doubts(lease),
            durations=self.durations,
            **options,
        )
        try:
            return await once.result()
        finally:
            if once.is_pending:
                await once.take_back_when_answered()

    def error_rows(self, queue: str) -> tuple[Row, ...]:
        """What the app of a queue says about the errors of its clients.

        A queue that is not ours belongs to the app that its name begins with.
        """
        rows = self._error_rows.get(queue)
        if rows is None:
            name = queue.partition(":")[0]
            rows = next((app.errors for app in self.apps if app.name == name), ())
        return rows

    def ledger(self, queue: str) -> Ledger:
        """Where the effects of a queue's jobs are written, many at a time.

        Each queue has its own, so that one whose part of the store is away stands in nobody's way.
        """
        self._inserts.here()
        if queue not in self._effects:
            self._effects[queue] = (Coalescer(self.store.intend), Coalescer(self.store.conclude))
        intents, endings = self._effects[queue]
        return Ledger(self.store.now, intents.add, endings.add)

    # what became of it

    def job(self, id: str) -> JobHandle:
        """A job by its id, to ask what became of it, to wait for it, to cancel or retry it."""
        return JobHandle(self, id_of(id, "job()"))

    def flow(self, id: str) -> FlowHandle:
        """A flow by its id, by the id of one of its jobs, or by its key."""
        return FlowHandle(self, id_of(id, "flow()"))

    def check_outside(self, what: str) -> None:
        """MisuseError inside a transaction, which this act would be no part of; for handles."""
        cause = _cause()
        if cause is not None and cause.tx is not None:
            raise MisuseError(
                f"{what} inside a transaction is no part of it, and would wait for its commit "
                "where the store has one writer: call it before the transaction begins"
            )

    async def is_in_outbox(self, id: str) -> bool:
        """Whether a job, or a job of a flow, was stored in the outbox and has not ended."""
        if self._relay is None:
            return False
        for carried in (False, True):
            async for letter in self._relay.walk_letters(carried=carried):
                if id in (letter.job.id, letter.job.flow):
                    return True
        return False

    # transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[AsyncSession]:
        """A SQLAlchemy session on the application's database; pass it as `tx=`."""
        _cause()
        async with self._database.transaction() as session:
            yield session

    async def settle_within(self, session: AsyncSession, ending: Ending) -> bool:
        """End a run in the transaction of its own rows; for Context."""
        await session.flush()
        connection = await driver(session, lambda: self.store.committed([]))
        [settled] = await self.store.settle_within(connection, [ending])
        return settled

    def ended_within(self, ending: Ending) -> None:
        """That transaction has committed; for Context."""
        if self._relay is not None:
            self._relay.ended_within(ending)

    def outage(self, error: BaseException) -> StoreUnavailable | None:
        """StoreUnavailable where an error tells that our own store or database is away."""
        return outage(error, self._our_servers)

    @property
    def database(self) -> Database:
        return self._database

    # out

    def wants(self, queues: Sequence[str] | None = None) -> list[Want]:
        """The queues to serve, with their limits; all that the apps know unless some are named."""
        specs: dict[str, Spec] = {}
        for binding in self.bindings.values():
            spec = specs.setdefault(binding.spec.queue, binding.spec)
            if spec.limits != binding.spec.limits:
                raise DefinitionError(
                    f"{spec.kind} and {binding.spec.kind} share {spec.queue} but not its limits: "
                    "give them the same limit, rate, ordered and fair, or queues of their own"
                )
        if queues is not None:
            missing = [queue for queue in queues if queue not in specs]
            if missing:
                raise MisuseError(
                    f"no worker for {', '.join(missing)}; known queues: "
                    + (", ".join(sorted(specs)) or "none, no app was given")
                )
            specs = {queue: specs[queue] for queue in queues}
        return [
            Want(
                queue=queue,
                limit=spec.limit,
                lane_limit=spec.lane_limit,
                rate=spec.rate,
                lane_rate=spec.lane_rate,
                burst=spec.burst,
                ordered=spec.ordered,
            )
            for queue, spec in sorted(specs.items())
        ]

    async def work(
        self,
        *,
        queues: Sequence[str] | None = None,
        concurrency: int = 100,
        lease: Duration = "15s",
        grace: Duration = "10s",
        budget: Budget | None = None,
        stop: asyncio.Event | None = None,
        on_blocked: OnBlocked = "report",
        slots: Mapping[str, int] | None = None,
    ) -> None:
        """Serve queues until `stop` is set or the task is cancelled; either way politely.

        Where it serves several queues, one of them takes at most four fifths of the `concurrency`,
        so that a slow provider does not stop the others, or as many of it as `slots` says:
        `slots={"shop:mail:send": 20}`.

        A `budget` makes an idle worker sleep longer, where the store bills by the command. When a
        job blocks the event loop past its time limit, the process only says so ("report"), ends
        with exit code 75 for its supervisor to start another ("exit"), or begins anew by itself
        with the command line that it was started by ("restart").
        """
        if not self.is_open:
            raise MisuseError(
                "the engine is not open: work inside `async with Relevo(…) as relevo:`"
            )
        worker = Worker(
            self,
            queues=queues,
            concurrency=concurrency,
            lease=lease,
            grace=grace,
            budget=budget,
            on_blocked=on_blocked,
            slots=slots,
        )
        self.workers.append(worker)
        running = asyncio.create_task(worker.run(), name="relevo-worker")
        self._working.add(running)
        stopped = asyncio.create_task((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            worker.stop()
            try:
                await running
            finally:
                self._working.discard(running)
                self.workers.remove(worker)

    async def release_known(self) -> bool:
        """Unpark the jobs that waited for code which is here: see Releasing.

        Whether there was anything to look at.
        """
        is_any = await self._releasing.round()
        if is_any:
            await self.handling.unpark()
        return is_any


def _give_back(cause: Context | Intake | None, ids: Iterable[str]) -> None:
    if cause is not None:
        cause.follow_ups.give_back(ids)


def _told(nodes: Sequence[Node], delivered: Any) -> list[tuple[Any, ...]]:
    """What a flow's nodes are, with their payloads."""
    return [
        (
            node.name,
            node.command.__relevo__.kind,
            msgspec.Raw(codec(type(node.command)).encode(node.command, delivered)),
            [(child.name, child.on_failure) for child in node.after],
        )
        for node in nodes
    ]


def _node_ids(flow: str, nodes: Sequence[Node]) -> dict[str, str]:
    return {node.name: node_id(flow, node.name) for node in nodes}


_open: WeakSet[Relevo] = WeakSet()


def _forked() -> None:
    """In a child: its threads stayed with the parent, and to wait for them never ends."""

    async def refuse(jobs: Sequence[NewJob]) -> list[Receipt]:
        raise MisuseError(
            "this engine was opened before the process was forked: open one in each process"
        )

    for engine in list(_open):
        engine._inserts = Coalescer(refuse)  # pyright: ignore[reportPrivateUsage] - its own module's


os.register_at_fork(after_in_child=_forked)
