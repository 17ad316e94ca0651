"""JobHandle and FlowHandle: what became of a job or a flow, asked and changed from code.

    job = relevo.job(receipt.id)
    await job.wait(timeout="10s")
    print(await job.result())
    await job.cancel(who="ana@shop.example")

A handle holds an id and nothing else: it asks the store each time. What it changes goes through
`relevo.desk`, as the dashboard's buttons do, and is audited under the name given as `who`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from relevo.clock import Duration, duration
from relevo.context import calls_here
from relevo.desk import FlowView, Person, Role
from relevo.errors import DefinitionError, MisuseError, NotFoundError
from relevo.flow import Results
from relevo.job import ENDED, LIVE, Job, State
from relevo.pending import noted
from relevo.sealing import unsealed
from relevo.store import BATCH

if TYPE_CHECKING:
    from relevo.engine import Relevo

T = TypeVar("T")

FIRST, LONGEST = 0.02, 1.0  # seconds between two questions of the store
CARRIED = 10.0  # seconds within which a job is expected to come out of the outbox


class JobHandle:
    """One job, asked and changed from code; get it by `relevo.job(id)` or `ctx.job(id)`."""

    def __init__(self, engine: Relevo, id: str) -> None:
        self._engine = engine
        self.id = id

    @noted("job", calls_here)
    async def look(self) -> Job:
        """The job with its history, its failure and its payload; NotFoundError if none is kept."""
        return await _carried(self._engine, self.id, lambda: self._engine.desk.job(self.id))

    @noted("job", calls_here)
    async def state(self) -> State:
        """Where the job is now."""
        return (await self.look()).state

    @noted("job", calls_here)
    async def result(self, type: Any = None) -> Any:
        """What the run returned that ended well, as JSON gives it back, or as `type`.

        MisuseError for a job that has not ended well; wait() first.
        """
        return _result(await self.look(), type)

    @noted("job", calls_here)
    async def wait(self, timeout: Duration = "30s") -> Job:
        """Wait until the job has ended, well or not; TimeoutError when it has not by then.

        A job that is kept for no time once it is done is gone by then: NotFoundError.
        """
        engine = self._engine
        engine.check_outside("wait()")
        deadline = asyncio.get_running_loop().time() + duration(timeout).total_seconds()
        job = await self.look()
        await _until_ended(engine, [job.id], deadline, f"job {job.id}", timeout)
        try:
            return await engine.desk.job(job.id)
        except NotFoundError as error:
            raise NotFoundError(
                f"job {job.id} has ended and is gone: give its command a `keep=` to be told how"
            ) from error

    @noted("job", calls_here)
    async def cancel(self, *, who: str | Person, note: str = "") -> bool:
        """End the job, if it has not ended; a running one loses its lease. False if it has ended.

        `who` stands in the audit: a name, which may do this, or a Person, whose role decides.
        """
        job = await self._changed("cancel()")
        return (await self._engine.desk.cancel([job.id], person(who), note))[0]

    @noted("job", calls_here)
    async def retry(self, *, who: str | Person, note: str = "") -> bool:
        """Make a job ready again that is dead, cancelled, held, parked or due later.

        It has fresh attempts, and effects that it has made are not repeated. False where the job is
        in no state for that.
        """
        job = await self._changed("retry()")
        return (await self._engine.desk.retry([job.id], person(who), note))[0]

    @noted("job", calls_here)
    async def run_again(
        self, *, who: str | Person, note: str = "", repeats_effects: bool = False
    ) -> JobHandle:
        """Enqueue the command of a job that has ended once more, as a new job: its handle.

        MisuseError if the first has made effects, unless it `repeats_effects`.
        """
        if calls_here(self) is not None:
            raise MisuseError(
                "run_again() in a run or a webhook's function would make another job each time that"
                " is repeated: enqueue the command there"
            )
        job = await self._changed("run_again()")
        desk = self._engine.desk
        new = await desk.run_again(job.id, person(who), note, repeats_effects=repeats_effects)
        return JobHandle(self._engine, new)

    async def _changed(self, what: str) -> Job:
        self._engine.check_outside(what)
        return await self.look()


class FlowHandle:
    """One flow, asked and changed from code; get it by `relevo.flow(id)` or `ctx.flow(id)`."""

    def __init__(self, engine: Relevo, id: str) -> None:
        self._engine = engine
        self.id = id  # or the id of one of its jobs, or its key

    @noted("flow", calls_here)
    async def look(self) -> FlowView:
        """The flow with the jobs of its nodes, each after those that it waits for."""
        return await _carried(self._engine, self.id, lambda: self._engine.desk.flow(self.id))

    @noted("flow", calls_here)
    async def state(self) -> State:
        """What the flow does now, or how it ended: as the nodes did that nothing waits for."""
        return (await self.look()).state

    @noted("flow", calls_here)
    async def results(self) -> Results:
        """What the nodes gave that have ended well, by name; the others are in `.failed`."""
        given: dict[str, Any] = {}
        failed: dict[str, str] = {}
        for node in (await self.look()).nodes:
            name = node.node or node.id
            if node.state is State.DONE:
                given[name] = _result(node, None)
            else:
                failed[name] = _why(node)
        return Results(given, failed)

    @noted("flow", calls_here)
    async def wait(self, timeout: Duration = "30s") -> FlowView:
        """Wait until every node has ended, well or not; TimeoutError when one has not by then."""
        engine = self._engine
        engine.check_outside("wait()")
        deadline = asyncio.get_running_loop().time() + duration(timeout).total_seconds()
        while True:
            flow = await self.look()
            live = [node.id for node in flow.nodes if node.state in LIVE]
            if not live:
                return flow
            # The nodes that come last end last; a node that runs may add others meanwhile.
            await _until_ended(engine, live[-BATCH:], deadline, f"the flow {flow.id}", timeout)

    @noted("flow", calls_here)
    async def cancel(self, *, who: str | Person, note: str = "") -> int:
        """End every node that has not ended; answers how many it has ended."""
        self._engine.check_outside("cancel()")
        changed = await self._engine.desk.cancel_flow(await self.look(), person(who), note)
        return sum(changed.values())

    @noted("flow", calls_here)
    async def retry(self, *, who: str | Person, note: str = "", node: str | None = None) -> int:
        """Retry what ended badly and is still needed, or one `node` and what it needs; answers how
        many nodes are ready again."""
        self._engine.check_outside("retry()")
        flow = await self.look()
        changed = await self._engine.desk.retry_flow(flow, person(who), note, node=node)
        return sum(changed.values())


def person(who: str | Person) -> Person:
    """The person that acts: the program itself vouches for a name."""
    if isinstance(who, Person):
        return who
    if not isinstance(who, str) or not who.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise DefinitionError(
            "who= is the name of the person or the program that does this, for the audit, or a "
            "relevo.desk.Person"
        )
    return Person(who.strip(), Role.OPERATOR)


def id_of(id: str, what: str) -> str:
    """The text that was given as an id; MisuseError for a receipt, or whatever else it is."""
    if isinstance(id, str):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        return id.strip()
    raise MisuseError(f"{what} takes an id, which is text, not {type(id).__name__}: give its `.id`")


def _result(job: Job, type: Any) -> Any:
    if job.state is not State.DONE:
        raise MisuseError(f"job {job.id} has no result: {_why(job)}")
    data = b"null" if job.result is None else unsealed(job.result)
    if type is None:
        return msgspec.json.decode(data)
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise MisuseError(f"the result of job {job.id} does not fit its type: {error}") from error


def _why(job: Job) -> str:
    said = job.failure
    return f"it is {job.state}" + ("" if said is None else f" ({said.type}: {said.message})")


async def _carried(engine: Relevo, id: str, look: Callable[[], Awaitable[T]]) -> T:
    """What `look` finds, once it is out of the outbox, where it has just been stored there."""
    loop = asyncio.get_running_loop()
    pause, deadline = FIRST, loop.time() + CARRIED
    while True:
        try:
            return await look()
        except NotFoundError:
            if not await engine.is_in_outbox(id):
                return await look()  # it may have come out in between
            if loop.time() >= deadline:
                raise NotFoundError(
                    f"{id} is in the outbox, and has not been carried to the store for "
                    f"{CARRIED:.0f} s: see `relevo outbox ls`"
                ) from None
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, LONGEST)


async def _until_ended(
    engine: Relevo, ids: Collection[str], deadline: float, what: str, timeout: Duration
) -> None:
    """Return when all of these jobs have ended, or are gone."""
    loop = asyncio.get_running_loop()
    pause = FIRST
    left = list(ids)
    while True:
        found = await engine.store.find(left)
        left = [job.id for job in found if job is not None and job.state not in ENDED]
        if not left:
            return
        if loop.time() >= deadline:
            states = ", ".join(sorted({job.state for job in found if job is not None} - ENDED))
            raise TimeoutError(f"{what} has not ended within {timeout}: it is {states}")
        await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
        pause = min(pause * 1.5, LONGEST)
