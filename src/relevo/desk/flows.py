"""Flows at the desk: which there are, what they wait for, ending and repeating them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence

import msgspec

from relevo.child_names import brings_names, child_names
from relevo.desk.looking import PAGE_MAX, Looking
from relevo.desk.people import Person
from relevo.errors import NotFoundError
from relevo.ids import parse_id
from relevo.job import LIVE, Job, State
from relevo.outcome import behind
from relevo.store import BATCH, Filter, QueueMode
from relevo.stored import unreadable

KEYS = "flow"  # the kind of the notes in which the engine keeps flows' keys
KEYS_MAX = 5_000
NODES_MAX = 20_000
WALK = 50  # pages to look through for flows before the rest is left to the cursor

_NOW = (State.RUNNING, State.READY, State.SCHEDULED, State.PARKED, State.HELD, State.WAITING)
"""The live states, the one that says most about a flow first."""
_BAD = frozenset({State.DEAD, State.CANCELLED})


class FlowRow(msgspec.Struct, frozen=True, kw_only=True):
    """A flow in a list."""

    id: str
    key: str | None  # its name and key, while the key is known
    name: str  # what a person calls it: that, or else the commands it ends with
    state: State
    counts: dict[State, int]
    inserted_at: int


class JoinedNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a flow that another job stands for, which had its key already."""

    node: str
    needed_by: str  # the node that waits for it
    id: str  # of the job that stands for it
    queue: str
    state: State
    flow: str | None  # where that job is a node, if it is one


class FlowView(msgspec.Struct, frozen=True, kw_only=True):
    """A flow with its nodes, each after those it waits for."""

    id: str
    key: str | None
    state: State
    nodes: list[Job]
    layers: dict[str, int]  # of each job id: 0 waits for nobody
    joined: list[JoinedNode] = []
    is_cut: bool = False  # it has more nodes than a view holds

    @property
    def name(self) -> str:
        return _name(self.key, self.nodes)

    @property
    def counts(self) -> dict[State, int]:
        return _counts(self.nodes)

    def ends(self) -> list[Job]:
        """The nodes that nobody waits for."""
        known = {node.id for node in self.nodes}
        return [node for node in self.nodes if known.isdisjoint(node.before)]

    def node(self, name: str) -> Job:
        """One node by its name or its job's id."""
        id = parse_id(name)
        for node in self.nodes:
            if node.node == name or node.id == id:
                return node
        raise NotFoundError(f"the flow {self.id} has no node {name!r:.80}")


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a node of a flow has not ended well, and what a person may do about it."""

    node: str
    id: str
    queue: str
    state: State
    why: str
    since_at: int | None = None
    advice: str = ""
    waits_for: tuple[str, ...] = ()  # names of nodes


class Flows(Looking):
    """What a person may see of flows, and do to them."""

    # looking

    async def flows(
        self,
        *,
        unfinished: bool = False,
        cursor: str | None = None,
        limit: int = 20,
        walk: int = WALK,
    ) -> tuple[list[FlowRow], str | None]:
        """Recent flows, newest first; with `unfinished` those with a live node only.

        No store lists flows, so the newest jobs are looked through, and no more than `walk` pages
        of them: a cursor without flows says only that there are older jobs.
        """
        where = Filter(states=LIVE if unfinished else frozenset())
        limit = min(max(limit, 1), PAGE_MAX)
        found: dict[str, list[str]] = {}
        for _ in range(walk):
            page = await self.jobs(where, cursor, PAGE_MAX)
            for place, job in enumerate(page.jobs):
                if job.flow is not None and job.flow not in found and len(found) == limit:
                    # The next page starts with this very job: ask again for what is before it.
                    if place:
                        cursor = (await self.jobs(where, cursor, place)).cursor
                    return await self._rows(found), cursor
                if job.flow is not None:
                    found.setdefault(job.flow, []).append(job.id)
            cursor = page.cursor
            if cursor is None:
                break
        return await self._rows(found), cursor

    async def _rows(self, seen: dict[str, list[str]]) -> list[FlowRow]:
        keys = await self._keys(seen)
        flows: dict[str, list[Job]] = {id: [] for id in seen}
        for node in await self._connected([id for ids in seen.values() for id in ids], set(seen)):
            flows[node.flow or ""].append(node)
        return [
            FlowRow(
                id=id,
                key=keys.get(id),
                name=_name(keys.get(id), nodes),
                state=_state(nodes),
                counts=_counts(nodes),
                inserted_at=min(node.inserted_at for node in nodes),
            )
            for id, nodes in flows.items()
            if nodes  # or it was pruned just now
        ]

    async def _connected(self, ids: Sequence[str], flows: set[str]) -> list[Job]:
        """These jobs and all that wait for them, or they for, within their flows.

        Asked by id: to look for a flow's name through a large store takes long.
        """
        nodes: dict[str, Job] = {}
        asked = set(ids)
        frontier = list(asked)
        while frontier and len(nodes) < NODES_MAX:
            some, frontier = frontier[:BATCH], frontier[BATCH:]
            for node in await self.store.find(some):
                if node is None or node.flow not in flows or not self.sees(node.queue):
                    continue
                nodes[node.id] = node
                near = {*node.before, *(edge.child for edge in node.after)} - asked
                asked |= near
                frontier += near
        return list(nodes.values())

    async def flow(self, anything: str) -> FlowView:
        """The flow of an id, of one of its jobs' ids, or of its key, with or without its name."""
        id = await self._flow_id(anything.strip())
        ids, is_cut = await self._node_ids(id)
        nodes = await self._connected(ids, {id})
        if not nodes:
            raise _unknown(anything)
        joined = await self._joined(nodes)
        layers = _layers(nodes)
        nodes.sort(key=lambda node: (layers[node.id], node.inserted_at, node.node or ""))
        return FlowView(
            id=id,
            key=(await self._keys([id])).get(id),
            state=_state(nodes),
            nodes=nodes,
            layers=layers,
            joined=joined,
            is_cut=is_cut,
        )

    async def _joined(self, nodes: Sequence[Job]) -> list[JoinedNode]:
        """The nodes of a flow that other jobs stand for, as far as a node waits for them."""
        known = {node.id: node for node in nodes}
        away = list({edge.child for node in nodes for edge in node.after} - known.keys())
        found: dict[str, Job | None] = dict(known)
        for start in range(0, len(away), BATCH):
            some = away[start : start + BATCH]
            found |= zip(some, await self.store.find(some), strict=True)
        joined: list[JoinedNode] = []
        for parent in nodes:
            children = [found.get(edge.child) for edge in parent.after]
            if not brings_names(parent) and all(
                child is None or child.id in known for child in children
            ):
                continue
            each = await child_names(self.store, parent, children)
            joined += [
                JoinedNode(
                    node=name,
                    needed_by=name_of(parent),
                    id=child.id,
                    queue=child.queue,
                    state=child.state,
                    flow=child.flow,
                )
                for child, names in zip(children, each, strict=True)
                for name in names
                if child is not None and self.sees(child.queue)
                if child.flow != parent.flow or child.node != name
            ]
        return joined

    async def explain(self, flow: FlowView) -> list[Reason]:
        """For each node that has not ended well: what it waits for, why, and what to do."""
        modes = {tally.queue: tally.mode for tally in await self.queues()}
        served = {
            queue for worker in await self.workers() if worker.is_alive for queue in worker.queues
        }
        nodes = {node.id: node for node in flow.nodes}
        reasons = [
            _reason(flow, node, nodes, modes.get(node.queue), node.queue in served)
            for node in flow.nodes
            if node.state in LIVE | _BAD
        ]
        return [msgspec.structs.replace(each, why=self.told(each.why)) for each in reasons]

    # changing

    async def cancel_flow(self, flow: FlowView, by: Person, note: str = "") -> dict[str, bool]:
        """End every live node, those that wait before those they wait for.

        The other way round a parent would be failed, or let go, by the end of its child.
        """
        signed = by.acts("cancel", note)
        live = [node for node in flow.nodes if node.state in LIVE]
        return await self._by_layer(
            flow, live, lambda ids: self.store.cancel(ids, signed), last_first=True
        )

    async def retry_flow(
        self, flow: FlowView, by: Person, note: str = "", *, node: str | None = None
    ) -> dict[str, bool]:
        """Retry what ended badly and is still needed, children before their parents.

        With `node`, only that one and what it needs. A node that was allowed to fail, and whose
        parents have gone on without it, stays as it is.
        """
        signed = by.acts("retry", note)
        only = None if node is None else flow.node(node).id
        nodes = {each.id: each for each in flow.nodes}
        again: set[str] = set()
        for each in reversed(flow.nodes):  # parents come before their children
            parents = [parent for parent in each.before if parent in nodes]
            is_needed = any(
                parent in again or (only is None and nodes[parent].state is State.WAITING)
                for parent in parents
            )
            is_asked = each.id == only if only else not parents
            if each.state in _BAD and (is_needed or is_asked):
                again.add(each.id)
        bad = [each for each in flow.nodes if each.id in again]
        return await self._by_layer(flow, bad, lambda ids: self.store.retry(ids, signed))

    async def _by_layer(
        self,
        flow: FlowView,
        nodes: Sequence[Job],
        act: Callable[[list[str]], Awaitable[list[bool]]],
        *,
        last_first: bool = False,
    ) -> dict[str, bool]:
        layers: dict[int, list[str]] = {}
        for node in nodes:
            layers.setdefault(flow.layers[node.id], []).append(node.id)
        changed: dict[str, bool] = {}
        for layer in sorted(layers, reverse=last_first):
            for start in range(0, len(layers[layer]), BATCH):
                ids = layers[layer][start : start + BATCH]
                changed |= zip(ids, await act(ids), strict=True)
        return changed

    # inside

    async def _flow_id(self, text: str) -> str:
        if (id := parse_id(text)) is not None:
            [job] = await self.store.find([id])
            if job is None or not self.sees(job.queue):
                return id
            if job.flow is None:
                raise NotFoundError(f"job {id} is in no flow")
            return job.flow
        if text:
            [note] = await self.store.recall(KEYS, [text])
            if note is not None:
                return note.value.decode().partition("\n")[0]
            named = {name: id async for name, id in self._noted() if name.endswith(f"/{text}")}
            if len(named) > 1:
                raise NotFoundError(
                    f"{len(named)} flows have the key {text!r:.80}; say which: "
                    + ", ".join(list(named)[:5])
                )
            for id in named.values():
                return id
        raise _unknown(text)

    async def _node_ids(self, flow: str) -> tuple[list[str], bool]:
        ids: list[str] = []
        cursor = None
        for _ in range(WALK + NODES_MAX // PAGE_MAX):
            page = await self.jobs(Filter(flow=flow), cursor, PAGE_MAX)
            ids += [job.id for job in page.jobs]
            cursor = page.cursor
            if cursor is None:
                break
        return ids, cursor is not None

    async def _keys(self, flows: Iterable[str]) -> dict[str, str]:
        wanted = set(flows)
        return {flow: name async for name, flow in self._noted() if flow in wanted}

    async def _noted(self, most: int = KEYS_MAX) -> AsyncIterator[tuple[str, str]]:
        after = ""
        for _ in range(most // PAGE_MAX):
            notes = await self.store.notes(KEYS, after=after, limit=PAGE_MAX)
            for note in notes:
                yield note.name, note.value.decode().partition("\n")[0]
            if len(notes) < PAGE_MAX:
                return
            after = notes[-1].name


def _unknown(text: str) -> NotFoundError:
    return NotFoundError(
        f"no flow is called {text!r:.80}: give its id, the id of one of its jobs, or its key"
    )


def _name(key: str | None, nodes: Sequence[Job]) -> str:
    """A flow's key, or the kinds of the nodes that nobody waits for."""
    return key or ", ".join(sorted({node.kind for node in nodes if not node.before}))


def _counts(jobs: Sequence[Job]) -> dict[State, int]:
    return {state: n for state in State if (n := sum(job.state is state for job in jobs))}


def _state(nodes: Collection[Job]) -> State:
    """What a flow does now, or how it ended: as the nodes did that nobody waits for."""
    states = {node.state for node in nodes}
    ended = {node.state for node in nodes if not node.before}
    for state in _NOW:
        if state in states:
            return state
    return next((state for state in (State.DEAD, State.CANCELLED) if state in ended), State.DONE)


def _layers(nodes: Sequence[Job]) -> dict[str, int]:
    """Of each node, how many stand below it at most; those it waits for have less."""
    known = {node.id: node for node in nodes}
    left = {
        node.id: sum(edge.child in known for edge in node.after if edge.child != node.id)
        for node in nodes
    }
    layers = {id: 0 for id, count in left.items() if not count}
    for id in (queue := list(layers)):  # grows while it is walked
        for parent in known[id].before:
            if parent in left and parent != id:
                left[parent] -= 1
                if not left[parent]:
                    layers[parent] = layers[id] + 1
                    queue.append(parent)
    return {node.id: layers.get(node.id, len(nodes)) for node in nodes}


def _reason(
    flow: FlowView, node: Job, nodes: dict[str, Job], mode: QueueMode | None, is_served: bool
) -> Reason:
    why, since, advice = _why(node, mode, is_served)
    waits: list[str] = []
    match node.state:
        case State.WAITING:
            children = [nodes[edge.child] for edge in node.after if edge.child in nodes]
            live = [child for child in children if child.state in LIVE]
            waits = [name_of(child) for child in live]
            away = [
                each.node
                for each in flow.joined
                if each.needed_by == name_of(node) and each.id not in nodes and each.state in LIVE
            ]
            waits += away
            why = f"waits for {len(waits)} of the {len(node.after)} it needs"
        case State.DEAD if node.failure is not None and node.failure.type == "ChildFailed":
            bad = [
                nodes[edge.child]
                for edge in node.after
                if edge.policy == "fail" and edge.child in nodes and nodes[edge.child].state in _BAD
            ]
            waits = [name_of(child) for child in bad]
            why = "ended because of what it needs" if bad else node.failure.message
        case State.DEAD | State.CANCELLED if node.before and not any(
            nodes[parent].state in LIVE | _BAD for parent in node.before if parent in nodes
        ):
            advice = "nothing: those that waited for it have gone on without it"
        case State.DEAD | State.CANCELLED:
            advice = f"mend the cause, then `relevo flows retry {flow.id}`"
        case _:
            pass
    return Reason(
        node=name_of(node),
        id=node.id,
        queue=node.queue,
        state=node.state,
        why=why,
        since_at=since,
        advice=advice,
        waits_for=tuple(waits),
    )


def _why(node: Job, mode: QueueMode | None, is_served: bool) -> tuple[str, int | None, str]:
    """What keeps a node by itself, since when, and what to do about it."""
    failure = "" if node.failure is None else f"{node.failure.type}: {node.failure.message}"
    match node.state:
        case State.RUNNING:
            return f"runs on {node.worker}, attempt {node.attempt} of {node.attempts}", None, ""
        case State.READY if mode is QueueMode.PAUSED:
            return "its queue is paused", node.run_at, f"`relevo queues resume {node.queue}`"
        case State.READY if not is_served:
            return "no worker serves its queue", node.run_at, "start `relevo work`"
        case State.READY:
            return "waits for a free worker", node.run_at, ""
        case State.SCHEDULED if failure:
            tried = f"attempt {node.attempt} of {node.attempts} failed ({failure})"
            return f"{tried}; due", node.run_at, ""
        case State.SCHEDULED:
            return "due", node.run_at, ""
        case State.PARKED if (breaker := (node.park or "").removeprefix(behind(""))) != node.park:
            return f"the breaker '{breaker}' is open", None, f"`relevo breakers show {breaker}`"
        case State.PARKED if node.park == unreadable(node.kind):
            advice = "deploy code that reads it, see `relevo check --stored`"
            return failure or "the code does not fit its payload", None, advice
        case State.PARKED:
            return "no worker here knows the command", None, "deploy the code that knows it"
        case State.HELD:
            why = failure or "its effect may have happened"
            return why, None, f"`relevo effects ls --job {node.id}`, then confirm or deny"
        case State.CANCELLED:
            return node.note or "was cancelled", node.ended_at, ""
        case _:
            return failure or "it died", node.ended_at, ""


def name_of(node: Job) -> str:
    """What a person calls a node."""
    return node.node or node.id
