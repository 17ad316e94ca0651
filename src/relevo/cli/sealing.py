"""relevo seal-key, and what is sealed with which key."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from relevo.cli.tables import counted
from relevo.cli.terminal import AsIs, Terminal, Verbs
from relevo.sealing import SealKeys, key_named, new_key
from relevo.store import Filter, Finding, Letterbox
from relevo.webhook import read_answer

if TYPE_CHECKING:
    from relevo.store import Job, Kept, Store

READ = 20_000
"""Jobs, and deliveries, of which doctor reads the keys; the newest."""

PAGE = 200


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("seal-key")(seal_key)


async def seal_key(terminal: Terminal) -> None:
    """Make a key to seal what jobs and deliveries carry; it is printed, and kept nowhere."""
    key = new_key()
    terminal.show({"key": key}, lambda: AsIs(key))


class Used(msgspec.Struct):
    """How many jobs and deliveries are sealed with each key; under None, those not sealed."""

    jobs: Counter[str | None]
    deliveries: Counter[str | None]
    is_cut: bool = False  # there are more than were read


async def used_keys(store: Store, most: int = READ) -> Used:
    """The keys of the newest jobs and deliveries of a store that nothing opens."""
    used = Used(Counter(), Counter())
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
    return used


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
    for name in sorted({*used.jobs, *used.deliveries} - {None}, key=str):
        many = (
            f"{counted(used.jobs[name], 'job')} and "
            f"{counted(used.deliveries[name], 'delivery', 'deliveries')}"
        )
        called = f"the key called {name}" if name else "a seal that is not relevo's"
        if name in have:
            place = f"key {have.index(name) + 1} of {len(have)}"
            found.append(
                Finding(
                    level="ok", subject="seal", message=f"{many} are sealed with {name}, {place}"
                )
            )
        elif name or keys is not None:
            said = (
                f"{many} are sealed with {called}, which is not among RELEVO_SEAL_KEYS: nobody can "
                "open them. Add that key again"
            )
            found.append(Finding(level="error", subject="seal", message=said))
    unused = [name for name in have[1:] if not used.jobs[name] and not used.deliveries[name]]
    for name in unused:
        rest = " of the newest" if used.is_cut else ""
        said = f"nothing{rest} is sealed with {name}, key {have.index(name) + 1} of {len(have)}"
        if not used.is_cut:
            said += ": it can be taken out, unless a spool or an outbox holds what it has sealed"
        found.append(Finding(level="ok", subject="seal", message=said))
    plain = used.jobs[None] + used.deliveries[None]
    if keys is not None and plain:
        said = f"jobs and deliveries stored without a seal: {plain:,} not sealed"
        found.append(Finding(level="ok", subject="seal", message=said))
    return found
