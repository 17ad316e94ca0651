"""Forgetting: everything of one person goes before its time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain

import msgspec

from relevo.desk.belongings import Belongings, Leaf, Who, Whole, leaf_of
from relevo.desk.flows import KEYS
from relevo.desk.looking import PAGE_MAX, TEXT_MAX
from relevo.desk.people import Person
from relevo.desk.views import Progress, Sweep
from relevo.errors import DefinitionError
from relevo.ids import new_id
from relevo.job import LIVE
from relevo.store import BATCH, EDITS, By

TEXT_MIN = 4
"""Fewer letters occur in too much that is somebody else's."""

SHOWN = 100


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


class Forgetting(Belongings):
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
        known = leaves.keys() | gone
        edits = [name async for name, change in self._changes() if change.job in known]
        if edits:
            await self.store.forget(EDITS, edits)

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
                    told.spare(leaf_of(job))

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
