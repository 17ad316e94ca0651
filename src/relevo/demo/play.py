"""The whole story, from the first customer to the proof."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeAlias

from relevo.demo.proof import Proof, Row
from relevo.demo.stage import APPS, Stage, stage
from relevo.demo.systems import System, systems, waiting
from relevo.engine import Relevo
from relevo.job import State

KILLS_AT = (0.25, 0.6)  # of the effects that are expected
LONGEST = 120.0  # seconds on stage; a quiet machine needs about half of it
GOING = frozenset({State.READY, State.SCHEDULED, State.RUNNING, State.PARKED, State.WAITING})

Tell: TypeAlias = Callable[[str, Proof], None]


async def play(
    *,
    seed: int = 1,
    store: str | None = None,
    database: str | None = None,
    apps: tuple[str, ...] = APPS,
    tell: Tell = lambda what, proof: None,
    then: asyncio.Event | None = None,
) -> Proof:
    """Tell it; `tell` hears what is going on. With `then`, keep serving until that is set."""
    began = time.monotonic()
    proof = Proof()
    tell("setting the stage", proof)
    async with stage(seed=seed, store=store, database=database, apps=apps) as here:
        cast = systems(apps)
        proof.url = here.url
        for system in cast:
            system.faults(here.world)
            proof.systems[system.name] = Row()
        async with Relevo(here.store, database=here.database) as relevo:
            await _act(here, relevo, cast, seed, proof, tell, began)
            await _count(here, relevo, cast, proof)
        proof.seconds = round(time.monotonic() - began, 1)
        tell("the proof", proof)
        if then is not None:
            await then.wait()
    return proof


async def _act(
    here: Stage,
    relevo: Relevo,
    cast: list[System],
    seed: int,
    proof: Proof,
    tell: Tell,
    began: float,
) -> None:
    sending = asyncio.gather(*(system.send(here, seed) for system in cast))
    kills = list(KILLS_AT)
    expected = sum(system.effects for system in cast)
    idle = 0
    what = "customers and providers are calling"
    last = time.monotonic() + LONGEST
    try:
        while idle < 3 and time.monotonic() < last:
            await asyncio.sleep(0.25)
            for system in cast:
                proof.systems[system.name].effects = system.so_far(here.world)
            done = sum(row.effects for row in proof.systems.values())
            if kills and done >= kills[0] * expected:
                kills.pop(0)
                proof.kills += 1
                what = f"killed worker {here.kill_one()} with -9; another takes over"
            if sending.done():
                what = "all is sent; retries and breakers finish their work"
                idle = 0 if await _is_going(relevo, cast) else idle + 1
            proof.seconds = round(time.monotonic() - began, 1)
            tell(what, proof)
        await sending
    finally:
        sending.cancel()  # whoever breaks the story off sends nothing more


async def _is_going(relevo: Relevo, cast: list[System]) -> bool:
    endless = {queue for system in cast for queue in system.endless}
    return any(
        tally.counts.get(state)
        for tally in await relevo.store.tally()
        for state in GOING
        if not (state is State.SCHEDULED and tally.queue in endless)
    )


async def _count(here: Stage, relevo: Relevo, cast: list[System], proof: Proof) -> None:
    for system in cast:
        row = Row(
            delivered=system.sent.delivered,
            duplicates=system.sent.duplicates,
            forged=system.sent.forged,
        )
        await system.judge(here, relevo, row)
        row.dead, row.held, reasons = await waiting(relevo, system.name)
        proof.systems[system.name] = row
        for reason, count in reasons.items():
            proof.reasons[reason] = proof.reasons.get(reason, 0) + count
    for breaker in await relevo.desk.breakers():
        if any(turn.state == "open" for turn in breaker.circuit.history):
            proof.breakers[breaker.name] = breaker.circuit.state
