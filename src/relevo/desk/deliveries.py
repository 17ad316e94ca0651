"""Deliveries: what came in at the doors, why some were turned away, and letting one in again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote_plus

import msgspec
from msgspec.structs import replace

from relevo import sensitive
from relevo.clock import moment
from relevo.desk.looking import PAGE_MAX, Looking, opened, plain_id, sealed
from relevo.desk.people import Person
from relevo.errors import (
    DefinitionError,
    MisuseError,
    NotFoundError,
    QueueClosed,
    SealError,
    SettingsError,
    StoreError,
)
from relevo.ids import first_moment_of, moment_of, new_id, replay_id
from relevo.job import Job, NewJob, State, Verdict
from relevo.job_meta import origin_of
from relevo.outcome import describe
from relevo.payload import mask
from relevo.scrubbing import mask as mask_text
from relevo.sealing import unsealed
from relevo.store import (
    NOT_KEPT,
    UNHANDLED,
    UNSIGNED,
    Audit,
    By,
    DeliveryState,
    Effect,
    EffectState,
    Kept,
    Letterbox,
    Note,
)
from relevo.unrouted import KEEP, Unrouted, read
from relevo.unrouted import KIND as UNROUTED
from relevo.webhook import Answer, read_answer

if TYPE_CHECKING:
    from relevo.intake import Handling, Taken

K = TypeVar("K", bound=Kept)

TEXT_MAX = 500
HANDLER = "webhook:handle"
"""The kind of the jobs that run a webhook's function for a delivery that is stored."""


class EffectsRepeated(MisuseError):
    """A replay would make confirmed effects again, and nobody asked for that; nothing was kept."""


OURS = (StoreError, QueueClosed, SettingsError, SealError, EffectsRepeated)
"""What is told of a replay as it is; anything else is a mistake of the webhook's function."""


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a delivery made, or would make."""

    id: str
    queue: str
    kind: str
    key: str | None
    payload: bytes


class Happened(msgspec.Struct, frozen=True, kw_only=True):
    """A confirmed effect of an earlier generation of a delivery."""

    job: str
    queue: str
    name: str
    key: str
    confirmed_at: int


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """What became of letting a delivery in again, or would."""

    id: str  # the new delivery's, which is also its thread
    of: str  # the one that was let in again
    endpoint: str
    key: str
    generation: int
    answer: Answer
    orders: list[Order]
    is_dry: bool = False  # nothing was kept
    # Of a dry run: what a replay would find confirmed, or make twice if it repeats effects.
    effects: list[Happened] = msgspec.field(default_factory=list[Happened])
    refused: str = ""  # of a dry run: why a replay is refused unless it repeats effects


class HandlingFailed(MisuseError):
    """The function of a delivery that a person lets in fails on it; nothing was kept."""

    def __init__(self, kept: Kept, mistake: Exception) -> None:
        failure = describe(mistake)
        self.error = f"{failure.type}: {failure.message}"
        super().__init__(
            f"its function fails on delivery {kept.id}, and nothing was kept: {self.error}"
        )


class DeliveryJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job that stands for a delivery, and what it was when the delivery was stored."""

    id: str
    verdict: Verdict | None  # NEW, IN_PROGRESS or DONE: it joined such a job; None: it is gone
    is_used: bool = True  # False: it joined a job of another payload, and its own is not used
    queue: str | None = None
    kind: str | None = None
    state: State | None = None
    run_at: int = 0  # when it runs next, while it waits
    attempt: int = 0
    attempts: int = 0


class DeliveryView(Kept, frozen=True, kw_only=True):
    """A delivery in full, with what stands around it."""

    orders: list[DeliveryJob] = msgspec.field(default_factory=list[DeliveryJob])
    handler: DeliveryJob | None = None  # the job that runs its function (again)
    others: list[Kept] = msgspec.field(default_factory=list[Kept])  # other bodies of its key
    first: str | None = None  # the delivery whose key it has with another body


class Deliveries(Looking):
    """The doors of one store, seen by a person."""

    async def deliveries(
        self,
        where: Letterbox,
        cursor: str | None = None,
        limit: int = 50,
        *,
        since: int | None = None,
    ) -> tuple[list[Kept], str | None]:
        """What was delivered, newest first, without bodies; 1 to 200 at once."""
        for name in ("endpoint", "key", "thread", "text"):
            text = getattr(where, name)
            if text is not None and not 0 < len(text) <= TEXT_MAX:
                raise DefinitionError(f"{name} has 1 to {TEXT_MAX} characters, not {len(text)}")
        limit = min(max(limit, 1), PAGE_MAX)
        place = opened(cursor, where)
        found: list[Kept] = []
        for _ in range(20):  # a page may come back short, but never endlessly late
            some, place = await self.store.deliveries(where, cursor=place, limit=limit - len(found))
            if since is not None and some:
                place = None if some[-1].received_at < since else place
                some = [kept for kept in some if kept.received_at >= since]
            seen = [kept for kept in some if self.sees(kept.endpoint)]
            found += await self.readable(where, seen)
            is_whole = self.apps is None and (self.reveals or where.text is None)
            if place is None or len(found) >= limit or is_whole:
                break
        if not found and not self.reveals and where.text is not None:
            place = None  # that there is more would be an answer too
        found = [replace(kept, reason=self.told(kept.reason)) for kept in found]
        return found, sealed(place, where)

    async def delivery(self, id: str) -> Kept:
        """One delivery in full."""
        plain = plain_id(id, "a delivery's id", "see `relevo deliveries ls`")
        [kept] = await self.store.delivery([plain])
        if kept is None or not self.sees(kept.endpoint):
            raise NotFoundError(f"no delivery has the id {plain}: it may be past its keeping time")
        return self._with_joined(kept, await self._stands(kept.jobs[:PAGE_MAX]))

    async def unrouted(self, endpoint: str | None = None) -> list[Unrouted]:
        """Calls that reached an endpoint, or nearly, and were not taken; the last ones first."""
        notes: list[Note] = []
        while more := await self.store.notes(UNROUTED, after=notes[-1].name if notes else ""):
            notes += more
        found = [each for note in notes for each in read(note)]
        oldest = await self.store.now() - KEEP if found else 0
        mine = [
            each
            for each in found
            if each.last_at > oldest
            and endpoint in (None, each.endpoint)
            and self.sees(each.endpoint)
        ]
        return sorted(mine, key=lambda each: (-each.last_at, each.endpoint, each.cause))

    async def delivery_view(self, id: str) -> DeliveryView:
        """One delivery in full, with the verdicts of its jobs and the other bodies of its key."""
        kept = await self.delivery(id)
        stands = await self._stands(kept.jobs[:PAGE_MAX])
        orders = [delivery_job(kept, id, stands.get(id)) for id in kept.jobs[:PAGE_MAX]]
        orders = [each for each in orders if each.queue is None or self.sees(each.queue)]
        handler = next((each for each in orders if each.kind == HANDLER), None)
        alike: list[Kept] = []
        if kept.key is not None and (kept.differs or kept.generation < 0):
            where = Letterbox(endpoint=kept.endpoint, key=kept.key)
            alike, _ = await self.store.deliveries(where, limit=PAGE_MAX)
            alike = [replace(each, reason=self.told(each.reason)) for each in alike]
        first = next((each.id for each in alike if each.generation == 0), None)
        return DeliveryView(
            **{name: getattr(kept, name) for name in Kept.__struct_fields__},
            orders=orders,
            handler=handler,
            others=[each for each in alike if each.generation < 0 and each.id != kept.id],
            first=first if kept.generation < 0 else None,
        )

    def masked_delivery(self, kept: K) -> K:
        """The delivery as a viewer sees it: what looks personal or secret is masked."""
        is_told = kept.status == UNSIGNED and kept.body.startswith(NOT_KEPT)
        return replace(
            kept,
            query="&".join(map(_masked_field, kept.query.split("&"))),
            body=mask(kept.body) if kept.body and not is_told else kept.body,
            answer=_masked_answer(kept.answer) if kept.answer else b"",
            reason=mask_text(kept.reason),
        )

    async def replay(
        self,
        id: str,
        by: Person,
        handling: Handling,
        note: str = "",
        *,
        dry_run: bool = False,
        repeat_effects: bool = False,
    ) -> Replay:
        """Run today's code on a delivery's raw bytes, as the next generation of its key.

        All of its jobs run again, and so do theirs; effects that were confirmed are not made again,
        at any depth, unless it shall `repeat_effects`. A delivery whose function failed or has not
        run yet, or that differs from an earlier one of its key, is handled itself, once. Also on
        one that was signed well and refused. A dry run tells what would be enqueued and which
        effects are confirmed, and keeps nothing.

        EffectsRepeated where today's code orders a job with another payload than before, which
        would not find the effects of the first one, unless it shall `repeat_effects`.
        """
        signed = by.acts("replay", note)
        kept = await self.delivery(id)
        if not is_replayable(kept):
            raise MisuseError(
                f"delivery {kept.id} was turned away ({kept.reason or 'or is pruned'}), and its "
                "signature is not kept: ask the provider to send it again"
            )
        is_unhandled = kept.state in UNHANDLED or await self._waits(kept)
        if is_unhandled and not dry_run:
            return await self._handle(kept, handling, signed)
        receiver = handling.receiver
        door = receiver.door(kept.endpoint)
        if door is None:
            raise MisuseError(f"no app here has the webhook {kept.endpoint}; load it with --app")
        from relevo.intake import REPLAYED_SO, delivery_of

        reason = kept.reason if kept.reason.endswith(REPLAYED_SO) else ""
        unsealed(kept.body)
        again = delivery_of(kept, moment(kept.received_at), door)
        try:
            key = kept.key or door.key(again)
            [newest] = await self.store.delivered(kept.endpoint, [key])
            last = newest or (None if kept.state is DeliveryState.REFUSED else kept)
            generation = 0 if last is None else last.generation + 1
            first = await self._first(kept)
            if is_unhandled:
                generation = kept.generation
            else:
                came = kept if first else last
                id = new_id() if came is None else replay_id(_first_moment(came))
                again = replace(again, id=id)
            if dry_run:
                taken = await receiver.rehearse(door, again, generation, reason, first=first)
                made = replace(_replay(kept, taken, generation), is_dry=True)
                why = await self._repeats(kept, first, taken.jobs)
                return replace(made, effects=await self.happened(kept), refused=why)

            async def check(jobs: Sequence[NewJob]) -> None:
                if why := await self._repeats(kept, first, jobs):
                    raise EffectsRepeated(why)

            taken = await receiver.replay(
                door,
                again,
                generation,
                reason,
                repeats_effects=repeat_effects,
                first=first,
                check=None if repeat_effects else check,
            )
        except OURS:
            raise
        except Exception as mistake:
            raise HandlingFailed(kept, mistake) from mistake
        if not taken.is_new:
            raise MisuseError(f"delivery {kept.id} was let in again by someone else just now")
        done = Audit(
            who=signed.who, verb="replay", target=kept.id, note=signed.note, after=taken.kept.id
        )
        await self.store.audit([done])
        return _replay(kept, taken, generation)

    async def happened(self, kept: Kept) -> list[Happened]:
        """The confirmed effects that a replay of a delivery would find, at every depth; oldest
        first.

        A replay that repeated effects made them under ids of its own, which no other replay finds.
        It is known by its jobs, and counted as any other once they are pruned.
        """
        effects = await self.confirmed(await self.threads_of(kept))
        return [
            Happened(
                job=one.job,
                queue=one.queue,
                name=one.name,
                key=one.key,
                confirmed_at=one.updated_at,
            )
            for one in effects
        ]

    async def threads_of(self, kept: Kept) -> frozenset[str]:
        """The threads whose effects a replay of a delivery would find."""
        mine = await self._generations(kept)
        firsts = [one.jobs[0] for one in mine if one.generation > 0 and one.jobs]
        jobs = [job for job in await self.store.find(firsts) if job is not None]
        repeated = {job.id for job in jobs if origin_of(job) == job.id}
        return frozenset(
            one.thread or one.id for one in mine if not repeated.intersection(one.jobs[:1])
        )

    async def _generations(self, kept: Kept) -> list[Kept]:
        """A delivery, what it replays, and the replays of that."""
        if kept.key is None:
            return []
        box, cursor = Letterbox(endpoint=kept.endpoint, key=kept.key), None
        alike: dict[str, Kept] = {kept.id: kept}
        while True:
            some, cursor = await self.store.deliveries(box, cursor=cursor, limit=PAGE_MAX)
            alike |= {one.id: one for one in some}
            if cursor is None:
                break
        return [one for one in alike.values() if _first_moment(one) == _first_moment(kept)]

    async def _repeats(self, kept: Kept, first: int, jobs: Sequence[NewJob]) -> str:
        """Why a replay with these jobs would make confirmed effects again; empty if it would not.

        Effects are found by the payload of the job that a delivery orders. Where a queue is given
        another job than before, the effects of that one would not be found.
        """
        before = {
            job
            for one in await self._generations(kept)
            if one.generation == first
            for job in one.jobs
        }
        left = before - {origin_of(job) for job in jobs}
        if not left or all(origin_of(job) in before for job in jobs):
            return ""
        rows = {job.id: job for job in await self.store.find(list(left)) if job is not None}
        keys = {(job.queue, job.key) for job in rows.values() if job.unique == "forever"}
        others = {
            job.queue
            for job in jobs
            # One that joins what was done, or is dead, makes no effect of its own.
            if origin_of(job) not in before
            and (job.key is None or (job.queue, job.key) not in keys)
        }
        queues = {id: job.queue for id, job in rows.items()}
        found: dict[str, None] = {}
        for effect in await self.confirmed(await self.threads_of(kept)) if others else ():
            top = await self._top(effect.job, left)
            if top in left and queues.get(top, effect.queue) in others:
                found[f"'{effect.name}' of {effect.queue}"] = None
        if not found:
            return ""
        return (
            f"today's code orders a job of {', '.join(sorted(others))} with another payload than "
            f"before, so what is confirmed would be made twice: {', '.join(found)}. Ask to repeat "
            "effects if that is meant"
        )

    async def _top(self, id: str, known: set[str]) -> str:
        """Which of the known jobs a job comes of; the last one that is found if it is none."""
        while id not in known:
            [job] = await self.store.find([id])
            if job is None or job.cause in (None, id):
                break
            id = job.cause
        return id

    async def confirmed(self, threads: frozenset[str]) -> list[Effect]:
        """The confirmed effects of threads, oldest first."""
        found: list[Effect] = []
        cursor = None
        while threads:
            effects, cursor = await self.store.effects(
                states=frozenset({EffectState.CONFIRMED}),
                threads=threads,
                cursor=cursor,
                limit=PAGE_MAX,
            )
            found += [one for one in effects if self.sees(one.queue)]
            if cursor is None:
                break
        return sorted(found, key=lambda one: (one.updated_at, one.job, one.name))

    async def _first(self, kept: Kept) -> int:
        """The generation that a delivery is, or that it replays: 0, or another body's."""
        if kept.generation <= 0:
            return kept.generation
        box, cursor = Letterbox(endpoint=kept.endpoint, key=kept.key), None
        while True:
            some, cursor = await self.store.deliveries(box, cursor=cursor, limit=PAGE_MAX)
            at = first_moment_of(kept.id)
            ids = [one.id for one in some if one.generation < 0 and moment_of(one.id) == at]
            for other in await self.store.delivery(ids):
                # Two bodies may have come in the same millisecond.
                if other is not None and other.body == kept.body:
                    return other.generation
            if cursor is None:
                return 0

    async def _waits(self, kept: Kept) -> bool:
        """Whether a job is still to run its function: what that orders takes the job's place."""
        [job] = await self.store.find(kept.jobs[:1]) if kept.jobs else [None]
        return job is not None and job.kind == HANDLER

    async def _handle(self, kept: Kept, handling: Handling, by: By) -> Replay:
        """Run the function of a delivery that nothing came of yet, in place of its own job."""
        job = kept.jobs[0] if kept.jobs else ""
        try:
            taken = await handling.resolve_for_person(kept, job)
        except OURS:
            raise
        except Exception as mistake:
            raise HandlingFailed(kept, mistake) from mistake
        if taken is None:
            raise MisuseError(f"delivery {kept.id} was handled by another person or job just now")
        await self._end_handler(job, by)
        done = Audit(who=by.who, verb="replay", target=kept.id, note=by.note, after=kept.id)
        await self.store.audit([done])
        return _replay(kept, taken, kept.generation)

    async def _end_handler(self, job: str, by: By) -> None:
        """End the job that would have run the function; one that runs finds nothing to do."""
        [found] = await self.store.find([job]) if job else [None]
        match None if found is None else found.state:
            case State.DEAD | State.HELD:
                await self.store.discard([job], by)
            case State.READY | State.SCHEDULED | State.PARKED:
                await self.store.cancel([job], by)
            case _:
                pass


def delivery_job(kept: Kept, id: str, job: Job | None) -> DeliveryJob:
    """What a job is to a delivery: of its own thread it is new, of another it was joined."""
    if job is None:
        return DeliveryJob(id=id, verdict=None)
    verdict = Verdict.NEW
    if job.thread not in ("", kept.id, kept.thread):
        has_ended = job.ended_at is not None and job.ended_at <= kept.received_at
        verdict = Verdict.DONE if has_ended else Verdict.IN_PROGRESS
    return DeliveryJob(
        id=job.id,
        verdict=verdict,
        is_used=id not in kept.joined,
        queue=job.queue,
        kind=job.kind,
        state=job.state,
        run_at=job.run_at,
        attempt=job.attempt,
        attempts=job.attempts,
    )


def _first_moment(kept: Kept) -> int:
    """The moment of the id of what a delivery is, or replays."""
    return first_moment_of(kept.id) if kept.generation > 0 else moment_of(kept.id)


def is_replayable(kept: Kept) -> bool:
    """Whether it is known to come from who it says, and still there."""
    if kept.state is DeliveryState.REFUSED:
        return kept.status != UNSIGNED
    return kept.key is not None


def _masked_field(field: str) -> str:
    name, equals, value = field.partition("=")
    plain = unquote_plus(value)
    hidden = sensitive.mask(plain, unquote_plus(name))
    return field if hidden == plain else name + equals + quote(hidden, safe="*@")


def _masked_answer(data: bytes) -> bytes:
    answer = read_answer(data)
    if answer is None:
        return data  # nobody is shown what cannot be read
    return msgspec.msgpack.encode(replace(answer, body=mask(answer.body) if answer.body else b""))


def _replay(kept: Kept, taken: Taken, generation: int) -> Replay:
    return Replay(
        id=taken.kept.id,
        of=kept.id,
        endpoint=kept.endpoint,
        key=kept.key or "",
        generation=generation,
        answer=taken.answer,
        orders=[
            Order(id=job.id, queue=job.queue, kind=job.kind, key=job.key, payload=job.payload)
            for job in taken.jobs
        ],
    )
