"""Forgetting: everything of one person goes before its time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import msgspec

from relevo.desk.flows import KEYS, Flows
from relevo.desk.looking import PAGE_MAX, TEXT_MAX
from relevo.desk.people import Person
from relevo.desk.views import Progress, Sweep
from relevo.errors import DefinitionError
from relevo.ids import new_id, parse_id
from relevo.job import LIVE, Job, NewJob, State
from relevo.relay import Relayed
from relevo.store import BATCH, By, Filter, Kept, Letterbox

TEXT_MIN = 4
"""Fewer letters occur in too much that is somebody else's."""

SHOWN = 100
ENDLESS = ("poll:", "tick:")  # kinds of jobs that never end, and whose threads are not one person's


class LeftAlone(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that is not forgotten as long as something in it has not ended."""

    thread: str
    jobs: tuple[str, ...]  # those that have not ended, ten at most
    why: str
    advice: str


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, or would be."""

    act: str = ""  # what the audit calls it; empty where nothing was done
    threads: int = 0
    deliveries: int = 0
    jobs: dict[str, int] = msgspec.field(default_factory=dict[str, int])  # by queue
    left: int = 0  # threads left alone
    left_alone: list[LeftAlone] = msgspec.field(default_factory=list[LeftAlone])  # the first 100
    is_dry: bool = False  # nothing was erased

    @property
    def is_empty(self) -> bool:
        return not (self.threads or self.left)


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


class Forgetting(Flows):
    """What an admin may do when somebody asks to be forgotten."""

    async def forget(
        self,
        by: Person,
        *,
        key: str | None = None,
        thread: str | None = None,
        text: str | None = None,
        note: str,
        progress: Progress | None = None,
    ) -> Forgotten:
        """Erase what has ended of one person; that it was here stays known, as after pruning.

        Whoever is found by key, thread or literal text is followed through the whole thread. One
        in which something has not ended is left alone, and named.
        """
        signed = by.acts("forget", note)
        who = _who(key, thread, text)
        _check_reason(note, who)
        return await self._forget(who, signed, progress)

    async def forget_preview(
        self,
        by: Person,
        *,
        key: str | None = None,
        thread: str | None = None,
        text: str | None = None,
        note: str | None = None,
    ) -> Forgotten:
        """What forget() would erase, and whether the note will do; nothing is done."""
        by.acts("forget")
        who = _who(key, thread, text)
        if note is not None:
            _check_reason(note, who)
        return await self._forget(who, None, None)

    async def _forget(self, who: Who, by: By | None, progress: Progress | None) -> Forgotten:
        told = _Telling(act="" if by is None else f"forget/{new_id()}")
        seeds = await self._seeds(who)
        batch: list[Whole] = []
        async for whole in self._wholes(seeds, await self._letters()):
            reason = self._unfinished(whole)
            if reason is not None:
                told.leave(reason)
            else:
                told.take(self._own(whole))
                batch.append(whole)
            if by is not None and _size(batch) >= BATCH:
                await self._erase(batch, by, told)
                batch = []
            if progress is not None:
                total = max(len(seeds), told.threads + told.left)
                progress(Sweep(total=total, changed=told.threads, refused=told.left))
        if by is not None and batch:
            await self._erase(batch, by, told)
        return told.answer(is_dry=by is None)

    # finding

    async def _seeds(self, who: Who) -> dict[str, Seed]:
        """What the search finds by itself, by thread."""
        seeds: dict[str, Seed] = {}
        if who.thread is not None:
            seeds[await self._thread_of(who.thread)] = Seed()
            return seeds
        async for kept in self._kept(Letterbox(key=who.key, text=who.text)):
            if self.sees(kept.source):
                seeds.setdefault(kept.thread or kept.id, Seed()).deliveries.add(kept.id)
        async for leaf in self._leaves(Filter(key=who.key, text=who.text)):
            _sow(seeds, leaf, self.sees(leaf.queue))
        async for name, flow in self._noted(1_000_000):
            if who.is_in_name(name):
                async for leaf in self._leaves(Filter(flow=flow)):
                    _sow(seeds, leaf, self.sees(leaf.queue))
        if who.text is not None:
            await self._sow_effects(who.text, seeds)
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

    async def _thread_of(self, text: str) -> str:
        """The thread that was named, or that of the job or delivery that was."""
        id = parse_id(text)
        if id is None:
            return text
        [job] = await self.store.find([id])
        if job is not None and self.sees(job.queue):
            return job.thread or id
        [kept] = await self.store.delivery([id])
        return id if kept is None or not self.sees(kept.source) else kept.thread or id

    async def _leaves(self, where: Filter) -> AsyncIterator[Leaf]:
        cursor = None
        while True:
            page = await self.store.page(where, cursor=cursor, limit=PAGE_MAX)
            for job in page.jobs:
                yield _leaf(job)
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
                        whole.deliveries[kept.id] = kept.source
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
                whole.deliveries[kept.id] = kept.source
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

    # judging

    def _unfinished(self, whole: Whole) -> LeftAlone | None:
        """Why this must be left alone; None when all of it has ended."""
        live = [leaf for leaf in whole.leaves.values() if leaf.state in LIVE]
        if not live and not whole.letters:
            return None
        mine = [leaf for leaf in live if self.sees(leaf.queue)]
        why, advice = _why(mine, bool(live))
        ids = [leaf.id for leaf in mine] or sorted(whole.letters if not live else ())
        return LeftAlone(thread=whole.thread, jobs=tuple(ids[:10]), why=why, advice=advice)

    def _own(self, whole: Whole) -> Whole:
        """What of it this desk may reach."""
        hidden = [leaf for leaf in whole.leaves.values() if not self.sees(leaf.queue)]
        for leaf in hidden:
            del whole.leaves[leaf.id]
        if hidden:
            whole.flows.clear()  # their keys are others' too
        sources = whole.deliveries.items()
        whole.deliveries = {id: source for id, source in sources if self.sees(source)}
        return whole

    # erasing

    async def _erase(self, batch: Sequence[Whole], by: By, told: _Telling) -> None:
        leaves = {id: leaf for whole in batch for id, leaf in whole.leaves.items()}
        deliveries = [id for whole in batch for id in whole.deliveries]
        gone = await self._effects_of_gone(batch) - leaves.keys()
        erased = 0
        for jobs, kept in _steps([*leaves, *gone], deliveries):
            erased += (await self.store.erase(jobs, kept, by, act=told.act))[0]
        if erased < len(leaves):
            await self._spared(leaves, told)
        await self._forget_flows({flow for whole in batch for flow in whole.flows})

    async def _effects_of_gone(self, batch: Sequence[Whole]) -> set[str]:
        """Jobs that are pruned and whose effects are not yet."""
        gone = {id for whole in batch for id in whole.gone if self.apps is None}
        threads = sorted(chain.from_iterable(whole.threads for whole in batch))
        for start in range(0, len(threads), BATCH):
            some = frozenset(threads[start : start + BATCH])
            cursor = None
            while True:
                effects, cursor = await self.store.effects(
                    threads=some, cursor=cursor, limit=PAGE_MAX
                )
                gone |= {effect.job for effect in effects if self.sees(effect.queue)}
                if cursor is None:
                    break
        return gone

    async def _spared(self, leaves: dict[str, Leaf], told: _Telling) -> None:
        """Name what somebody has retried since it was looked at."""
        ids = list(leaves)
        for start in range(0, len(ids), BATCH):
            for job in await self.store.find(ids[start : start + BATCH]):
                if job is not None:
                    told.spare(_leaf(job))

    async def _forget_flows(self, flows: set[str]) -> None:
        """Their keys are text; who starts one again starts a new one, now as before."""
        if flows:
            names = [name async for name, flow in self._noted(1_000_000) if flow in flows]
            await self.store.forget(KEYS, names)


class _Telling:
    """The answer as it grows."""

    def __init__(self, act: str) -> None:
        self.act = act
        self.threads = 0
        self.left = 0
        self._deliveries = 0
        self._jobs: Counter[str] = Counter()
        self._left_alone: list[LeftAlone] = []

    def take(self, whole: Whole) -> None:
        self.threads += 1
        self._deliveries += len(whole.deliveries)
        self._jobs.update(leaf.queue for leaf in whole.leaves.values())

    def leave(self, reason: LeftAlone) -> None:
        self.left += 1
        if len(self._left_alone) < SHOWN:
            self._left_alone.append(reason)

    def spare(self, leaf: Leaf) -> None:
        self._jobs[leaf.queue] -= 1
        why, advice = _why([leaf], True)
        self.leave(LeftAlone(thread=leaf.thread, jobs=(leaf.id,), why=why, advice=advice))

    def answer(self, *, is_dry: bool) -> Forgotten:
        return Forgotten(
            act=self.act if self.threads else "",
            threads=self.threads,
            deliveries=self._deliveries,
            jobs={queue: count for queue, count in sorted(self._jobs.items()) if count > 0},
            left=self.left,
            left_alone=self._left_alone,
            is_dry=is_dry,
        )


def _who(key: str | None, thread: str | None, text: str | None) -> Who:
    said = {"key": key, "thread": thread, "text": text}
    given = {name: value for name, value in said.items() if value is not None}
    if len(given) != 1:
        raise DefinitionError("say who is meant by one of key, thread and text")
    for name, value in given.items():
        least = TEXT_MIN if name == "text" else 1
        if not least <= len(value.strip()) <= len(value) <= TEXT_MAX:
            raise DefinitionError(f"{name} has {least} to {TEXT_MAX} characters, not {len(value)}")
    return Who(key, thread, text)


def _check_reason(note: str, who: Who) -> None:
    if not note.strip():
        raise DefinitionError("say why in a note: it is all that stays of what was erased")
    said = who.key or who.text or ""
    if len(said) >= TEXT_MIN and said.casefold() in note.casefold():
        raise DefinitionError("the note stays in the audit for good: say why without naming them")


def _leaf(job: Job) -> Leaf:
    return Leaf(job.id, job.queue, job.kind, job.state, job.thread or job.id, job.cause, job.flow)


def _sow(seeds: dict[str, Seed], leaf: Leaf, is_seen: bool) -> None:
    if is_seen:
        seeds.setdefault(leaf.thread, Seed()).jobs.add(leaf.id)


def _size(batch: Sequence[Whole]) -> int:
    return sum(len(whole.leaves) + len(whole.deliveries) + len(whole.threads) for whole in batch)


def _steps(jobs: list[str], deliveries: list[str]) -> list[tuple[list[str], list[str]]]:
    """As few calls as may be. Deliveries last: who is interrupted finds by them what is left."""
    many = [jobs[start : start + BATCH] for start in range(0, len(jobs), BATCH)] or [[]]
    more = [deliveries[start : start + BATCH] for start in range(0, len(deliveries), BATCH)] or [[]]
    return [
        *((some, []) for some in many[:-1]),
        (many[-1], more[0]),
        *(([], some) for some in more[1:]),
    ]


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


def _why(mine: Sequence[Leaf], is_job: bool) -> tuple[str, str]:
    if not is_job:
        return "a letter waits to be carried", "wait until it has been, and its job has ended"
    if not mine:
        return "a job of another app has not ended", "ask somebody who sees that app"
    if any(leaf.is_endless for leaf in mine):
        return "a poller or schedule never ends", "say by key or text whose jobs are meant"
    leaf = mine[0]
    more = f", and {len(mine) - 1} more have not ended" if len(mine) > 1 else ""
    return (
        f"job {leaf.id} of {leaf.queue} is {leaf.state}{more}",
        f"wait until all have ended, or `relevo jobs cancel {leaf.id}`",
    )
