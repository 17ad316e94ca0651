"""FollowUps: what a run or a delivery starts, it starts once.

What is asked for gets an id made of who asks (a job and its turn, or a delivery), the queue, the
command, its key, a digest of its payload, and how many times just that has been asked for. A run
that is repeated asks under the same ids, and the store answers with what it did for the first.

Beside its id each job has an origin: the id that generation 0 of it has. Replays of a delivery have
ids of their own generation, so all their jobs run; their effects are found under the origin.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from relevo.ids import derived_id, moment_of
from relevo.job import Lease, NewJob
from relevo.job_meta import Meta, decode_meta
from relevo.sealing import Seal
from relevo.store import KNOWN

_PLAIN = b"\0"
_sorted = msgspec.json.Encoder(order="sorted").encode


def digest(payload: bytes, seal: Seal | None, by: str | None = None) -> bytes:
    """Eight bytes that are equal for equal payloads; the first names the key, 0 for none.

    Under the key called `by`, or the one that seals today.
    """
    if payload.find(b"{", 1) >= 0:
        # The order of a dict's keys may change from run to run, and says nothing.
        payload = _sorted(msgspec.json.decode(payload))
    if seal is not None:
        return seal.digest(payload, by)
    return _PLAIN + blake2b(payload, digest_size=7).digest()


class Asker(NamedTuple):
    """A run or a delivery that asks: the moment and the text that its follow-ups' ids are made of.

    `origin` is the same of its generation 0.
    """

    moment: int
    text: str
    origin: tuple[int, str]


class FollowUps:
    """The follow-ups of one run, or of one delivery."""

    __slots__ = ("_asked", "_asker", "_remember", "digest")

    def __init__(self, asker: Asker, digest: Callable[[bytes], bytes], remember: int) -> None:
        self._asker = asker
        self.digest = digest
        self._remember = remember  # how long their ids answer once their rows are gone
        self._asked: dict[str, int] = {}

    def adopt(self, job: NewJob) -> NewJob:
        """The job under the id of this follow-up."""
        print = self.digest(job.payload)
        id, origin = self.ids(job.queue, job.kind, print, job.key)
        return msgspec.structs.replace(
            self.known(job),
            id=id,
            digest=None if job.key is None else print,
            meta=with_origin(job.meta, id, origin),
        )

    def known(self, job: NewJob) -> NewJob:
        """The job with its id remembered for long enough, whatever it is kept for itself."""
        if not self._remember:
            return job
        return msgspec.structs.replace(job, remember=self._remember, keep=max(job.keep, KNOWN))

    def ids(self, queue: str, kind: str, print: bytes, key: str | None = None) -> tuple[str, str]:
        """The id and the origin of what is asked for next."""
        # A key that the order says itself is part of what was asked: two orders of one payload
        # that come in another sequence next time would find each other.
        key = "" if key is None else key if key.isascii() else ascii(key)
        what = f"{queue}\n{kind}\n{print.hex()}\n{key}"
        number = self._asked[what] = self._asked.get(what, 0) + 1
        what, asker = f"{number}\n{what}", self._asker
        id = derived_id(asker.moment, f"{asker.text}\n{what}")
        moment, text = asker.origin
        if text == asker.text:
            return id, id
        return id, derived_id(moment, f"{text}\n{what}")


def of_run(lease: Lease, origin: str, seal: Seal | None, remember: int) -> FollowUps:
    """What a run of a job asks for; a run that is repeated has the same turn.

    Digests are made as the job's own payload is stored, plain or under its key: a key that is
    added between a run and its repetition changes no id.
    """
    asker = Asker(
        moment_of(lease.id),
        f"{lease.id}/{lease.turn}",
        (moment_of(origin), f"{origin}/{lease.turn}"),
    )
    by = lease.sealed_by
    return FollowUps(asker, partial(digest, seal=seal if by else None, by=by), remember)


def of_delivery(
    source: str,
    key: str,
    generation: int,
    moments: tuple[int, int],
    seal: Seal | None,
    remember: int,
    *,
    repeats_effects: bool = False,
) -> FollowUps:
    """What comes of a delivery; of a replay the effects too, if it `repeats_effects`.

    `moments` are those of its ids, and of the ids of generation 0.
    """
    same = f"{source}\n{key if key.isascii() else ascii(key)}"
    text = f"{same}\n{generation}"
    origin = (moments[0], text) if repeats_effects else (moments[1], f"{same}\n0")
    return FollowUps(Asker(moments[0], text, origin), partial(digest, seal=seal), remember)


def with_origin(meta: bytes | None, id: str, origin: str) -> bytes | None:
    """What travels beside the payload, the origin with it where it is not the id."""
    if id == origin:
        return meta
    made = Meta() if meta is None else decode_meta(meta)
    made.origin = origin
    return msgspec.json.encode(made)
