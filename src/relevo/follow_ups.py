"""FollowUps: what a run or a delivery starts, it starts once.

What is asked for gets an id made of its asker (a job and its turn, or a delivery), the queue, the
command, its key, a digest of its payload, and how many times just that has been asked for. A run
that is repeated asks under the same ids, and the store answers with what it did for the first. The
moments of their askers are no part of what they are made of: a delivery that a provider sends again
to a restored store starts what it started before, but for the moments in their ids.

Beside its id each job has an origin: the id that generation 0 of it has. Replays of a delivery have
ids of their own generation, so all their jobs run; their effects are found under the origin.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from relevo.ids import derived_id, lasting, moment_of
from relevo.job import Lease, NewJob
from relevo.job_meta import Meta, decode_meta
from relevo.sealing import Seal
from relevo.store import KNOWN

_PLAIN = b"\0"
_BLANK = blake2b(digest_size=7)  # a copy is made in half the time
_sorted = msgspec.json.Encoder(order="sorted").encode


def digest(payload: bytes, seal: Seal | None, by: str | None = None) -> bytes:
    """Eight bytes that are equal for equal payloads; the first names the key, 0 for none.

    Under the key called `by`, or the one that seals today.
    """
    return _digest(_ordered(payload), seal, by)


def _ordered(payload: bytes) -> bytes:
    if payload.find(b"{", 1) < 0:
        return payload
    # The order of a dict's keys may change from run to run, and says nothing.
    return _sorted(msgspec.json.decode(payload))


def _digest(ordered: bytes, seal: Seal | None, by: str | None) -> bytes:
    if seal is not None:
        return seal.digest(ordered, by)
    hash = _BLANK.copy()
    hash.update(ordered)
    return _PLAIN + hash.digest()


class Asker(NamedTuple):
    """A run or a delivery that asks: the moment and the text that its follow-ups' ids are made of.

    `origin` holds those of its generation 0.
    """

    moment: int
    text: str
    origin: tuple[int, str]


class Asked(NamedTuple):
    """What was asked for: its id, its origin, and the digest of its payload."""

    id: str
    origin: str
    digest: bytes


class FollowUps:
    """The follow-ups of one run, or of one delivery."""

    __slots__ = ("_asked", "_asker", "_by", "_given", "_remember", "_seal", "_unused")

    def __init__(self, asker: Asker, seal: Seal | None, by: str | None, remember: int) -> None:
        self._asker = asker
        self._seal = seal
        self._by = by  # the key that digests are made under
        self._remember = remember  # how long their ids answer once their rows are gone
        self._asked: dict[str, int] = {}
        self._given: dict[str, tuple[str, int]] = {}  # what each id was made of, and its number
        self._unused: dict[str, list[int]] = {}  # numbers that were handed back

    def adopt(self, job: NewJob) -> NewJob:
        """The job under the id of this follow-up."""
        # A key that the order says itself is part of what was asked: two orders of one payload
        # that come in another sequence next time would find each other.
        asked = self.ask(job.queue, job.kind, job.payload, job.key)
        return msgspec.structs.replace(
            self.known(job),
            id=asked.id,
            digest=None if job.key is None else asked.digest,
            meta=with_origin(job.meta, asked.id, asked.origin),
        )

    def known(self, job: NewJob) -> NewJob:
        """The job with its id remembered for long enough, whatever it is kept for itself."""
        if not self._remember:
            return job
        return msgspec.structs.replace(job, remember=self._remember, keep=max(job.keep, KNOWN))

    def ask(self, queue: str, kind: str, payload: bytes, key: str | None = None) -> Asked:
        """The id, the origin and the digest of what is asked for next."""
        said = _ordered(payload)
        print = _digest(said, self._seal, self._by)
        key = "" if key is None else key if key.isascii() else ascii(key)
        what = f"{queue}\n{kind}\n{print.hex()}\n{key}"
        if self._unused and self._unused.get(what):
            number = heappop(self._unused[what])
        else:
            number = self._asked[what] = self._asked.get(what, 0) + 1
        asker = self._asker
        id = derived_id(asker.moment, f"{asker.text}\n{number}\n{what}")
        self._given[id] = what, number
        moment, text = asker.origin
        oldest = None if self._seal is None else self._seal.oldest()
        if oldest != self._by:
            # Under the oldest key, so that a replay after the keys were changed finds it again.
            print_then = _digest(said, self._seal, oldest)
            what = f"{queue}\n{kind}\n{print_then.hex()}\n{key}"
        elif text == asker.text:
            return Asked(id, id, print)
        return Asked(id, derived_id(moment, f"{text}\n{number}\n{what}"), print)

    def give_back(self, ids: Iterable[str]) -> None:
        """Take what was asked for as not asked: its insert failed, or was rolled back.

        Asked for once more it has the same id, whether or not it was stored the first time.
        """
        for id in ids:
            if (given := self._given.pop(id, None)) is not None:
                what, number = given
                heappush(self._unused.setdefault(what, []), number)


def of_run(lease: Lease, origin: str, seal: Seal | None, remember: int) -> FollowUps:
    """What a run of a job asks for; a run that is repeated has the same turn.

    Digests are made as the job's own payload is stored, plain or under its key: a key that is
    added between a run and its repetition changes no id.
    """
    asker = Asker(
        moment_of(lease.id),
        f"{lasting(lease.id)}/{lease.turn}",
        (moment_of(origin), f"{lasting(origin)}/{lease.turn}"),
    )
    by = lease.sealed_by
    return FollowUps(asker, seal if by else None, by, remember)


def of_delivery(
    endpoint: str,
    key: str,
    generation: int,
    moments: tuple[int, int],
    seal: Seal | None,
    remember: int,
    *,
    repeats_effects: bool = False,
    first: int = 0,
) -> FollowUps:
    """What comes of a delivery; of a replay the effects too, if it `repeats_effects`.

    `moments` are those of its ids, and of the ids of the generation that it replays: `first`.
    """
    same = f"{endpoint}\n{key if key.isascii() else ascii(key)}"
    text = f"{same}\n{generation}"
    is_own = repeats_effects or generation < 0  # another body under the key is no replay
    origin = (moments[0], text) if is_own else (moments[1], f"{same}\n{first}")
    by = None if seal is None else seal.oldest()
    return FollowUps(Asker(moments[0], text, origin), seal, by, remember)


def of_tick(schedule: str, tick: int, seal: Seal | None, remember: int) -> FollowUps:
    """What a schedule orders at one of its moments, however often that is tried."""
    text = f"{schedule}/{tick}"
    by = None if seal is None else seal.oldest()
    return FollowUps(Asker(tick, text, (tick, text)), seal, by, remember)


def with_origin(meta: bytes | None, id: str, origin: str) -> bytes | None:
    """What travels beside the payload, the origin with it where it is not the id."""
    if id == origin:
        return meta
    made = Meta() if meta is None else decode_meta(meta)
    made.origin = origin
    return msgspec.json.encode(made)
