"""Desk: what a person may do to jobs, queues and effects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from msgspec.json import decode as decode_json
from msgspec.json import encode as encode_json
from msgspec.structs import replace

from relevo.clock import Duration, duration
from relevo.desk.bulk import reason
from relevo.desk.changing import Changing
from relevo.desk.editing import Editing
from relevo.desk.events import Events
from relevo.desk.forgetting import Forgetting
from relevo.desk.groups import Groups
from relevo.desk.looking import PAGE_MAX, plain_id
from relevo.desk.people import Person
from relevo.desk.replaying import Replaying
from relevo.desk.restoring import Restoring
from relevo.desk.searching import Searching
from relevo.desk.told import misfit, unlike
from relevo.errors import (
    MisuseError,
    NotAllowed,
    NotFoundError,
    QueueClosed,
)
from relevo.ids import new_id
from relevo.job import ENDED, LIVE, NewJob, State, Verdict, queue_name
from relevo.job_meta import decode_meta
from relevo.message import EVENTS
from relevo.once import TYPES, type_name
from relevo.payload import plain
from relevo.sealing import is_sealed
from relevo.store import BATCH, UNDECIDED, Audit, By, Effect, EffectState, QueueMode


class Desk(Forgetting, Groups, Changing, Replaying, Restoring, Events, Editing, Searching):
    """One store at a person's hands; with `apps`, only the queues of those apps."""

    # changing jobs

    async def retry(self, ids: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Ready again with fresh attempts; False where the job is in no state for it."""
        signed = by.acts("retry", note)
        return await self._each(ids, lambda batch: self.store.retry(batch, signed))

    async def repeated_effects(self, id: str) -> list[Effect]:
        """The effects of a job that a job with its payload would make a second time, if it makes
        them under the same names; at most the first 200."""
        known = frozenset({EffectState.CONFIRMED, *UNDECIDED})
        effects, _ = await self.effects(job=id, states=known, limit=PAGE_MAX)
        return effects

    async def run_again(
        self, id: str, by: Person, note: str = "", *, repeats_effects: bool = False
    ) -> str:
        """Enqueue the command of a job that has ended once more; answers the new job's id.

        The new job has the payload, the lane, the number of attempts and the `keep` of the first,
        no key and a ledger of its own: it makes every effect again. If the first has made some,
        that has to be asked for with `repeats_effects`. To go on where a job has failed, retry it.
        """
        signed = by.acts("run_again", note)
        job = await self.job(id)
        if job.state not in ENDED:
            raise MisuseError(f"job {job.id} is {job.state}: it has not ended, and runs by itself")
        if job.flow is not None or is_sealed(job.payload):
            why = "belongs to a flow" if job.flow is not None else "is sealed, and no key opens it"
            raise MisuseError(f"job {job.id} {why}: it cannot be run again by itself")
        made = await self.repeated_effects(job.id)
        if made and not repeats_effects:
            names = ", ".join(dict.fromkeys(f"'{effect.name}'" for effect in made[:5]))
            raise MisuseError(
                f"job {job.id} has made {names}, which a new job would make a second time: ask for "
                "that explicitly (repeat_effects), or retry the job, which repeats no effect"
            )
        new = NewJob(
            id=new_id(),
            queue=job.queue,
            kind=job.kind,
            payload=job.payload,
            priority=job.priority,
            attempts=job.attempts,
            lane=job.lane,
            thread=job.thread or job.id,
            cause=job.id,
            keep=job.keep,
            meta=_without_origin(job.meta),
        )
        closed = QueueClosed(f"{job.queue} is draining and takes no new jobs; resume it first")
        if (await self.queue(job.queue)).mode is QueueMode.DRAINING:
            raise closed
        # The audit row first: after a crash in between it names a job that was never stored.
        line = Audit(
            who=signed.who, verb="run again", target=job.id, note=signed.note, after=new.id
        )
        await self.store.audit([line])
        [receipt] = await self.store.insert([new])
        if receipt.verdict is Verdict.CLOSED:
            raise closed
        return receipt.id

    async def cancel(self, ids: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """End jobs that have not ended; a running one loses its lease."""
        signed = by.acts("cancel", note)
        return await self._each(ids, lambda batch: self.store.cancel(batch, signed))

    async def discard(self, ids: Sequence[str], by: Person, note: str) -> list[bool]:
        """Put dead or held jobs aside for good; the note says why."""
        signed = by.acts("discard", reason(note))
        return await self._each(ids, lambda batch: self.store.discard(batch, signed))

    async def _each(
        self, ids: Sequence[str], act: Callable[[list[str]], Awaitable[list[bool]]]
    ) -> list[bool]:
        plain_ids = [plain_id(id) for id in ids]
        unique = list(dict.fromkeys(plain_ids))
        answers: dict[str, bool] = {}
        for start in range(0, len(unique), BATCH):
            batch = unique[start : start + BATCH]
            if self.apps is not None:
                jobs = await self.store.find(batch)
                batch = [job.id for job in jobs if job is not None and self.sees(job.queue)]
            answers |= zip(batch, await act(batch), strict=True) if batch else ()
        return [answers.get(id, False) for id in plain_ids]

    # queues

    async def pause(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Give nothing out; False where it was so already."""
        return await self._mode(queues, QueueMode.PAUSED, by.acts("pause", note))

    async def resume(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Open again; False where it was so already."""
        return await self._mode(queues, QueueMode.OPEN, by.acts("resume", note))

    async def drain(self, queues: Sequence[str], by: Person, note: str = "") -> list[bool]:
        """Take nothing in; False where it was so already. `drained()` tells when all is done."""
        return await self._mode(queues, QueueMode.DRAINING, by.acts("drain", note))

    async def _mode(self, queues: Sequence[str], mode: QueueMode, by: By) -> list[bool]:
        for queue in queues:
            if not self.sees(queue_name(queue)):
                raise NotFoundError(f"no queue is called {queue}")
        return await self.store.set_mode(queues, mode, by)

    async def drained(self, queue: str, *, every: Duration = "500ms") -> AsyncIterator[int]:
        """How many live jobs a queue has, again and again until there are none."""
        pause = duration(every).total_seconds()
        while True:
            counts = (await self.queue(queue)).counts
            left = sum(counts.get(state, 0) for state in LIVE)
            yield left
            if not left:
                return
            await asyncio.sleep(pause)

    # workers

    async def forget_worker(self, id: str, by: Person, note: str = "") -> None:
        """Take a worker that is silent or gone off the list; if it lives, its next beat brings it
        back."""
        signed = by.acts("forget_worker", note)
        found = next((each for each in await self.store.workers() if each.id == id), None)
        if found is None or not any(map(self.sees, found.queues or [""])):
            raise NotFoundError(f"no worker of the last day has the id {id:.80}")
        if not all(self.sees(queue) or queue == EVENTS for queue in found.queues):
            raise NotAllowed(f"{id:.80} serves queues of apps that {by.name} does not see")
        if found.is_alive:
            raise MisuseError(f"{id:.80} is alive: stop its process, and it leaves by itself")
        line = Audit(who=signed.who, verb="forget worker", target=id, note=signed.note)
        await self.store.audit([line])
        await self.store.leave(id)

    # effects

    async def confirm_effect(
        self, job: str, name: str, result: Any, by: Person, note: str = "", *, anyway: bool = False
    ) -> bool:
        """It did happen, and this came of it: the job goes on, and `once` answers with the result.

        A result of another shape than what earlier calls gave is refused, unless it shall be
        written `anyway`. False when the fact is written but the job cannot be retried.
        """
        signed = by.acts("confirm_effect", note)
        effect = await self._decidable(job, name)
        data = plain(result)
        if (
            effect.state is EffectState.CONFIRMED
            and effect.result not in (None, data)
            and not await self._may_be_mended(effect)
        ):
            raise MisuseError(f"'{name}' is confirmed already, with another result")
        if not anyway:
            await self._check_shape(effect, result)
        decided = replace(
            effect, state=EffectState.CONFIRMED, result=data, run="", decided_by=signed.who
        )
        return await self._decide(decided, signed)

    async def deny_effect(
        self, job: str, name: str, by: Person, note: str = "", *, fresh_key: bool = False
    ) -> bool:
        """It did not happen: the job goes on and asks for it again with the same key.

        With a `fresh_key` the provider is asked as if for the first time: it may have kept its
        answer to the old one. False when the fact is written but the job cannot be retried.
        """
        signed = by.acts("deny_effect", note)
        effect = await self._decidable(job, name)
        if effect.state not in UNDECIDED | {EffectState.FAILED, EffectState.REFUSED}:
            raise MisuseError(f"'{name}' is {effect.state}; only an uncertain effect can be denied")
        is_fresh = fresh_key or effect.state is EffectState.REFUSED
        # A refusal that no run has heard is a person's wish.
        state = EffectState.REFUSED if is_fresh else EffectState.FAILED
        decided = replace(effect, state=state, run="", decided_by=signed.who)
        return await self._decide(decided, signed)

    async def _may_be_mended(self, effect: Effect) -> bool:
        """Whether what a person told may be told again: the job could not use it."""
        owners = await self.askers(effect)
        return bool(effect.decided_by) and any(
            owner.state in (State.HELD, State.DEAD) for owner in owners
        )

    async def _check_shape(self, effect: Effect, result: Any) -> None:
        """MisuseError if a result does not fit the call's `type=`, or has another shape than what
        earlier calls of this name gave."""
        earlier: list[Any] = []
        same = effect.name.partition("@")[0]
        [noted] = await self.store.recall(TYPES, [type_name(effect.queue, effect.name)])
        if noted is not None:
            said = misfit(result, decode_json(noted.value))
            if said:
                raise MisuseError(f"the result of '{same}' cannot be that: {said}")
            return
        effects, _ = await self.effects(
            states=frozenset({EffectState.CONFIRMED}), text=f":{same}", limit=PAGE_MAX
        )
        for each in effects:
            is_alike = each.queue == effect.queue and each.name.partition("@")[0] == same
            is_told = each.result is not None and not is_sealed(each.result)
            if is_alike and is_told and each.job != effect.job:
                earlier.append(decode_json(each.result or b""))
        said = unlike(result, earlier)
        if said:
            raise MisuseError(f"the result of '{same}' cannot be that: {said}")

    async def _decidable(self, job: str, name: str) -> Effect:
        effect = await self.effect(job, name)
        for owner in await self.askers(effect):
            if owner.state in (State.RUNNING, State.DONE):
                raise MisuseError(
                    f"job {owner.id} is {owner.state}; an effect is decided while its job is held"
                )
        return effect

    async def _decide(self, effect: Effect, by: By) -> bool:
        # Decided before, but the retry was lost: only the retry is left to do.
        known = await self.effect(effect.job, effect.name)
        if (known.state, known.result, known.run) != (effect.state, effect.result, effect.run):
            [written] = await self.store.conclude([effect], by)
            if not written:
                raise MisuseError(f"'{effect.name}' was decided by someone else just now")
        ids = [owner.id for owner in await self.askers(effect)]
        return any(await self.store.retry(ids, by)) if ids else False


def _without_origin(meta: bytes | None) -> bytes | None:
    """What travels beside a payload, for a job whose effects are its own."""
    if meta is None or b'"origin"' not in meta:
        return meta
    made = decode_meta(meta)
    made.origin = None
    return encode_json(made)
