"""What is sent to each system, what goes wrong at its providers, and what must have come of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import httpx2

from relevo.apps.cars.queues import BookSupplier
from relevo.apps.subscriptions.queues import AddToList, SaveRow, SendEmail
from relevo.demo.proof import Row
from relevo.demo.stage import Stage
from relevo.engine import Relevo
from relevo.ids import derived_id
from relevo.job import LIVE, State
from relevo.message import Command
from relevo.simulators import World
from relevo.simulators.traffic import cars, expenses, hotel, razworks, subscriptions
from relevo.store import Filter

BOOK = BookSupplier.__relevo__.queue
SEEN = frozenset({State.DEAD, State.HELD})
"""Where a job waits for a person: not done, and not lost."""


class System(ABC):
    """One of the five, as seen from outside."""

    name: str
    count: int  # how much of it
    effects: int  # about how many come of that
    endless: tuple[str, ...] = ()  # queues that always have something for later

    def __init__(self) -> None:
        self.sent: Any = None

    @abstractmethod
    def faults(self, world: World) -> None:
        """What goes wrong."""

    @abstractmethod
    async def send(self, stage: Stage, seed: int) -> None:
        """Be its customers and its providers."""

    @abstractmethod
    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        """Count effects, what is missing without a reason, and what happened twice."""

    @abstractmethod
    def so_far(self, world: World) -> int:
        """Effects up to now, for whoever watches."""


@dataclass(slots=True)
class Calls:
    """What was sent to a system whose traffic does not count by itself."""

    delivered: int = 0
    duplicates: int = 0
    forged: int = 0


class Cars(System):
    name = "cars"
    count = 40
    effects = 80
    endless = ("cars:payments:finish",)  # looks after every payment once more, in a minute
    suppliers = ("mexgroup", "niza", "infinity", "noleggiare", "hertz")

    def faults(self, world: World) -> None:
        world.faults.add("stripe", "create", "lost", times=2, rate=0.1)
        world.faults.add("stripe", "webhook", "duplicate", rate=0.2)
        world.faults.add("noleggiare", "book", "lost", times=2, rate=0.5)
        world.faults.add("mexgroup", "book", "refuse", times=1, rate=0.2)
        world.faults.add("hertz", "book", "limit", times=2, seconds=2)
        # A supplier that is away: its breaker opens, and its bookings wait unspent. It is back
        # before the breaker tries again, however many of the calls a kill took with it.
        world.faults.add("infinity", "book", "error", lasts=25)

    async def send(self, stage: Stage, seed: int) -> None:
        self.codes = await cars.run(stage.world, stage.url, self.count, seed)
        forged = await _forge(stage.url, "/hooks/stripe", 3)
        await stage.world.courier.rest()
        told = stage.world.courier.delivered["/hooks/stripe"]
        calls = len(self.codes)
        self.sent = Calls(calls + told, max(0, told - calls), forged)

    def so_far(self, world: World) -> int:
        booked = sum(world.ledger.count(supplier, "book") for supplier in self.suppliers)
        return booked + world.ledger.count("stripe", "charge")

    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        for code in self.codes:
            charged = stage.world.ledger.count("stripe", "charge", code)
            await tally(row, charged, relevo, Filter(key=f"finish:{code}"))
            booked = sum(
                stage.world.ledger.count(supplier, "book", code) for supplier in self.suppliers
            )
            await tally(row, booked, relevo, Filter(queue=BOOK, key=f"book:{code}"))


class HotelDesk(System):
    name = "hotel"
    endless = ("hotel:pollers:poll",)
    count = 60
    effects = 60

    def faults(self, world: World) -> None:
        world.faults.add("channel", "reply", "lost", times=2, rate=0.1)
        world.faults.add("channel", "*", "error", times=4, rate=0.05)
        world.faults.add("beds24", "send", "limit", times=2, rate=0.1, seconds=2)

    async def send(self, stage: Stage, seed: int) -> None:
        self.sent = await hotel.run(stage.world, stage.url, self.count, seed)

    def so_far(self, world: World) -> int:
        return world.ledger.count("channel", "reply") + world.ledger.count("beds24", "send")

    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        for message in sorted(self.sent.messages):
            name, _, number = message.split(":")
            ledger = stage.world.ledger
            answered = ledger.count("channel", "reply", f"{name}:{number}")
            answered += ledger.count("beds24", "send", number)
            await tally(row, answered, relevo, Filter(key=f"reply:{message}:1"))


class Expenses(System):
    name = "expenses"
    count = 60
    effects = 60

    def faults(self, world: World) -> None:
        world.faults.add("whatsapp", "send", "lost", rate=0.05, times=2)
        world.faults.add("whatsapp", "send", "error", rate=0.05, times=2)
        world.faults.add("whatsapp", "media", "error", rate=0.2, times=2)
        world.faults.add("whatsapp", "download", "down", rate=0.2, times=2)

    async def send(self, stage: Stage, seed: int) -> None:
        self.sent = await expenses.run(stage.world, stage.url, self.count, seed)

    def so_far(self, world: World) -> int:
        return world.ledger.count("whatsapp", "send")

    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        for message in self.sent.replies:
            replied = stage.world.ledger.count("whatsapp", "send", message)
            found = row.lost
            await tally(row, replied, relevo, Filter(key=f"reply:{message}"))
            if row.lost > found and await _waits(relevo, Filter(key=f"message:{message}")):
                row.lost = found  # it never came to a reply, and a person can see why


class Subscriptions(System):
    name = "subscriptions"
    count = 60
    effects = 175
    orders: dict[str, tuple[str, str, type[Command]]] = {  # noqa: RUF012 - a table
        "email": ("relay", "send", SendEmail),
        "list": ("doppler", "subscribe", AddToList),
        "spreadsheet": ("sheets", "append", SaveRow),
    }

    def faults(self, world: World) -> None:
        world.faults.add("relay", "send", "lost", times=1, rate=0.05)
        world.faults.add("relay", "send", "limit", times=3, rate=0.1)
        world.faults.add("doppler", "subscribe", "lost", times=3, rate=0.1)
        world.faults.add("doppler", "subscribe", "error", times=2, rate=0.1)
        world.faults.add("sheets", "append", "lost", times=3, rate=0.1)

    async def send(self, stage: Stage, seed: int) -> None:
        self.seed = seed
        self.sent = await subscriptions.run(stage.world, stage.url, self.count, seed)

    def so_far(self, world: World) -> int:
        mails = (entry for entry in world.ledger.find("relay") if "razworks" not in entry.key)
        return len(list(mails)) + world.ledger.count("doppler") + world.ledger.count("sheets")

    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        for number, _, is_out in subscriptions.plan(self.count, self.seed):
            event = subscriptions.event(number, self.seed, unsubscribed=is_out)
            email = event["data"]["object"]["customer_details"]["email"]
            job_id = derived_id(event["created"] * 1000, f"stripe/{event['id']}")
            for name, (provider, operation, order) in self.orders.items():
                if name == "list" and is_out:
                    continue
                key = job_id if name == "spreadsheet" else email
                happened = stage.world.ledger.count(provider, operation, key)
                where = Filter(queue=order.__relevo__.queue, key=f"{name}:{job_id}")
                await tally(row, happened, relevo, where)


class Razworks(System):
    name = "razworks"
    count = 30
    effects = 38

    def faults(self, world: World) -> None:
        world.faults.add("gemini", "generate", "error", times=6, rate=0.1)

    async def send(self, stage: Stage, seed: int) -> None:
        self.sent = await razworks.run(stage.world, stage.url, self.count, seed)

    def so_far(self, world: World) -> int:
        return sum("razworks" in entry.key for entry in world.ledger.find("relay"))

    async def judge(self, stage: Stage, relevo: Relevo, row: Row) -> None:
        for email, user_id in zip(self.sent.emails, self.sent.users, strict=True):
            happened = stage.world.ledger.count("relay", "send", email)
            where = Filter(queue="razworks:auth:welcome-email", key=f"welcome:{user_id}")
            await tally(row, happened, relevo, where)
        async with httpx2.AsyncClient(base_url=stage.url, trust_env=False, timeout=10) as client:
            for recording in self.sent.recordings:
                answer = await client.get(f"{razworks.API}/recordings/{recording}")
                found = answer.raise_for_status().json()
                where = Filter(flow=found["flow"])
                await tally(row, int(found["status"] == "understood"), relevo, where)


async def _forge(url: str, path: str, times: int) -> int:
    """Knock with a signature that is none; how often the door stayed closed."""
    body = b'{"id":"evt_forged","object":"event","type":"payment_intent.succeeded"}'
    headers = {
        "content-type": "application/json",
        "stripe-signature": f"t=1767225600,v1={'0' * 64}",
    }
    async with httpx2.AsyncClient(base_url=url, trust_env=False, timeout=10) as client:
        answers = [await client.post(path, content=body, headers=headers) for _ in range(times)]
    return sum(answer.status_code == 401 for answer in answers)


async def tally(row: Row, happened: int, relevo: Relevo, where: Filter) -> None:
    """Count one effect that was expected, and look for its job where it is missing."""
    row.expected += 1
    row.effects += happened > 0
    row.doubled += max(0, happened - 1)
    if not happened:
        row.lost += not await _waits(relevo, where)


async def _waits(relevo: Relevo, where: Filter) -> bool:
    """Whether a job is dead or held, or on its way still: late is not lost."""
    page = await relevo.store.page(where, limit=50)
    return any(job.state in SEEN | LIVE for job in page.jobs)


async def waiting(relevo: Relevo, name: str) -> tuple[int, int, Counter[str]]:
    """The dead and the held of a system, and why."""
    dead = held = 0
    reasons: Counter[str] = Counter()
    cursor = None
    while True:
        page = await relevo.store.page(Filter(states=SEEN), cursor=cursor, limit=200)
        for job in page.jobs:
            if not job.queue.startswith(f"{name}:"):
                continue
            dead += job.state is State.DEAD
            held += job.state is State.HELD
            why = job.failure.message if job.failure else ""
            reasons[f"{job.state} · {job.queue} · {shorten(why, 160, placeholder=' …')}"] += 1
        cursor = page.cursor
        if cursor is None:
            return dead, held, reasons


def systems(names: Iterable[str]) -> list[System]:
    """Those of the given names, in their order."""
    every: dict[str, type[System]] = {
        each.name: each for each in (Cars, HotelDesk, Expenses, Subscriptions, Razworks)
    }
    return [every[name]() for name in names if name in every]
