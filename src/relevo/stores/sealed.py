"""Sealed: any store, with what jobs and deliveries carry sealed before it gets there.

Whoever holds the wrapper sees plain data, the database sees what the seal made of it. What no key
opens comes back as it is stored, mark and all: whoever needs to read it says so, and nothing is
lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from relevo.job import Ending, Job, NewJob, Receipt, Verdict
from relevo.sealing import (
    Seal,
    is_sealed,
    opened,
    sealed_by,
    sealed_json,
    sealed_pairs,
    sealed_text,
)
from relevo.store import (
    BATCH,
    NO_RESULTS,
    SEALED_NOTES,
    Arrival,
    By,
    Claim,
    Edit,
    Effect,
    EffectState,
    Filter,
    Finding,
    Kept,
    Letter,
    Letterbox,
    Note,
    Page,
    Reception,
    SqlStore,
    Store,
    Want,
)
from relevo.webhook import Answer

S = TypeVar("S", bound=Store)

ANSWERS = 256  # doors mostly say the same: so many answers are sealed once


def sealed(store: S, seal: Seal | None) -> S:
    """The store with a seal around it; without a seal, or with one already, the store itself."""
    if seal is None or isinstance(store, Sealed):
        return store
    return cast("S", Sealed(store, seal))


class Sealed:
    """A store and the seal in front of it; every verb that is not here carries nothing to seal."""

    def __init__(self, store: Store, seal: Seal) -> None:
        self._store = cast("SqlStore", store)
        self._seal = seal
        self._answer = lru_cache(ANSWERS)(self._seal_answer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def spawn(self) -> Store:
        return sealed(self._store.spawn(), self._seal)

    async def check(self) -> list[Finding]:
        said = "what jobs and deliveries carry is sealed; keys, errors and names are not"
        return [*await self._store.check(), Finding(level="ok", subject="seal", message=said)]

    # in

    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._store.insert(self._jobs(jobs))

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._store.insert_within(connection, self._jobs(jobs))

    async def edit(self, edits: Sequence[Edit], by: By) -> list[bool]:
        changes = [
            one if one.payload is None else replace(one, payload=self._payload(one.payload))
            for one in edits
        ]
        return await self._store.edit(changes, by)

    # deliveries

    async def receive(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        answers = await self._store.receive([self._arrival(one) for one in arrivals])
        return self._received(arrivals, answers)

    async def receive_within(self, connection: Any, arrival: Arrival) -> Reception:
        answer = await self._store.receive_within(connection, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def resolve(self, job: str, arrival: Arrival) -> Reception:
        answer = await self._store.resolve(job, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def resolve_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        answer = await self._store.resolve_within(connection, job, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def delivered(self, endpoint: str, keys: Sequence[str]) -> list[Kept | None]:
        return self._every_kept(await self._store.delivered(endpoint, keys))

    async def deliveries(
        self, where: Letterbox, *, cursor: str | None = None, limit: int = 50
    ) -> tuple[list[Kept], str | None]:
        found, place = await self._store.deliveries(where, cursor=cursor, limit=limit)
        if where.text is not None:
            full = await self._store.delivery([kept.id for kept in found])
            chance = {
                kept.id
                for kept in full
                if kept is not None
                and self._is_chance(where.text, kept.body, kept.key or "", kept.reason)
            }
            found = [kept for kept in found if kept.id not in chance]
        return [self._kept(kept) for kept in found], place

    async def delivery(self, ids: Sequence[str]) -> list[Kept | None]:
        return self._every_kept(await self._store.delivery(ids))

    # out

    async def claim(self, wants: Sequence[Want], count: int, worker: str, lease: int) -> Claim:
        claim = await self._store.claim(wants, count, worker, lease)
        for one in claim.leases:
            payload = bytes(one.payload)
            one.payload = opened(self._seal, payload)
            one.sealed_by = sealed_by(self._seal, payload)
        return claim

    async def settle(self, endings: Sequence[Ending]) -> list[bool]:
        return await self._store.settle(self._endings(endings))

    async def settle_within(self, connection: Any, endings: Sequence[Ending]) -> list[bool]:
        return await self._store.settle_within(connection, self._endings(endings))

    # effects

    async def intend(self, effects: Sequence[Effect]) -> list[Effect]:
        known = await self._store.intend([self._closed_effect(one) for one in effects])
        return [self._effect(one) for one in known]

    async def conclude(self, effects: Sequence[Effect], by: By | None = None) -> list[bool]:
        closed = [self._closed_effect(one) for one in effects]
        written = await self._store.conclude(closed, by)
        return [
            is_written or await self._is_confirmed(effect)
            for effect, is_written in zip(effects, written, strict=True)
        ]

    async def _is_confirmed(self, effect: Effect) -> bool:
        """Whether it stands confirmed with the same result, which the store could not compare."""
        if effect.state is not EffectState.CONFIRMED or effect.result is None:
            return False
        cursor = None
        while True:
            found, cursor = await self.effects(job=effect.job, cursor=cursor, limit=200)
            for one in found:
                if one.name == effect.name:
                    return one.state is effect.state and one.result == effect.result
            if cursor is None:
                return False

    async def effects(
        self,
        *,
        job: str | None = None,
        states: frozenset[EffectState] = frozenset(),
        text: str | None = None,
        threads: frozenset[str] = frozenset(),
        cursor: str | None = None,
        limit: int = 50,
    ) -> tuple[list[Effect], str | None]:
        found, place = await self._store.effects(
            job=job, states=states, text=text, threads=threads, cursor=cursor, limit=limit
        )
        if text is not None:
            found = [one for one in found if not self._is_chance(text, one.result or b"", one.key)]
        return [self._effect(one) for one in found], place

    # memory

    async def recall(self, kind: str, names: Sequence[str]) -> list[Note | None]:
        found = await self._store.recall(kind, names)
        return [note and self._note(note) for note in found]

    async def remember(self, notes: Sequence[Note]) -> list[bool]:
        closed = [
            replace(note, value=sealed_json(self._seal, note.value))
            if note.kind in SEALED_NOTES
            else note
            for note in notes
        ]
        return await self._store.remember(closed)

    async def notes(self, kind: str, *, after: str = "", limit: int = 200) -> list[Note]:
        found = await self._store.notes(kind, after=after, limit=limit)
        return [self._note(note) for note in found]

    # people

    async def find(self, ids: Sequence[str]) -> list[Job | None]:
        return [job and self._job(job) for job in await self._store.find(ids)]

    async def page(self, where: Filter, *, cursor: str | None = None, limit: int = 50) -> Page:
        page = await self._store.page(where, cursor=cursor, limit=limit)
        jobs = page.jobs
        if where.text is not None:
            jobs = [
                job
                for job in jobs
                if not self._is_chance(
                    where.text, job.payload, job.key or "", job.note, *_said(job)
                )
            ]
        return Page([self._job(job) for job in jobs], page.cursor)

    # the outbox

    async def post(self, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await self._store.post(self._jobs(jobs))

    async def post_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await self._store.post_within(connection, self._jobs(jobs))

    async def receive_posted(self, arrivals: Sequence[Arrival]) -> list[Reception]:
        answers = await self._store.receive_posted([self._arrival(one) for one in arrivals])
        return self._received(arrivals, answers)

    async def receive_posted_within(self, connection: Any, arrival: Arrival) -> Reception:
        answer = await self._store.receive_posted_within(connection, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def resolve_posted(self, job: str, arrival: Arrival) -> Reception:
        answer = await self._store.resolve_posted(job, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def resolve_posted_within(self, connection: Any, job: str, arrival: Arrival) -> Reception:
        answer = await self._store.resolve_posted_within(connection, job, self._arrival(arrival))
        return self._received([arrival], [answer])[0]

    async def letters(self, *, carried: bool, after: int = 0, limit: int = BATCH) -> list[Letter]:
        found = await self._store.letters(carried=carried, after=after, limit=limit)
        return [
            replace(one, job=replace(one.job, payload=opened(self._seal, one.job.payload)))
            for one in found
        ]

    async def close_letters(
        self, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        return await self._store.close_letters(ids, self._results(results))

    async def close_letters_within(
        self, connection: Any, ids: Sequence[str], results: Mapping[str, bytes] = NO_RESULTS
    ) -> list[bool]:
        return await self._store.close_letters_within(connection, ids, self._results(results))

    async def results(self, ids: Sequence[str]) -> dict[str, bytes]:
        found = await self._store.results(ids)
        return {id: opened(self._seal, result) for id, result in found.items()}

    # sealing

    def _results(self, results: Mapping[str, bytes]) -> dict[str, bytes]:
        return {id: sealed_json(self._seal, result) for id, result in results.items()}

    def _payload(self, data: bytes) -> bytes:
        # A message is never text: what looks sealed is a letter, or a job that a person looked at,
        # which nothing here could open. Whoever has its key shall still be able to.
        return data if is_sealed(data) else sealed_json(self._seal, data)

    def _jobs(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        return [replace(job, payload=self._payload(job.payload)) for job in jobs]

    def _endings(self, endings: Sequence[Ending]) -> list[Ending]:
        return [
            end if end.result is None else replace(end, result=sealed_json(self._seal, end.result))
            for end in endings
        ]

    def _closed_effect(self, effect: Effect) -> Effect:
        if effect.result is None:
            return effect
        return replace(effect, result=sealed_json(self._seal, effect.result))

    def _arrival(self, arrival: Arrival) -> Arrival:
        kept, seal = arrival.kept, self._seal
        closed = replace(
            kept,
            query=sealed_text(seal, _wire(kept.query)).decode() if kept.query else "",
            headers=sealed_pairs(seal, kept.headers) if kept.headers != b"[]" else b"[]",
            body=sealed_text(seal, kept.body) if kept.body else b"",
            answer=self._answer(kept.answer),
        )
        # Sealed, the same body never looks the same: the plain one tells whether it is.
        return Arrival(closed, tuple(self._jobs(arrival.jobs)), arrival.compared)

    def _seal_answer(self, data: bytes) -> bytes:
        """An answer whose body is sealed: the rest of it must be given whatever keys are left."""
        answer = _answer_in(data)
        if answer is None or not answer.body:
            return data
        return msgspec.msgpack.encode(replace(answer, body=sealed_text(self._seal, answer.body)))

    # opening

    def _is_chance(self, text: str, stored: bytes, *others: str) -> bool:
        """Whether a text was found in what the seal made, where it means nothing, and only there.

        Somebody may erase what a search has found.
        """
        if not is_sealed(stored) or _wire(text) not in stored:
            return False
        plain = opened(self._seal, stored)
        is_there = not is_sealed(plain) and _wire(text) in plain
        return not is_there and not any(text in other for other in others)

    def _job(self, job: Job) -> Job:
        job.payload = opened(self._seal, job.payload)
        if job.result is not None:
            job.result = opened(self._seal, job.result)
        return job

    def _note(self, note: Note) -> Note:
        if note.kind not in SEALED_NOTES:
            return note
        return replace(note, value=opened(self._seal, note.value))

    def _effect(self, effect: Effect) -> Effect:
        if effect.result is None:
            return effect
        return replace(effect, result=opened(self._seal, effect.result))

    def _received(
        self, arrivals: Sequence[Arrival], answers: Sequence[Reception]
    ) -> list[Reception]:
        return [
            # What has just been sealed need not be opened.
            replace(
                answer,
                kept=replace(
                    arrival.kept, received_at=answer.kept.received_at, jobs=answer.kept.jobs
                )
                if answer.verdict is not Verdict.DONE
                else self._kept(answer.kept),
            )
            for arrival, answer in zip(arrivals, answers, strict=True)
        ]

    def _every_kept(self, found: Sequence[Kept | None]) -> list[Kept | None]:
        return [kept and self._kept(kept) for kept in found]

    def _kept(self, kept: Kept) -> Kept:
        return replace(
            kept,
            query=_unwire(opened(self._seal, _wire(kept.query))),
            headers=opened(self._seal, kept.headers),
            body=opened(self._seal, kept.body),
            answer=self._open_answer(kept.answer),
        )

    def _open_answer(self, data: bytes) -> bytes:
        answer = _answer_in(data)
        if answer is None or not is_sealed(answer.body):
            return data
        return msgspec.msgpack.encode(replace(answer, body=opened(self._seal, answer.body)))


def _answer_in(data: bytes) -> Answer | None:
    try:
        return msgspec.msgpack.decode(data, type=Answer)
    except msgspec.DecodeError:
        return None  # there is none, or it is of another program


def _said(job: Job) -> tuple[str, ...]:
    return () if job.failure is None else msgspec.structs.astuple(job.failure)


def _wire(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unwire(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
