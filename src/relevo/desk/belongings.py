"""Belongings: everything that belongs to one person, found and followed through its threads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from relevo.desk.editing import Change, change_of
from relevo.desk.flows import Flows
from relevo.desk.looking import PAGE_MAX
from relevo.ids import parse_id
from relevo.job import Job, NewJob, State
from relevo.relay import Relayed
from relevo.store import BATCH, EDITS, Filter, Kept, Letterbox

ENDLESS = ("poll:", "tick:")  # kinds of jobs that never end, and whose threads are not one person's


class Leaf(NamedTuple):
    """What has to be known of a job to forget it."""

    id: str
    queue: str
    kind: str
    state: State
    thread: str
    cause: str | None
    flow: str | None

    @property
    def is_endless(self) -> bool:
        return self.kind.startswith(ENDLESS)


@dataclass
class Seed:
    """What was found of one thread."""

    jobs: set[str] = field(default_factory=set[str])
    deliveries: set[str] = field(default_factory=set[str])


@dataclass
class Whole:
    """All that belongs together: threads, and the flows that go through them."""

    thread: str
    threads: set[str] = field(default_factory=set[str])  # without those that never end
    flows: set[str] = field(default_factory=set[str])
    leaves: dict[str, Leaf] = field(default_factory=dict[str, Leaf])
    deliveries: dict[str, str] = field(default_factory=dict[str, str])  # id → source
    unseen: set[str] = field(default_factory=set[str])  # jobs of its deliveries, not looked up yet
    gone: set[str] = field(default_factory=set[str])  # jobs of which only effects may be left
    letters: set[str] = field(default_factory=set[str])  # jobs that wait to be carried


class Who(NamedTuple):
    """Who is meant: exactly one of these is said."""

    key: str | None
    thread: str | None
    text: str | None

    def is_in(self, job: NewJob) -> bool:
        if self.text is not None:
            data = self.text.encode(errors="surrogatepass")
            return data in job.payload or self.text in (job.key or "")
        if self.key is not None:
            return job.key == self.key
        return (job.thread or job.id) == self.thread

    def is_in_name(self, name: str) -> bool:
        """Whether a flow's name and key mean this person."""
        if self.text is not None:
            return self.text in name
        return self.key is not None and name.partition("/")[2] == self.key


class Belongings(Flows):
    """What the desk finds of one person."""

    # finding

    async def _seeds(self, who: Who) -> dict[str, Seed]:
        """What the search finds by itself, by thread."""
        seeds: dict[str, Seed] = {}
        if who.thread is not None:
            seeds[await self._thread_of(who.thread)] = Seed()
            return seeds
        async for kept in self._kept(Letterbox(key=who.key, text=who.text)):
            if self.sees(kept.endpoint):
                seeds.setdefault(kept.thread or kept.id, Seed()).deliveries.add(kept.id)
        async for leaf in self._leaves(Filter(key=who.key, text=who.text)):
            _sow(seeds, leaf, self.sees(leaf.queue))
        async for name, flow in self._noted(1_000_000):
            if who.is_in_name(name):
                async for leaf in self._leaves(Filter(flow=flow)):
                    _sow(seeds, leaf, self.sees(leaf.queue))
        if who.text is not None:
            await self._sow_effects(who.text, seeds)
            await self._sow_edits(who.text, seeds)
        if isinstance(self.store, Relayed):
            async for letter in self.store.walk_letters(carried=False):
                if self.sees(letter.job.queue) and who.is_in(letter.job):
                    seeds.setdefault(letter.job.thread or letter.job.id, Seed())
        return seeds

    async def _sow_effects(self, text: str, seeds: dict[str, Seed]) -> None:
        cursor = None
        while True:
            effects, cursor = await self.store.effects(text=text, cursor=cursor, limit=PAGE_MAX)
            for effect in effects:
                if self.sees(effect.queue):
                    seeds.setdefault(effect.thread or effect.job, Seed()).jobs.add(effect.job)
            if cursor is None:
                return

    async def _sow_edits(self, text: str, seeds: dict[str, Seed]) -> None:
        """The jobs in which a text stood before a person edited them."""
        ids = [change.job async for _, change in self._changes() if change.holds(text)]
        for id, job in zip(ids, await self.store.find(ids), strict=True):
            if job is not None:
                _sow(seeds, leaf_of(job), self.sees(job.queue))
            elif self.apps is None:
                seeds.setdefault(id, Seed()).jobs.add(id)

    async def _changes(self) -> AsyncIterator[tuple[str, Change]]:
        """The edits of the last day, by the names of their notes."""
        after = ""
        while notes := await self.store.notes(EDITS, after=after, limit=PAGE_MAX):
            for note in notes:
                if (change := change_of(note)) is not None:
                    yield note.name, change
            after = notes[-1].name

    async def _thread_of(self, text: str) -> str:
        """The thread that was named, or that of the job or delivery that was."""
        id = parse_id(text)
        if id is None:
            return text
        [job] = await self.store.find([id])
        if job is not None and self.sees(job.queue):
            return job.thread or id
        [kept] = await self.store.delivery([id])
        return id if kept is None or not self.sees(kept.endpoint) else kept.thread or id

    async def _leaves(self, where: Filter) -> AsyncIterator[Leaf]:
        cursor = None
        while True:
            page = await self.store.page(where, cursor=cursor, limit=PAGE_MAX)
            for job in page.jobs:
                yield leaf_of(job)
            cursor = page.cursor
            if cursor is None:
                return

    async def _kept(self, where: Letterbox) -> AsyncIterator[Kept]:
        cursor = None
        while True:
            found, cursor = await self.store.deliveries(where, cursor=cursor, limit=PAGE_MAX)
            for kept in found:
                yield kept
            if cursor is None:
                return

    async def _letters(self) -> dict[str, set[str]]:
        """Jobs that wait in the outbox, by thread: what only the database knows has not ended."""
        waiting: dict[str, set[str]] = {}
        if isinstance(self.store, Relayed):
            for carried in (False, True):
                async for letter in self.store.walk_letters(carried=carried):
                    job = letter.job
                    waiting.setdefault(job.thread or job.id, set()).add(job.id)
        return waiting

    # widening

    async def _wholes(
        self, seeds: dict[str, Seed], letters: dict[str, set[str]]
    ) -> AsyncIterator[Whole]:
        """Everything that belongs to what was found, each thread once."""
        told: set[str] = set()
        for thread, seed in seeds.items():
            if thread in told:
                continue
            leaves = [leaf async for leaf in self._leaves(Filter(thread=thread))]
            endless = {leaf.id for leaf in leaves if leaf.is_endless}
            starts: list[set[str] | None] = [None]
            if endless and seed.jobs:
                # What came of a poller's turns is many people's: each of them by what caused it.
                starts = [{id} for id in (*(seed.jobs - endless), *(seed.jobs & endless))]
            for start in starts:
                if start is not None and start <= told:
                    continue
                whole = await self._whole(thread, leaves, start, letters)
                whole.gone |= (start or seed.jobs) - whole.leaves.keys()
                for kept in await self.store.delivery(list(seed.deliveries)):
                    if kept is not None:
                        whole.deliveries[kept.id] = kept.endpoint
                told |= whole.threads | whole.leaves.keys()
                if whole.leaves or whole.deliveries or whole.gone or whole.letters:
                    yield whole

    async def _whole(
        self,
        thread: str,
        leaves: list[Leaf],
        start: set[str] | None,
        letters: dict[str, set[str]],
    ) -> Whole:
        whole = Whole(thread)
        known = {thread: leaves}
        todo = [(thread, start)]
        while todo:
            thread, start = todo.pop()
            if thread in whole.threads or (start and start <= whole.leaves.keys()):
                continue
            if thread not in known:
                known[thread] = [leaf async for leaf in self._leaves(Filter(thread=thread))]
            found = await self._add(whole, thread, known[thread], start, letters)
            # A flow that nothing caused has a thread for each of its nodes.
            for flow in {leaf.flow for leaf in found if leaf.flow} - whole.flows:
                whole.flows.add(flow)
                async for leaf in self._leaves(Filter(flow=flow)):
                    todo.append((leaf.thread, {leaf.id}))
            todo += await self._elsewhere(whole)
        return whole

    async def _add(
        self,
        whole: Whole,
        thread: str,
        leaves: list[Leaf],
        start: set[str] | None,
        letters: dict[str, set[str]],
    ) -> list[Leaf]:
        """The jobs and deliveries of a thread; of one that never ends, those of one branch."""
        if start is not None and any(leaf.is_endless for leaf in leaves):
            leaves = _branch(leaves, start)
        else:
            whole.threads.add(thread)
            whole.letters |= letters.get(thread, set()) - {leaf.id for leaf in leaves}
            async for kept in self._kept(Letterbox(thread=thread)):
                whole.deliveries[kept.id] = kept.endpoint
                whole.unseen |= set(kept.jobs)
        whole.leaves |= {leaf.id: leaf for leaf in leaves}
        return leaves

    async def _elsewhere(self, whole: Whole) -> list[tuple[str, set[str] | None]]:
        """Of a delivery that was received in two goes the jobs may be of the first one's thread."""
        missing = sorted(whole.unseen - whole.leaves.keys() - whole.gone)
        whole.gone.update(missing)
        whole.unseen.clear()
        found: list[tuple[str, set[str] | None]] = []
        for start in range(0, len(missing), BATCH):
            for job in await self.store.find(missing[start : start + BATCH]):
                if job is not None and job.id not in whole.leaves:
                    found.append((job.thread or job.id, {job.id}))
        return found


def leaf_of(job: Job) -> Leaf:
    return Leaf(job.id, job.queue, job.kind, job.state, job.thread or job.id, job.cause, job.flow)


def _sow(seeds: dict[str, Seed], leaf: Leaf, is_seen: bool) -> None:
    if is_seen:
        seeds.setdefault(leaf.thread, Seed()).jobs.add(leaf.id)


def _branch(leaves: Sequence[Leaf], start: set[str]) -> list[Leaf]:
    """Those that came of the same turn of what never ends."""
    known = {leaf.id: leaf for leaf in leaves}
    children: dict[str, list[str]] = {}
    for leaf in leaves:
        children.setdefault(leaf.cause or "", []).append(leaf.id)
    todo: list[str] = []
    for id in start & known.keys():
        seen = {id}
        while (above := known.get(known[id].cause or "")) and not above.is_endless:
            if above.id in seen:
                break
            seen.add(id := above.id)
        todo.append(id)
    found: dict[str, Leaf] = {}
    while todo:
        id = todo.pop()
        if id not in found:
            found[id] = known[id]
            todo += children.get(id, [])
    return list(found.values())
