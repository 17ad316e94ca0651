"""Stops calling a provider that keeps failing, or that asks us to wait.

A breaker's state is a note in the store, shared by every process. While it is closed nothing is
read or written but once a second; while it is open its jobs are parked, unspent.

Jobs of a command without `breaker=` have an implied one, named after their queue and lane. It
counts nothing: it opens when the provider asks to wait, where there is a rate, and when a job's
last attempt fails because its provider is unavailable. Such a job does not die of it; it is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal

import msgspec

from relevo.changes import Changes
from relevo.clock import milliseconds
from relevo.errors import CircuitOpen, NotFoundError, StoreUnavailable
from relevo.job import LIVE, State
from relevo.message import Breaker
from relevo.outcome import behind
from relevo.store import Audit, By, Filter, Note, Store
from relevo.storetime import StoreTime
from relevo.telemetry import log

KIND = "breaker"
FRESH = 1_000  # how long another process's change may go unseen, in milliseconds
PROBE = 60_000  # how long a probe may take before another is let through
NUDGE = 3_000
SPREAD_MIN = 15_000  # so that no second gets more than a tenth of what is released
HISTORY = 20
RELEASE = 50  # jobs a second, where nothing else is said
ROUNDS = 3
UNACCEPTED = 3  # so many jobs whose key was not accepted open the breaker of an account
SINGLED_OUT = 2  # a job dies only after the provider has answered others so often between its tries
TRIED = 20
REMEMBERED = 1_000  # at most: dependencies with failures, and jobs that failed, of each of them


class Turn(msgspec.Struct, frozen=True, array_like=True):
    """One change of a breaker's state."""

    at: int
    state: str
    why: str


class Circuit(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of one breaker."""

    state: Literal["closed", "open", "half_open"] = "closed"
    failures: int = 0
    slow: int = 0  # of these failures: calls that worked, and took too long
    first_failure_at: int = 0
    until: int = 0  # open: when a probe may try; half open: when the probe is given up
    held: bool = False  # open, and no other job probes: the probe's call may have happened
    cooldown: int = 0
    probe: str = ""  # the job that tries
    tried: tuple[str, ...] = ()  # those that failed since it opened; others probe before them
    nudged_at: int = 0
    release: int = RELEASE
    is_implied: bool = False  # its commands have no `breaker=`; as it opened last
    unaccepted: tuple[str, ...] = ()  # jobs whose key was not accepted since the last success
    history: tuple[Turn, ...] = ()

    def turned(self, at: int, state: Literal["closed", "open", "half_open"], why: str) -> Circuit:
        history = (*self.history, Turn(at, state, why[:200]))[-HISTORY:]
        return msgspec.structs.replace(self, state=state, history=history)


_decode = msgspec.json.Decoder(Circuit).decode

IMPLIED = Breaker("implied", release=RELEASE)
"""The rule of a breaker that no command has asked for."""


class _Failing(msgspec.Struct):
    """A job that failed, as this process has seen it."""

    answers: int  # what its dependency had answered by the job's last failure
    singled_out: int = 0  # how often it has answered other jobs between two failures of this one
    rounds: int = 0  # how often it was tried in vain to give the job its attempts back


class _Failures(msgspec.Struct):
    """The jobs of one command that failed since this process saw the dependency answer them."""

    by_once: bool  # so that only a run whose once() has called is an answer
    answers: int = 0
    jobs: dict[str, _Failing] = msgspec.field(default_factory=dict[str, _Failing])


class Breakers:
    """Every breaker this process has met."""

    def __init__(self, store: Store, time: StoreTime) -> None:
        self._store = store
        self._time = time
        self._known: dict[str, tuple[Circuit, int, int]] = {}  # circuit, version, read at
        self._locks: dict[str, asyncio.Lock] = {}
        self.changes: Changes | None = None  # of what its rules say
        self.troubled: dict[str, int] = {}  # when last seen not closed; tended every second
        self.failing: dict[tuple[str, str], _Failures] = {}  # by name and kind of command

    # for a run

    async def admit(self, name: str, job: str) -> None:
        """Let a job call its dependency, or raise CircuitOpen."""
        # What we know may be a second old: a job taken over from a process that died while it
        # probed is itself the probe, and parked it would wait for itself.
        for fresh in (False, True):
            circuit, version, _ = await self._read(name, fresh=fresh)
            if circuit.state == "closed":
                return
            now = await self._time.now()
            # A held probe runs again when a person has decided what came of its call.
            is_mine = circuit.probe == job
            must_wait = circuit.held or now < circuit.until or job in circuit.tried
            if must_wait and not is_mine:
                continue
            probing = msgspec.structs.replace(circuit, probe=job, until=now + PROBE)
            if circuit.state == "open":
                probing = probing.turned(now, "half_open", f"job {job} probes")
            if await self._write(name, probing, version):
                return
        raise CircuitOpen(name)

    async def failed(
        self,
        name: str,
        rule: Breaker | None,
        job: str,
        why: str,
        *,
        is_uncertain: bool = False,
        is_last: bool = False,
        is_slow: bool = False,
    ) -> bool:
        """Count a failure; True when the job is to wait, since the breaker is not closed now.

        A job's last attempt opens it, whatever the rule says; without a rule nothing else does.
        After a probe that is uncertain no other one is sent: each might leave an effect that
        a person has to look for.
        """
        is_implied = rule is None
        rule = self.rule(name, rule)
        given = rule or IMPLIED

        def change(circuit: Circuit, now: int) -> Circuit | None:
            if circuit.state == "open" or (circuit.state == "half_open" and circuit.probe != job):
                return None
            if circuit.state == "half_open":
                if is_uncertain:
                    return _stuck(circuit, now, job, f"the probe {job} may have happened: {why}")
                again = msgspec.structs.replace(circuit, tried=(*circuit.tried, job)[-TRIED:])
                return _opened(again, now, _doubled(circuit, given), f"the probe failed: {why}")
            start = msgspec.structs.replace(
                circuit, release=given.release, tried=(job,), is_implied=is_implied
            )
            cooldown = milliseconds(given.cooldown)
            if is_last:
                return _opened(start, now, cooldown, f"the last attempt of {job} failed: {why}")
            if rule is None:
                return None
            is_new = now - circuit.first_failure_at > milliseconds(rule.window)
            count = 1 if is_new else circuit.failures + 1
            slow = (0 if is_new else circuit.slow) + is_slow
            if count >= rule.failures:
                many = f"{count} failures in a row" + (f", {slow} of them slow" if slow else "")
                return _opened(start, now, cooldown, f"{many}: {why}")
            first = now if is_new else circuit.first_failure_at
            return msgspec.structs.replace(
                circuit, failures=count, slow=slow, first_failure_at=first
            )

        circuit = await self._change(name, change)
        return circuit.state != "closed"

    def rule(self, name: str, rule: Breaker | None) -> Breaker | None:
        """When a breaker opens: as its command says, or as a person has changed it."""
        return rule if self.changes is None else self.changes.rule(name, rule)

    async def handed_on(self, name: str, job: str, *, is_uncertain: bool = False) -> None:
        """If the job was the probe, let the next one probe at once: it has called nobody.

        One that is held stays so while it is still uncertain what came of its call.
        """
        circuit, _, _ = await self._read(name)
        if circuit.state != "half_open":
            return
        is_mine = False

        def change(circuit: Circuit, now: int) -> Circuit | None:
            nonlocal is_mine
            is_mine = circuit.state == "half_open" and circuit.probe == job
            if not is_mine:
                return None
            if circuit.held and is_uncertain:
                is_mine = False
                return _stuck(circuit, now, job, f"the probe {job} may have happened")
            return msgspec.structs.replace(circuit, probe="", held=False, until=now)

        await self._change(name, change)
        if is_mine:
            circuit, version, _ = await self._read(name)
            await self._let_one_probe(name, circuit, version, await self._time.now())

    # what this process has seen of single jobs

    def noted(self, name: str, kind: str, job: str, *, by_once: bool) -> int:
        """Note that a job has failed; how often others were answered between its failures."""
        place = (name, kind)
        failures = self.failing.pop(place, None) or _Failures(by_once)
        self.failing[place] = failures  # the latest of them stands last
        known = failures.jobs.pop(job, None)
        failing = _Failing(failures.answers)
        if known is not None:
            failing.singled_out = known.singled_out + (known.answers < failures.answers)
        failures.jobs[job] = failing
        for some in (self.failing, failures.jobs):
            if len(some) > REMEMBERED:
                del some[next(iter(some))]  # pyright: ignore[reportArgumentType]
        return failing.singled_out

    def answered(self, name: str, kind: str, job: str, *, has_called: bool) -> None:
        """Note that the dependency has answered a job."""
        failures = self.failing.get((name, kind))
        if failures is None:
            return
        failures.jobs.pop(job, None)
        if not failures.jobs:
            del self.failing[name, kind]
        elif has_called or not failures.by_once:
            failures.answers += 1

    async def _give_back(self, name: str) -> None:
        """Give the jobs that failed while the breaker was opening their attempts back.

        They wait for their next attempt, and go behind the breaker instead.
        """
        for place, failures in list(self.failing.items()):
            if place[0] != name:
                continue
            due = {
                job: each
                for job, each in failures.jobs.items()
                if each.answers == failures.answers and each.rounds < ROUNDS
            }
            found = await self._store.find(list(due))
            back: list[str] = []
            for job, each in zip(found, due.values(), strict=True):
                # What is still running, or being settled, is looked at again in a second.
                each.rounds += 1
                if job is None or job.state is not State.RUNNING:
                    each.rounds = ROUNDS
                if job is not None and job.state is State.SCHEDULED and job.attempt:
                    back.append(job.id)
            if back:
                await self._store.retry(back, By("relevo", f"the breaker '{name}' has opened"))

    async def rest(
        self, name: str, rule: Breaker | None, wait: int, why: str, *, release: int
    ) -> None:
        """Let nothing through for so many milliseconds: the provider has asked for it."""

        def change(circuit: Circuit, now: int) -> Circuit | None:
            until = now + wait
            if circuit.held or (circuit.state == "open" and circuit.until >= until - FRESH):
                return None
            if circuit.state == "open":
                return msgspec.structs.replace(circuit, until=until)
            start = msgspec.structs.replace(circuit, release=release, is_implied=rule is None)
            return _opened(start, now, wait, f"the provider asked to wait: {why}", cooldown=0)

        await self._change(name, change)

    async def unaccepted(self, name: str, rule: Breaker, job: str, why: str) -> None:
        """The provider does not accept the key of this account; several jobs say it is the key."""

        def change(circuit: Circuit, now: int) -> Circuit | None:
            jobs = tuple(dict.fromkeys((*circuit.unaccepted, job)))[-UNACCEPTED:]
            known = msgspec.structs.replace(circuit, unaccepted=jobs)
            if circuit.state == "half_open" and circuit.probe == job:
                again = msgspec.structs.replace(known, tried=(*circuit.tried, job)[-TRIED:])
                return _opened(again, now, _doubled(circuit, rule), f"the probe failed: {why}")
            if circuit.state == "closed" and len(jobs) == UNACCEPTED:
                start = msgspec.structs.replace(known, release=rule.release)
                why_open = f"the key of {len(jobs)} jobs was not accepted: {why}"
                return _opened(start, now, milliseconds(rule.cooldown), why_open)
            return None if known == circuit else known

        await self._change(name, change)

    async def succeeded(self, name: str, job: str, *, is_accepted: bool = True) -> None:
        """Forget failures; close, and let the parked jobs go, if this was the probe."""
        circuit, _, _ = await self._read(name)
        is_quiet = not circuit.failures and not (is_accepted and circuit.unaccepted)
        if circuit.state == "open" or (circuit.state == "closed" and is_quiet):
            return

        def change(circuit: Circuit, now: int) -> Circuit | None:
            if is_accepted:
                circuit = msgspec.structs.replace(circuit, unaccepted=())
            if circuit.state == "half_open" and circuit.probe == job:
                return _closed(circuit, now, f"the probe {job} worked")
            if circuit.state == "closed":
                return msgspec.structs.replace(circuit, failures=0, slow=0, first_failure_at=0)
            return None

        was_open = circuit.state == "half_open"
        circuit = await self._change(name, change)
        if was_open and circuit.state == "closed":
            await self._release(name, circuit)

    # for the keeper

    async def tend(self) -> None:
        """Let a probe through where the cool-down is over, and stragglers where it has closed."""
        for name in list(self.troubled):
            circuit, version, _ = await self._read(name)
            now = await self._time.now()
            if circuit.state == "closed":
                # A process that had not heard yet may have parked some more.
                await self._store.unpark(behind(name), spread=SPREAD_MIN)
                if self._time.local() - self.troubled[name] > 5 * FRESH:
                    del self.troubled[name]
                continue
            await self._give_back(name)
            if circuit.held:
                # A person may also discard the probe; then no run of it will ever turn the breaker.
                if await self._is_over(circuit.probe):
                    again = msgspec.structs.replace(circuit, held=False, probe="", until=now)
                    await self._write(name, again, version)
            elif now >= circuit.until and now - circuit.nudged_at > NUDGE:
                await self._let_one_probe(name, circuit, version, now)

    async def learn(self) -> None:
        """Meet the breakers that other processes, perhaps gone since, have opened."""
        for note in await self._store.notes(KIND):
            if note.name not in self.troubled and _decode(note.value).state != "closed":
                self.troubled[note.name] = self._time.local()

    # for people

    async def all(self) -> list[tuple[str, Circuit, int]]:
        """Every breaker that was ever troubled, with how many jobs it holds back."""
        found: list[tuple[str, Circuit, int]] = []
        after = ""
        while notes := await self._store.notes(KIND, after=after):
            after = notes[-1].name
            for note in notes:
                parked = await self._store.count(Filter(park=behind(note.name)))
                found.append((note.name, _decode(note.value), parked))
        return found

    async def turn(self, name: str, verb: Literal["open", "close", "probe"], by: By) -> Circuit:
        """Open, close or probe by hand."""
        [note] = await self._store.recall(KIND, [name])
        if note is None and verb != "open":
            raise NotFoundError(f"no breaker '{name}' has ever been troubled")

        def change(circuit: Circuit, now: int) -> Circuit | None:
            why = f"{by.who}: {by.note or verb}"
            match verb:
                case "open":
                    return _opened(circuit, now, circuit.cooldown or 600_000, why)
                case "close":
                    return _closed(circuit, now, why)
                case "probe":
                    if circuit.state == "closed":
                        return None
                    turned = circuit.turned(now, "open", why)
                    return msgspec.structs.replace(
                        turned, until=now, nudged_at=0, probe="", held=False
                    )

        before = "closed" if note is None else _decode(note.value).state
        circuit = await self._change(name, change)
        await self._store.audit(
            [
                Audit(
                    who=by.who,
                    verb=f"breaker {verb}",
                    target=name,
                    note=by.note,
                    before=before,
                    after=circuit.state,
                )
            ]
        )
        if circuit.state == "closed":
            await self._release(name, circuit)
        return circuit

    # inside

    async def _let_one_probe(self, name: str, circuit: Circuit, version: int, now: int) -> None:
        """Let the oldest parked job go that has not been tried; all have: the oldest once more.

        Those before it go, too, and are parked again: one that fails for a reason of its own must
        not be the only one ever tried.
        """
        tried = circuit.tried
        if tried:
            parked = await self._store.count(Filter(park=behind(name)), most=len(tried) + 1)
            tried = tried if parked > len(tried) else ()
        nudged = msgspec.structs.replace(circuit, nudged_at=now, tried=tried)
        if await self._write(name, nudged, version):
            await self._store.unpark(behind(name), limit=len(tried) + 1)

    async def _is_over(self, id: str) -> bool:
        """Whether a job has ended, or is no longer in the store."""
        [job] = await self._store.find([id])
        return job is None or job.state not in LIVE

    async def _read(self, name: str, *, fresh: bool = False) -> tuple[Circuit, int, int]:
        local = self._time.local()
        known = self._known.get(name)
        if known is None or fresh or local - known[2] > FRESH:
            [note] = await self._store.recall(KIND, [name])
            circuit = Circuit() if note is None else _decode(note.value)
            known = (circuit, 0 if note is None else note.version, local)
            self._remember(name, known)
        return known

    def _remember(self, name: str, known: tuple[Circuit, int, int]) -> None:
        self._known[name] = known
        if known[0].state != "closed":
            self.troubled[name] = known[2]

    async def _write(self, name: str, circuit: Circuit, version: int) -> bool:
        value = msgspec.json.encode(circuit)
        [written] = await self._store.remember(
            [Note(kind=KIND, name=name, value=value, version=version)]
        )
        if written:
            self._remember(name, (circuit, version + 1, self._time.local()))
        else:
            self._known.pop(name, None)
        return written

    async def _change(self, name: str, change: Callable[[Circuit, int], Circuit | None]) -> Circuit:
        """Read, change, write if nobody else has written since; a few rounds."""
        async with self._locks.setdefault(name, asyncio.Lock()):
            for attempt in range(10):
                circuit, version, _ = await self._read(name, fresh=attempt > 0)
                changed = change(circuit, await self._time.now())
                if changed is None:
                    return circuit
                if await self._write(name, changed, version):
                    if changed.state != circuit.state:
                        why = changed.history[-1].why if changed.history else ""
                        extra = {"breaker": name, "state": changed.state, "why": why}
                        log.warning("breaker turned", extra=extra)
                    return changed
        raise StoreUnavailable(f"the breaker '{name}' is changed by too many at once; try again")

    async def _release(self, name: str, circuit: Circuit) -> None:
        park = behind(name)
        parked = await self._store.count(Filter(park=park), most=1_000_000)
        await self._store.unpark(park, spread=max(SPREAD_MIN, parked * 1_000 // circuit.release))


def _opened(
    circuit: Circuit, now: int, wait: int, why: str, *, cooldown: int | None = None
) -> Circuit:
    return msgspec.structs.replace(
        circuit.turned(now, "open", why),
        until=now + wait,
        cooldown=wait if cooldown is None else cooldown,
        probe="",
        held=False,
        nudged_at=0,
        failures=0,
        slow=0,
    )


def _stuck(circuit: Circuit, now: int, probe: str, why: str) -> Circuit:
    """Open until a person has decided what came of the probe, which is then let through."""
    opened = _opened(circuit, now, 0, why, cooldown=circuit.cooldown)
    return msgspec.structs.replace(opened, until=0, probe=probe, held=True)


def _closed(circuit: Circuit, now: int, why: str) -> Circuit:
    turned = circuit.turned(now, "closed", why)
    return msgspec.structs.replace(
        turned, until=0, probe="", tried=(), held=False, failures=0, slow=0, first_failure_at=0
    )


def _doubled(circuit: Circuit, rule: Breaker) -> int:
    """The cool-down after a probe that failed; the rule's own after a rest, which had none."""
    if not circuit.cooldown:
        return milliseconds(rule.cooldown)
    return min(circuit.cooldown * 2, milliseconds(rule.cap))
