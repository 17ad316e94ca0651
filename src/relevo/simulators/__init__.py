"""The providers, pretended: the real wire formats on loopback, with faults on request.

Every provider is one file, listed in PROVIDERS, with two functions:

    def routes(world: World) -> list[BaseRoute]        its endpoints under a prefix of its own
    def environment(base: str) -> dict[str, str]       the variables that point our gateways at it

Each call is wrapped by `world.call(provider, operation)`, which counts it and applies the faults;
each effect is written into `world.ledger`, so that a test can count what really happened:

    async with running(World(seed=7)) as world:
        world.faults.add("stripe", "charge", "lost", times=1)
        …
        assert world.ledger.count("stripe", "charge") == 1
"""

from __future__ import annotations

from relevo.simulators.faults import Fault, Faults
from relevo.simulators.ledger import Entry, Ledger
from relevo.simulators.server import environment, running, serve
from relevo.simulators.world import Courier, World

__all__ = [
    "Courier",
    "Entry",
    "Fault",
    "Faults",
    "Ledger",
    "World",
    "environment",
    "running",
    "serve",
]
