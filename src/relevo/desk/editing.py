"""Editing: change a job that waits or is dead, and take the change back for a day."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import fields as fields_of
from datetime import datetime
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from relevo.app import Binding
from relevo.clock import moment, stamp
from relevo.desk.looking import PAGE_MAX, Looking, plain_id
from relevo.desk.people import Person
from relevo.desk.views import changed_paths, payload_of
from relevo.errors import DefinitionError, MisuseError, NotFoundError, PayloadError, StoreError
from relevo.ids import new_id
from relevo.job import Job
from relevo.message import PRIORITIES, Priority, attempts_of, codec
from relevo.store import EDITS, By, Edit, Note
from relevo.stored import Bindings, problem

EDITABLE: Final = ("payload", "priority", "run_at", "attempts")
"""The only fields of a job that a person may write."""

UNDO: Final = 86_400_000
"""Milliseconds for which what was before an edit is kept."""

EDITING: Final = "editing"
"""The kind of the notes of the jobs that are being edited at this moment."""

HELD: Final = 10_000
"""Milliseconds after which an edit that has not ended keeps no other one waiting."""

PATIENCE: Final = 5.0
"""Seconds to wait for another edit of the same job."""


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may write in a job, as it was or became; None: untouched."""

    payload: bytes | None = None
    priority: int | None = None
    run_at: int | None = None
    attempts: int | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One edit of a job, as it is remembered."""

    job: str
    who: str
    at: int
    fields: list[str]  # the names of what differs, within the payload with their path
    before: Values
    after: Values

    def holds(self, text: str) -> bool:
        """Whether a text stands in the payload before the edit, or after it."""
        wanted = text.encode(errors="surrogatepass")
        return any(wanted in (each.payload or b"") for each in (self.before, self.after))


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    """A job after a person has changed it, or has taken a change back."""

    id: str
    queue: str
    kind: str
    state: str
    key: str | None
    payload: bytes
    priority: int
    run_at: int
    attempts: int
    changed: list[str]  # the names of what differs, within the payload with their path
    key_now: str | None = None  # what the payload's key would be; the job keeps the one it has
    undo_until: int | None = None  # None: the change is taken back

    @property
    def warning(self) -> str:
        """What a person should know before the job runs; empty where there is nothing."""
        if self.key_now is None:
            return ""
        return (
            f"the payload no longer fits the job's key: it would be {self.key_now}, and the job "
            f"keeps {self.key}. A new command may be meant: cancel this one, and send it"
        )


class Editing(Looking):
    """Changes of one job."""

    async def edit(
        self,
        id: str,
        by: Person,
        *,
        payload: str | bytes | None = None,
        whole: bool = False,
        priority: Priority | None = None,
        run_at: datetime | None = None,
        attempts: int | None = None,
        note: str = "",
        bindings: Bindings | None = None,
        seen: bytes | None = None,
    ) -> Edited:
        """Change a job that is neither running nor done; the payload is JSON text.

        The fields that a payload names are merged into the job's; a `whole` one takes its place.
        The result passes the guard of an enqueue, and has to decode as its command, which has to be
        among the `bindings`; without `bindings` it is not held against the command. Where a payload
        still holds what a mask showed, the value behind it stays. What was before is kept for a
        day, for undo_edit(). With the payload that the person has `seen`, a job that has another
        one by now is left as it is.
        """
        signed = by.acts("edit", note)
        if payload is None and priority is None and run_at is None and attempts is None:
            raise DefinitionError(f"nothing to change: give {', '.join(EDITABLE)}")
        if priority is not None and priority not in PRIORITIES:
            raise DefinitionError("priority is 'high', 'normal' or 'low'")
        async with self._alone(plain_id(id)):
            return await self._edit(
                *(await self.job(id), signed),
                payload=payload,
                whole=whole,
                priority=priority,
                run_at=run_at,
                attempts=attempts,
                bindings=bindings,
                seen=seen,
            )

    async def _edit(
        self,
        job: Job,
        signed: By,
        *,
        payload: str | bytes | None,
        whole: bool,
        priority: Priority | None,
        run_at: datetime | None,
        attempts: int | None,
        bindings: Bindings | None,
        seen: bytes | None,
    ) -> Edited:
        if payload is not None and seen is not None and seen != job.payload:
            raise MisuseError(
                f"the payload of job {job.id} was changed meanwhile: nothing was written; look at "
                "it as it is now"
            )
        written = None if payload is None else payload_of(payload, job.payload, whole=whole)
        if written is not None and bindings is not None:
            _check(bindings, replace(job, payload=written), job.payload)
        edit = Edit(
            id=job.id,
            payload=written,
            priority=None if priority is None else PRIORITIES[priority],
            run_at=None if run_at is None else stamp(run_at),
            attempts=None if attempts is None else attempts_of(attempts, "the job"),
        )
        fields = [] if written is None else changed_paths(written, job.payload)
        fields += [name for name in EDITABLE[1:] if getattr(edit, name) is not None]
        now = await self.store.now()
        change = Change(
            job=job.id,
            who=signed.who,
            at=now,
            fields=fields,
            before=_values(edit, job),
            after=_values(edit, edit),
        )
        name = f"{job.id}/{new_id()}"
        value = msgspec.json.encode(change)
        # First the note: a crash in between leaves one that undo_edit() passes over.
        await self.store.remember([Note(kind=EDITS, name=name, value=value, ttl=UNDO)])
        try:
            job = await self._write(edit, signed)
        except MisuseError:
            await self.store.forget(EDITS, [name])
            raise
        binding = None if bindings is None else bindings.get((job.queue, job.kind))
        return _edited(job, fields, _key_now(binding, job, change), now + UNDO)

    async def edits(self, id: str) -> list[Change]:
        """The edits of a job that can be taken back, newest first."""
        job = await self.job(id)
        return [change for _, change in await self._edits(job.id) if _is_in(change, job)]

    async def undo_edit(self, id: str, by: Person, note: str = "") -> Edited:
        """Take the last edit of a job back; the one before it can be taken back after that."""
        by.acts("edit", note)
        async with self._alone(plain_id(id)):
            return await self._undo(await self.job(id), by, note)

    async def _undo(self, job: Job, by: Person, note: str) -> Edited:
        known = await self._edits(job.id)
        mine = next(((name, change) for name, change in known if _is_in(change, job)), None)
        if mine is None:
            raise NotFoundError(
                f"job {job.id} has no edit to take back: they are kept for a day"
                if not known
                else f"job {job.id} is not as its last edit left it any more: nothing was changed"
            )
        name, change = mine
        said = f"undo of the edit of {moment(change.at).isoformat(timespec='seconds')}"
        signed = by.acts("edit", f"{said} by {change.who}; {note}".rstrip("; "))
        before = change.before
        edit = Edit(
            id=job.id,
            payload=before.payload,
            priority=before.priority,
            run_at=before.run_at,
            attempts=before.attempts,
        )
        job = await self._write(edit, signed)
        await self.store.forget(EDITS, [name])
        return _edited(job, change.fields, None, None)

    def masked_edited(self, edited: Edited) -> Edited:
        """The answer to an edit as a viewer sees it."""
        return replace(edited, payload=self.masked_payload(edited.payload))

    @asynccontextmanager
    async def _alone(self, id: str) -> AsyncGenerator[None]:
        """Keep other edits of the job waiting. Two at once would be merged into the same payload,
        and the second would take the first one back. Of a process that dies here, the job can be
        edited ten seconds later."""
        name = f"job/{id}"
        mine = Note(kind=EDITING, name=name, value=b"{}", ttl=HELD)
        loop = asyncio.get_running_loop()
        until = loop.time() + PATIENCE
        while not (await self.store.remember([mine]))[0]:
            if loop.time() >= until:
                raise MisuseError(f"job {id} is being edited at this moment: try again")
            await asyncio.sleep(0.05)
        try:
            yield
        finally:
            with suppress(StoreError):
                await self.store.forget(EDITING, [name])

    async def _write(self, edit: Edit, by: By) -> Job:
        [edited] = await self.store.edit([edit], by)
        job = await self.job(edit.id)
        if not edited:
            raise MisuseError(f"job {job.id} is {job.state}; only a job that waits can be edited")
        return job

    async def _edits(self, job: str) -> list[tuple[str, Change]]:
        """What is remembered of the edits of a job, newest first, by the names of the notes."""
        found: list[tuple[str, Change]] = []
        after = f"{job}/"
        while True:
            notes = await self.store.notes(EDITS, after=after, limit=PAGE_MAX)
            mine = [note for note in notes if note.name.startswith(f"{job}/")]
            found += ((note.name, change) for note in mine if (change := change_of(note)))
            if len(mine) < PAGE_MAX:
                return found[::-1]
            after = mine[-1].name


def change_of(note: Note) -> Change | None:
    """The edit that a note remembers; None where no key opens it, or a hand has spoiled it."""
    try:
        return msgspec.json.decode(note.value, type=Change)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _check(bindings: Bindings, job: Job, before: bytes) -> None:
    """PayloadError or MisuseError unless the code here could run a job, and reads every field that
    was not there before."""
    binding = bindings.get((job.queue, job.kind))
    if binding is None:
        raise MisuseError(
            f"{job.kind} is not known here, and the payload cannot be checked: name its app with "
            "--app or RELEVO_APPS, or write it unchecked (--unchecked)"
        )
    unfit = problem(bindings, job)
    if isinstance(unfit, PayloadError):
        raise unfit
    if unfit is not None:
        raise MisuseError(unfit)
    if binding.message.__upgrade__ is None:  # which may read fields of any name
        known = [each.name for each in fields_of(cast("type[Any]", binding.message))]
        new = set(_names(job.payload)) - set(_names(before)) - set(known)
        for name in sorted(new):
            near = difflib.get_close_matches(name, known, 1)
            meant = f": {near[0]} may be meant" if near else f", only {', '.join(known)}"
            raise PayloadError(f"{job.kind} has no field {name!r:.80}{meant}", path=name)


def _names(payload: bytes) -> Iterable[str]:
    """The names of a payload's fields."""
    read = msgspec.json.decode(payload) if payload else None
    return cast("dict[str, object]", read) if isinstance(read, dict) else ()


def _values(edit: Edit, source: Edit | Job) -> Values:
    """Of the fields that an edit writes, what they are in a job, or in the edit."""
    return Values(
        **{name: getattr(source, name) for name in EDITABLE if getattr(edit, name) is not None}
    )


def _is_in(change: Change, job: Job) -> bool:
    """Whether a job still is as an edit left it, so that the edit can be taken back."""
    after = change.after
    return (
        after.payload in (None, job.payload)
        and after.priority in (None, job.priority)
        and after.run_at in (None, job.run_at)
        and after.attempts in (None, job.attempts)
    )


def _key_now(binding: Binding | None, job: Job, change: Change) -> str | None:
    """The key of a changed payload, where the payload before it made the job's own."""
    if binding is None or binding.spec.key is None or change.before.payload is None:
        return None
    try:
        read = codec(binding.message).decode
        before = binding.spec.key.fill(read(change.before.payload))
        now = binding.spec.key.fill(read(job.payload))
    except (PayloadError, DefinitionError):
        return None
    return now if before == job.key != now else None


def _edited(job: Job, changed: Iterable[str], key_now: str | None, until: int | None) -> Edited:
    return Edited(
        id=job.id,
        queue=job.queue,
        kind=job.kind,
        state=job.state,
        key=job.key,
        payload=job.payload,
        priority=job.priority,
        run_at=job.run_at,
        attempts=job.attempts,
        changed=list(changed),
        key_now=key_now,
        undo_until=until,
    )
