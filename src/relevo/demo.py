"""A worker fleet under kill -9, and the count of what was lost and doubled.

Orders come in, some of them twice. A carrier outside is sometimes away and sometimes loses its
reply after it has printed the label. Workers are killed in the middle. Every label the carrier
prints is a row in a ledger of its own, which relevo does not see: that is what is counted.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from relevo.app import App
from relevo.backoff import exponential
from relevo.context import Context
from relevo.engine import Relevo
from relevo.errors import ProviderUnavailable
from relevo.job import State
from relevo.message import Command
from relevo.store import Filter

ORDERS = 2_000
WORKERS = 2
KILLS = 2
LEASE = "2s"


class PrintLabel(
    Command,
    queue="demo:carrier:label",
    attempts=8,
    backoff=exponential("100ms", cap="2s"),
    timeout="10s",
    key="label:{order}",
    unique="forever",
):
    order: int


class Carrier:
    """The world outside, with a ledger that anybody can count."""

    def __init__(self, ledger: str, seed: int) -> None:
        self._rows = sqlite3.connect(ledger, isolation_level=None, timeout=10)
        self._rows.execute("pragma synchronous = off")
        self._rows.execute("create table if not exists labels (key text, ordered integer)")
        self._chance = random.Random(seed ^ os.getpid())

    async def print_label(self, order: int, key: str) -> str:
        luck = self._chance.random()
        if luck < 0.05:
            raise ProviderUnavailable("503: come back later")
        self._rows.execute("insert into labels values (?, ?)", (key, order))
        await asyncio.sleep(0.002)
        if luck < 0.10:
            raise TimeoutError("the reply was lost, the label was printed")
        return f"LABEL-{order}"

    async def find(self, key: str) -> str | None:
        row = self._rows.execute("select ordered from labels where key = ?", (key,)).fetchone()
        return None if row is None else f"LABEL-{row[0]}"

    def counts(self) -> tuple[int, int]:
        """How many orders have a label, and how many labels are too many."""
        labels, orders = self._rows.execute(
            "select count(*), count(distinct ordered) from labels"
        ).fetchone()
        return orders, labels - orders

    def close(self) -> None:
        self._rows.close()


def app(carrier: Carrier) -> App:
    async def print_label(order: PrintLabel, ctx: Context) -> None:
        await ctx.once(
            "label", lambda key: carrier.print_label(order.order, key), find=carrier.find
        )

    return App("demo", workers=[print_label])


@dataclass
class Proof:
    """What was sent, what happened, and what that leaves to answer for."""

    delivered: int = 0
    duplicates: int = 0
    kills: int = 0
    effects: int = 0
    expected: int = 0
    lost: int = 0
    doubled: int = 0
    dead: int = 0
    held: int = 0
    seconds: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.lost == self.doubled == 0

    def as_json(self) -> dict[str, object]:
        return asdict(self)


async def story(
    store: str | None, seed: int, tell: Callable[[str, Proof], None], orders: int = ORDERS
) -> Proof:
    """Run it all; `tell` hears what is going on a few times a second."""
    with tempfile.TemporaryDirectory(prefix="relevo-demo-") as folder:
        url = store or f"sqlite:///{Path(folder) / 'relevo.db'}"
        ledger = str(Path(folder) / "carrier.db")
        carrier = Carrier(ledger, seed)
        try:
            async with Relevo(url, apps=[app(carrier)]) as relevo:
                return await _play(relevo, url, ledger, carrier, seed, tell, orders)
        finally:
            carrier.close()


async def _play(
    relevo: Relevo,
    url: str,
    ledger: str,
    carrier: Carrier,
    seed: int,
    tell: Callable[[str, Proof], None],
    orders: int,
) -> Proof:
    proof = Proof(expected=orders)
    chance = random.Random(seed)
    began = time.monotonic()
    fleet = [_hire(url, ledger, seed) for _ in range(WORKERS)]
    try:
        feeding = asyncio.create_task(_feed(relevo, chance, orders, proof))
        kill_at = [orders * (n + 1) // (KILLS + 1) for n in range(KILLS)]
        while True:
            proof.effects, proof.doubled = carrier.counts()
            proof.seconds = round(time.monotonic() - began, 1)
            tell("working", proof)
            if kill_at and proof.effects >= kill_at[0]:
                kill_at.pop(0)
                victim = fleet.pop(0)
                victim.send_signal(signal.SIGKILL)
                victim.wait()
                proof.kills += 1
                tell(f"killed worker {victim.pid} with -9", proof)
                fleet.append(_hire(url, ledger, seed))
            if feeding.done() and await _is_over(relevo):
                break
            if proof.seconds > 240:
                break
            await asyncio.sleep(0.1)
        await feeding
    finally:
        for worker in fleet:
            worker.terminate()
        for worker in fleet:
            worker.wait(15)
    proof.effects, proof.doubled = carrier.counts()
    proof.dead = await relevo.store.count(Filter(states=frozenset({State.DEAD})))
    proof.held = await relevo.store.count(Filter(states=frozenset({State.HELD})))
    proof.lost = proof.expected - proof.effects - proof.dead - proof.held
    proof.seconds = round(time.monotonic() - began, 1)
    return proof


async def _feed(relevo: Relevo, chance: random.Random, orders: int, proof: Proof) -> None:
    """Every order once, a fifth of them twice, in no particular order."""
    numbers = list(range(orders)) + chance.sample(range(orders), orders // 5)
    chance.shuffle(numbers)
    for start in range(0, len(numbers), 50):
        some = numbers[start : start + 50]
        receipts = await asyncio.gather(*(relevo.enqueue(PrintLabel(n)) for n in some))
        proof.delivered += len(receipts)
        proof.duplicates += sum(not receipt.is_new for receipt in receipts)
        await asyncio.sleep(0.02)


async def _is_over(relevo: Relevo) -> bool:
    going = frozenset({State.READY, State.SCHEDULED, State.RUNNING})
    return await relevo.store.count(Filter(states=going), most=1) == 0


def _hire(url: str, ledger: str, seed: int) -> subprocess.Popen[bytes]:
    environment = os.environ | {"DEMO_STORE": url, "DEMO_LEDGER": ledger, "DEMO_SEED": str(seed)}
    command = [sys.executable, "-m", "relevo.demo"]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: S603 - ourselves


async def _work() -> None:
    carrier = Carrier(os.environ["DEMO_LEDGER"], int(os.environ["DEMO_SEED"]))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Relevo(os.environ["DEMO_STORE"], apps=[app(carrier)]) as relevo:
        await relevo.work(concurrency=20, lease=LEASE, grace="2s", stop=stop)


if __name__ == "__main__":
    asyncio.run(_work())
