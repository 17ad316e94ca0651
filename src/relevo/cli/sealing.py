"""relevo seal-key, and what is sealed with which key."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from relevo.cli.tables import counted
from relevo.cli.terminal import OK, PROBLEM, AsIs, Terminal, Verbs
from relevo.errors import SettingsError
from relevo.sealing import SealKeys, key_named, new_key, renewed
from relevo.settings import spool_file
from relevo.store import Filter, Finding, Letterbox
from relevo.webhook import read_answer

if TYPE_CHECKING:
    from relevo.store import Job, Kept, SqlStore, Store

READ = 20_000
"""Jobs, deliveries and effects of which doctor reads the keys; the newest."""

PAGE = 200


TELL_EVERY = 5.0  # seconds

seals = Verbs("What is sealed with which key.", name="seal")


def add_to(root: Verbs) -> None:
    """Hang the verbs under the program."""
    root.verb("seal-key")(seal_key)
    root.add(seals)


class Renewal(msgspec.Struct):
    """What `relevo seal renew` has done."""

    renewed: Counter[str] = msgspec.field(default_factory=Counter)  # by the key of before
    changed: int = 0  # values that another process changed meanwhile, and that are left
    closed: Counter[str] = msgspec.field(default_factory=Counter)  # by the key that is missing


@seals.verb("renew")
async def renew(terminal: Terminal) -> int:
    """Seal with the newest key what is sealed with older ones; may be broken off and run again.

    Payloads of jobs that have begun keep their key until they have ended, and those of dead jobs
    until they are retried or discarded: under another key their runs would order their follow-ups
    once more.
    """
    keys = terminal.settings.seal_keys
    if keys is None:
        raise SettingsError("there is no key to seal with: `relevo seal-key` makes one")
    store, ledger = terminal.bare(), terminal.bare_ledger()
    spool = spool_file(store.dsn, terminal.settings.spool)
    done = Renewal()
    async with AsyncExitStack() as stack:
        for each in (store, ledger):
            if each is None:
                continue
            await each.open()
            stack.push_async_callback(each.close)
            await renew_store(each, keys, done, terminal.warn)
        if spool is not None:
            await asyncio.to_thread(_renew_spool, spool, keys, done)
        used = await used_keys(store, ledger=ledger, spool=spool)
    old = [name for name in used.names if name != keys.names[0]]
    left = {name: used.told(name) for name in old}
    shown = {
        "renewed": dict(done.renewed),
        "changed": done.changed,
        "closed": dict(done.closed),
        "left": left,
        "not_sealed": used.jobs[None] + used.deliveries[None],
    }

    def words() -> str:
        lines = [
            f"{count:,} values that were sealed with {name} are sealed with {keys.names[0]}"
            for name, count in sorted(done.renewed.items())
        ]
        lines += [
            f"still sealed with {name or 'another seal'}: {said}" for name, said in left.items()
        ]
        if done.changed:
            lines.append(f"{done.changed:,} changed meanwhile: run it again")
        return "\n".join(lines) or f"everything that is sealed is sealed with {keys.names[0]}"

    terminal.show(shown, words)
    return PROBLEM if done.closed else OK


async def renew_store(
    store: Store, keys: SealKeys, done: Renewal, say: Callable[[str], None] = lambda said: None
) -> None:
    """Seal anew what a store, which nothing opens, has sealed with older keys."""
    told = time.monotonic()
    async for values in store.sealed_values():
        fresh = [(value, renewed(keys, value.data)) for value in values]
        swaps = [(value, new.data) for value, new in fresh if new.by]
        written = await store.swap_values(swaps) if swaps else 0
        for _, new in fresh:
            done.renewed.update(new.by)
            done.closed.update(new.closed)
        done.changed += len(swaps) - written
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            say(f"{done.renewed.total():,} values sealed anew so far")


def _renew_spool(path: Path, keys: SealKeys, done: Renewal) -> None:
    """Seal anew what waits in a spool; what is taken out of it meanwhile is gone."""
    after = 0
    if not path.exists():
        return
    with closing(sqlite3.connect(path, isolation_level=None, timeout=5.0)) as file:
        while rows := _spooled(path, after, PAGE):
            for number, data in rows:
                after = number
                new = renewed(keys, data)
                done.closed.update(new.closed)
                if new.by:
                    file.execute(
                        "update spool set data = ? where id = ? and data = ?",
                        (new.data, number, data),
                    )
                    done.renewed.update(new.by)


async def seal_key(terminal: Terminal) -> None:
    """Make a key to seal what jobs and deliveries carry; it is printed, and kept nowhere."""
    key = new_key()
    terminal.show({"key": key}, lambda: AsIs(key))


class Used(msgspec.Struct):
    """How many things of each kind are sealed with each key; under None, those not sealed."""

    jobs: Counter[str | None] = msgspec.field(default_factory=Counter)
    deliveries: Counter[str | None] = msgspec.field(default_factory=Counter)
    effects: Counter[str | None] = msgspec.field(default_factory=Counter)
    outbox: Counter[str | None] = msgspec.field(default_factory=Counter)
    spool: Counter[str | None] = msgspec.field(default_factory=Counter)
    is_cut: bool = False  # there are more than were read

    def told(self, name: str) -> str:
        """What is sealed with a key, for people."""
        parts = [
            counted(self.jobs[name], "job"),
            counted(self.deliveries[name], "delivery", "deliveries"),
        ]
        for counts, word in (
            (self.effects, "effect"),
            (self.outbox, "outbox row"),
            (self.spool, "spooled delivery"),
        ):
            if counts[name]:
                many = f"{word.removesuffix('y')}ies" if word.endswith("y") else f"{word}s"
                parts.append(counted(counts[name], word, many))
        return f"{', '.join(parts[:-1])} and {parts[-1]}"

    @property
    def names(self) -> list[str]:
        """The keys that something is sealed with."""
        every = {*self.jobs, *self.deliveries, *self.effects, *self.outbox, *self.spool}
        return sorted(name for name in every if name is not None)


async def used_keys(
    store: Store, *, ledger: SqlStore | None = None, spool: Path | None = None, most: int = READ
) -> Used:
    """The keys of the newest things of a store, and of a ledger beside it, that nothing opens."""
    used = Used()
    cursor = None
    read = 0
    while read < most:
        page = await store.page(Filter(), cursor=cursor, limit=PAGE)
        for job in page.jobs:
            used.jobs.update(_of_job(job))
        read += len(page.jobs)
        if (cursor := page.cursor) is None:
            break
    used.is_cut = cursor is not None
    cursor, read = None, 0
    while read < most:
        listed, cursor = await store.deliveries(Letterbox(), cursor=cursor, limit=PAGE)
        for kept in await store.delivery([each.id for each in listed]):
            if kept is not None:
                used.deliveries.update(_of_delivery(kept))
        read += len(listed)
        if cursor is None:
            break
    used.is_cut |= cursor is not None
    cursor, read = None, 0
    while read < most:
        found, cursor = await (ledger or store).effects(cursor=cursor, limit=PAGE)
        used.effects.update(
            name for each in found if each.result for name in _names([each.result]) if name
        )
        read += len(found)
        if cursor is None:
            break
    used.is_cut |= cursor is not None
    if ledger is not None:
        for carried in (False, True):
            after = 0
            while rows := await ledger.letters(carried=carried, after=after, limit=PAGE):
                used.outbox.update(
                    name for row in rows for name in _names([row.job.payload]) if name
                )
                after = rows[-1].seq
    if spool is not None:
        for _, data in await asyncio.to_thread(_spooled, spool, 0, most):
            used.spool.update(name for name in _names([data]) if name)
    return used


def _spooled(path: Path, after: int, limit: int) -> list[tuple[int, bytes]]:
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=5.0)) as file:
        question = "select id, data from spool where id > ? order by id limit ?"
        return file.execute(question, (after, limit)).fetchall()


def _of_job(job: Job) -> set[str | None]:
    values = [job.payload] if job.result is None else [job.payload, job.result]
    return _names(values)


def _of_delivery(kept: Kept) -> set[str | None]:
    answer = read_answer(kept.answer)
    said = b"" if answer is None else answer.body
    return _names([kept.body, kept.headers, kept.query.encode(errors="surrogatepass"), said])


def _names(values: list[bytes]) -> set[str | None]:
    names = {name for value in values if (name := key_named(value)) is not None}
    return {*names} or {None}


def sealing_findings(used: Used, keys: SealKeys | None) -> list[Finding]:
    """What is sealed with which key; an error for a key that is not among those given."""
    have = [] if keys is None else keys.names
    found: list[Finding] = []
    if keys is None:
        said = (
            "what jobs and deliveries carry can be read in the database and its backups: "
            "`relevo seal-key` makes a key for RELEVO_SEAL_KEYS"
        )
        found.append(Finding(level="warning", subject="seal", message=said))
    for name in used.names:
        many = used.told(name)
        called = f"the key called {name}" if name else "a seal that is not relevo's"
        if name in have:
            place = f"key {have.index(name) + 1} of {len(have)}"
            said = f"{many} are sealed with {name}, {place}"
            if name != have[0]:
                said += ": `relevo seal renew` seals them with the first"
            found.append(Finding(level="ok", subject="seal", message=said))
        elif name or keys is not None:
            said = (
                f"{many} are sealed with {called}, which is not among RELEVO_SEAL_KEYS: nobody can "
                "open them. Add that key again"
            )
            found.append(Finding(level="error", subject="seal", message=said))
    for name in [name for name in have[1:] if name not in used.names]:
        rest = " of the newest" if used.is_cut else ""
        said = f"nothing{rest} is sealed with {name}, key {have.index(name) + 1} of {len(have)}"
        if not used.is_cut:
            said += (
                ": it can be taken out, unless a spool on another machine holds what it has sealed"
            )
        found.append(Finding(level="ok", subject="seal", message=said))
    plain = used.jobs[None] + used.deliveries[None]
    if keys is not None and plain:
        said = f"jobs and deliveries stored without a seal: {plain:,} not sealed"
        found.append(Finding(level="ok", subject="seal", message=said))
    return found
