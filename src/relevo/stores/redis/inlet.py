"""Inlet: how jobs come in, and on a cluster how bundles and flows reach several slots.

A cluster runs no script over two slots. What belongs together is written down whole in one slot
first, then put in its places, each by its id and so any number of times, then taken off. Whoever
dies in between leaves the note, and `rescue` finishes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack
from typing import Any

from msgspec import Struct
from msgspec.json import Decoder
from msgspec.structs import replace

from relevo.errors import MisuseError
from relevo.ids import new_id, parse_id
from relevo.job import After, NewJob, Receipt, Verdict
from relevo.store import KNOWN
from relevo.stores.redis.frame import Frame, side_by_side, timely
from relevo.stores.redis.line import Arg
from relevo.stores.redis.record import band, digest, dump, is_plain, load, pack_job, plain, when

_jobs = Decoder(list[NewJob])


class Release(Struct, frozen=True, array_like=True):
    """News of a child's end on its way to a parent on another slot."""

    queue: str
    child: str
    verdict: str
    policy: str
    parent: str
    above: str  # the parent's queue


class Part(Struct, frozen=True):
    """The part of a call that goes to one slot: when the call was made, and the jobs' places."""

    moment: str = ""
    places: Sequence[int] = ()


WHOLE = Part()


class Inlet(Frame):
    """The verbs by which jobs come in."""

    @timely
    async def insert(self, jobs: Sequence[NewJob]) -> list[Receipt]:
        answers = [Receipt(job.id, Verdict.NEW) for job in jobs]
        if not jobs:
            return answers
        for job in jobs:
            if job.after and parse_id(job.id) != job.id:
                raise MisuseError(f"{job.id!r:.60} is no id of a job: take one from new_id()")
        try:
            if self._wire.is_cluster:
                await self._insert_apart(jobs, answers)
            else:
                await self._insert_together(jobs, answers)
        finally:
            for queue in {job.queue for job in jobs}:
                self._bell.ring(queue)
        return answers

    async def insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Receipt]:
        raise MisuseError("Redis is no SQL database: the outbox carries it")

    def committed(self, queues: Sequence[str]) -> None:
        return None

    # on one server: one script

    async def _insert_together(self, jobs: Sequence[NewJob], answers: list[Receipt]) -> None:
        if all(map(is_plain, jobs)) and await self._insert_plain(jobs, answers):
            return
        queues = await self._queues_of_children(jobs)
        numbers: dict[str, int] = {}
        args: list[Arg] = []
        for job in jobs:
            args += (numbers.setdefault(job.queue, len(numbers) + 1), *_rich_job(job))
        for job in jobs:
            for edge in _edges(job):
                above = queues.get(edge.child)
                number = numbers.setdefault(above, len(numbers) + 1) if above else 0
                args += (numbers[job.queue], job.id, number, edge.child, edge.policy[0])
            for up in job.before:
                number = numbers.setdefault(up.queue, len(numbers) + 1)
                args += (number, up.parent, numbers[job.queue], job.id, f"+{up.policy[0]}")
        _read_answers(await self._store("rich", numbers, len(jobs), args), answers)

    async def _insert_plain(
        self, jobs: Sequence[NewJob], answers: list[Receipt], part: Part = WHOLE
    ) -> bool:
        """Most jobs need no looking up; False if these do, and nothing was stored."""
        timed = False
        alike: dict[tuple[str, int], list[int]] = {}
        queue, priority, places = "", 0, list[int]()
        for place, job in enumerate(jobs):
            if job.queue != queue or job.priority != priority:  # mostly as the one before it
                queue, priority = job.queue, job.priority
                places = alike.setdefault((queue, band(priority)), [])
            places.append(place)
            timed = timed or job.run_at is not None or job.delay > 0
        numbers: dict[str, int] = {}
        args: list[Arg] = []
        for (queue, level), places in alike.items():
            some = [jobs[place] for place in places] if len(alike) > 1 else jobs
            blobs = [pack_job(job) for job in some]
            ids = "".join([job.id for job in some])
            if not ids.isascii():
                return False
            # Three long words travel, and are taken apart, faster than thousands of short ones.
            args += (numbers.setdefault(queue, len(numbers) + 1), level, len(some))
            args += (ids, _lengths(blobs), b"".join(blobs))
            if timed:
                args.append("".join([f"{when(job)}," for job in some]))
        order = [place for places in alike.values() for place in places]
        if len(alike) > 1:  # they rank as they came in all the same
            came = part.places or range(len(jobs))
            part = Part(part.moment, [came[place] for place in order])
        found = await self._store("timed" if timed else "plain", numbers, len(jobs), args, part)
        if found == [-1]:
            return False
        _read_answers([(order[at], *rest) for at, *rest in found], answers)
        return True

    async def _store(
        self, form: str, queues: Iterable[str], count: int, args: list[Arg], part: Part = WHOLE
    ) -> list[Any]:
        keys = [self._root(queue) for queue in queues]
        head = (form, count, part.moment, ",".join(map(str, part.places)))
        return await self._run("insert", keys, (*head, *args), wait=self._address.wait)

    # on a cluster: slot by slot

    async def _insert_apart(self, jobs: Sequence[NewJob], answers: list[Receipt]) -> None:
        await self._register({job.queue for job in jobs})
        spread = _spread_bundles(jobs)
        children = {edge.child for job in jobs for edge in _edges(job)}
        linked = [
            n
            for n, job in enumerate(jobs)
            if _edges(job) or job.before or job.bundle in spread or job.id in children
        ]
        alone = [n for n in range(len(jobs)) if n not in set(linked)]
        if alone:
            await self._put([jobs[n] for n in alone], alone, answers)
        if linked:
            await self._insert_linked([jobs[n] for n in linked], linked, answers)

    async def _insert_linked(
        self, jobs: Sequence[NewJob], places: Sequence[int], answers: list[Receipt]
    ) -> None:
        if closed := await self._closed_bundles(jobs):
            for job, place in zip(jobs, places, strict=True):
                if job.bundle in closed:
                    answers[place] = Receipt(job.id, Verdict.CLOSED)
            open_ones = [n for n, job in enumerate(jobs) if job.bundle not in closed]
            jobs, places = [jobs[n] for n in open_ones], [places[n] for n in open_ones]
            if not jobs:
                return
        # Whoever finishes this for us puts them in again by their ids: one that has run is known.
        jobs = [replace(job, keep=max(job.keep, KNOWN)) for job in jobs]
        first, name = jobs[0].queue, await self._write_down(jobs)
        await self._place(jobs, places, answers)
        await self._take_off(first, name)

    async def _place(
        self, jobs: Sequence[NewJob], places: Sequence[int], answers: list[Receipt]
    ) -> None:
        """Each job into its place, tied to all that belongs to it; any number of times."""
        refused = await self._announce(jobs)
        late = {job.id for job in jobs if job.id in refused and job.bundle is None}
        late -= await self._known(
            [
                job for job in jobs if job.id in late
            ]  # they were members before, and get their answers
        )
        for job, place in zip(jobs, places, strict=True):
            if job.id in late:
                answers[place] = Receipt(job.id, Verdict.LATE)
        if late:
            left = [n for n, job in enumerate(jobs) if job.id not in late]
            jobs, places = [jobs[n] for n in left], [places[n] for n in left]
        if not jobs:
            return
        await self._put(jobs, places, answers, form="forced")
        mine = [answers[place] for place in places]
        await self._tie(jobs, mine)
        await self._join(
            [
                (job, answer)
                for job, answer in zip(jobs, mine, strict=True)
                if job.before and job.id not in refused
            ]
        )

    async def _known(self, jobs: Sequence[NewJob]) -> set[str]:
        """The ids of those jobs that have come in before."""
        known = set(await self._queues_of([job.id for job in jobs]))
        for job in jobs:
            if job.id not in known:
                key = self._root(job.queue) + b":remembered"
                if await self._wire.command(key, b"ZSCORE", key, job.id) is not None:
                    known.add(job.id)
        return known

    async def _announce(self, jobs: Sequence[NewJob]) -> set[str]:
        """Have parents that wait already wait for these jobs; answers those they do not take.

        What groups these jobs are members of may be among them: they are stored first.
        """
        groups = [job for job in jobs if job.is_group and not job.before]
        if groups and any(job.before for job in jobs):
            answers = [Receipt(job.id, Verdict.NEW) for job in groups]
            await self._put(groups, range(len(groups)), answers, form="forced")
        ups = [(job, up) for job in jobs for up in job.before]
        items = [
            (up.queue, (up.parent, job.id, up.policy[0], job.cause or "", b"0")) for job, up in ups
        ]
        refused: set[str] = set()
        for places, found in await self._over("join", items) if items else []:
            refused |= {
                ups[place][0].id for place, taken in zip(places, found, strict=True) if not taken
            }
        return refused

    async def _join(self, members: Sequence[tuple[NewJob, Receipt]]) -> None:
        """Tie jobs that are in their places, by those that stand for them, to parents that wait."""
        ups = [(job, answer.id, up) for job, answer in members for up in job.before]
        if not ups:
            return
        others = [(job, id, up) for job, id, up in ups if id != job.id]
        items = [(up.queue, (up.parent, id, up.policy[0], "", b"1")) for _, id, up in others]
        if items:
            await self._over("join", items)
        news = [
            Release(job.queue, job.id, "-", up.policy[0], up.parent, up.queue)
            for job, _, up in others
        ]
        items = [(job.queue, (id, up.policy[0], up.parent, up.queue)) for job, id, up in ups]
        for places, verdicts in await self._over("edges", items):
            for place, verdict in zip(places, verdicts, strict=True):
                if verdict:
                    job, id, up = ups[place]
                    found = verdict.decode()
                    news.append(Release(job.queue, id, found, up.policy[0], up.parent, up.queue))
        await self._tell(news)

    async def _write_down(self, jobs: Sequence[NewJob]) -> str:
        """A note of jobs that are on their way to their places, for `rescue` if we die."""
        name = new_id()
        await self._run("bundle", [self._root(jobs[0].queue)], (name, dump(jobs)))
        return name

    async def _take_off(self, first: str, name: str | bytes) -> None:
        await self._run("bundle", [self._root(first)], (name, b""))

    async def _closed_bundles(self, jobs: Sequence[NewJob]) -> set[str | None]:
        """Bundles with a job that a draining queue would refuse."""
        queues = list(dict.fromkeys(job.queue for job in jobs))
        modes = await side_by_side(
            *(self._wire.command(root, b"HGET", root, b"mode") for root in map(self._root, queues))
        )
        draining = {q for q, mode in zip(queues, modes, strict=True) if mode == b"draining"}
        doubtful = [job for job in jobs if job.bundle is not None and job.queue in draining]
        known = await self._queues_of([job.id for job in doubtful])
        return {job.bundle for job in doubtful if job.id not in known}

    async def _put(
        self,
        jobs: Sequence[NewJob],
        places: Sequence[int],
        answers: list[Receipt],
        *,
        form: str = "rich",
    ) -> None:
        """Each job into its queue; those that wait are tied afterwards."""
        by_queue: dict[str, list[int]] = {}
        for n, job in enumerate(jobs):
            by_queue.setdefault(job.queue, []).append(n)
        # The nodes' moments differ; what came in one call shall rank in its order all the same.
        moment = f"{await self._moment():.3f}" if len(by_queue) > 1 else ""
        found = await side_by_side(
            *(
                self._put_into(queue, [jobs[n] for n in mine], Part(moment, mine), form)
                for queue, mine in by_queue.items()
            )
        )
        for mine, part in zip(by_queue.values(), found, strict=True):
            for n, answer in zip(mine, part, strict=True):
                answers[places[n]] = answer

    async def _put_into(
        self, queue: str, jobs: Sequence[NewJob], part: Part, form: str
    ) -> list[Receipt]:
        answers = [Receipt(job.id, Verdict.NEW) for job in jobs]
        if all(map(is_plain, jobs)) and await self._insert_plain(jobs, answers, part):
            return answers
        args = [value for job in jobs for value in (1, *_rich_job(job))]
        _read_answers(await self._store(form, [queue], len(jobs), args, part), answers)
        return answers

    async def _tie(self, jobs: Sequence[NewJob], answers: Sequence[Receipt]) -> None:
        """Tie parents to their children; a child that has ended counts at once."""
        stands = {job.id: answer.id for job, answer in zip(jobs, answers, strict=True)}
        parents = [
            job
            for job, answer in zip(jobs, answers, strict=True)
            if _edges(job) and _is_stored(job, answer)
        ]
        if not parents:
            return
        queues = await self._queues_of_children(jobs) | {job.id: job.queue for job in jobs}
        edges = [
            (stands[job.id], job.queue, stands.get(edge.child, edge.child), edge.policy[0])
            for job in parents
            for edge in _edges(job)
        ]
        # Keys are a queue's own, so whoever stands for a job is in the same queue.
        queues |= {stands[job.id]: job.queue for job in jobs}
        asked = [edge.child for job in parents for edge in _edges(job)]
        items = [(e[1], (e[0], child, e[2])) for e, child in zip(edges, asked, strict=True)]
        await self._over("pend", items)
        ended: list[Release] = []
        tied = [edge for edge in edges if edge[2] in queues]
        items = [(queues[c], (c, policy, parent, above)) for parent, above, c, policy in tied]
        for places, verdicts in await self._over("edges", items):
            for place, verdict in zip(places, verdicts, strict=True):
                if verdict:
                    parent, above, child, policy = tied[place]
                    found = verdict.decode()
                    ended.append(Release(queues[child], child, found, policy, parent, above))
        for parent, above, child, policy in edges:
            if child not in queues:  # done, and not kept
                ended.append(Release(above, child, "D", policy, parent, above))
        for job in parents:
            ended.append(Release(job.queue, "*", "D", "f", stands[job.id], job.queue))
        await self._tell(await self._release(ended))

    # carrying news of endings to other slots

    async def _carry(self, rows: Iterable[Sequence[bytes]]) -> None:
        """Tell parents on other slots what a script wrote down for them."""
        await self._tell([Release(*(value.decode() for value in row)) for row in rows])

    async def _tell(self, news: list[Release]) -> None:
        while news:
            further = await self._release(news)
            told: dict[str, list[str]] = {}
            for one in news:
                told.setdefault(one.queue, []).append(f"{one.child} {one.parent}")
            await side_by_side(*(self._strike(queue, fields) for queue, fields in told.items()))
            news = further

    async def _strike(self, queue: str, fields: Sequence[str]) -> None:
        root = self._root(queue)
        await self._wire.command(root, b"HDEL", root + b":out", *fields)

    async def _release(self, news: Sequence[Release]) -> list[Release]:
        """Tell parents; answers what their own endings now make known to theirs."""
        items = [
            (one.above, (one.parent, one.child, one.queue, one.verdict, one.policy)) for one in news
        ]
        outs = [out for _, out in await self._over("release", items)]
        for queue in {one.above for one in news}:
            self._bell.ring(queue)
        return [Release(*(v.decode() for v in row)) for out in outs for row in out]

    async def _finish(self, first: str, name: bytes, packed: bytes) -> None:
        """Complete a bundle whose caller has died."""
        jobs = load(_jobs, packed)
        answers = [Receipt(job.id, Verdict.NEW) for job in jobs]
        await self._place(jobs, range(len(jobs)), answers)
        await self._take_off(first, name)

    # where jobs are

    async def _queues_of_children(self, jobs: Sequence[NewJob]) -> dict[str, str]:
        """The queue of every child that is in this call or was stored before."""
        wanted = {edge.child for job in jobs for edge in _edges(job)}
        if not wanted:
            return {}
        found = {job.id: job.queue for job in jobs if job.id in wanted}
        return found | await self._queues_of([id for id in wanted if id not in found])

    async def _queues_of(self, ids: Sequence[str]) -> dict[str, str]:
        """In which queue each stored job is. There is no index: every queue is asked."""
        found: dict[str, str] = {}
        for rows in await self._all("where", ids) if ids else []:
            found |= {id.decode(): queue.decode() for queue, id in rows}
        return found


def _edges(job: NewJob) -> tuple[After, ...]:
    """What it waits for, but for itself."""
    return () if job.is_group else job.after


def _lengths(blobs: Sequence[bytes]) -> bytes:
    return pack(f">{len(blobs)}I", *map(len, blobs))


def _is_stored(job: NewJob, answer: Receipt) -> bool:
    fresh = answer.verdict in (Verdict.NEW, Verdict.REOPENED)
    return fresh or (answer.verdict is Verdict.IN_PROGRESS and answer.id == job.id)


def _spread_bundles(jobs: Sequence[NewJob]) -> set[str]:
    """Bundles over several queues, or with a flow in them."""
    queues: dict[str, set[str]] = {}
    flows: set[str] = set()
    for job in jobs:
        if job.bundle is not None:
            queues.setdefault(job.bundle, set()).add(job.queue)
            if _edges(job):
                flows.add(job.bundle)
    return {bundle for bundle, names in queues.items() if len(names) > 1} | flows


def _rich_job(job: NewJob) -> tuple[Arg, ...]:
    return (
        job.id,
        band(job.priority),
        when(job),
        digest(job.key) if job.key is not None else "",
        job.unique[0],
        digest(job.lane) if job.lane is not None else "",
        job.bundle or "",
        b"2" if job.is_group else b"1" if job.after else b"",
        b"null" if job.cause is None else dump(plain(job.cause)),
        pack_job(job),
    )


def _read_answers(found: Sequence[Any], answers: list[Receipt]) -> None:
    for place, verdict, id, *differs in found:
        answers[place] = Receipt(id.decode(), Verdict(verdict.decode()), differs == [1])
