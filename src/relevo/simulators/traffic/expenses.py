"""People write what they spent: in text, with receipts, unclearly; Meta repeats some of it, and
somebody forges a few."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import httpx2

from relevo.simulators import whatsapp
from relevo.simulators.world import World

PATH = "/api/webhook"
PATIENCE = 60.0

_SPENT = (
    ("gasté {} en supermercado", "5491100000{:03}"),
    ("uber {} ayer", "5491100000{:03}"),
    ("$ {} farmacia", "5491100000{:03}"),
    ("nafta {} pesos", "5491100000{:03}"),
    ("cena {} euros", "3460000{:03}"),
)
_ASKED = ("gasté -5", "pan 12,5,5", "hola", "pan 500 cada uno", "dos cafés", "total del mes")


@dataclass(slots=True)
class Sent:
    """What was sent, and what must come of it."""

    delivered: int = 0
    duplicates: int = 0
    forged: int = 0
    replies: list[str] = field(default_factory=list[str])  # messages; each is answered once
    cents: dict[str, int] = field(default_factory=dict[str, int])  # message → what was spent


async def run(world: World, base_url: str, count: int, seed: int = 0) -> Sent:
    """Send `count` messages; one in five twice, one in ten forged besides, one in ten a receipt."""
    dice = random.Random(seed)
    sent = Sent()
    plans: list[tuple[bytes, bool, bool]] = []
    for number in range(count):
        id = f"wamid.relevo{seed}n{number}"
        body = whatsapp.envelope(_message(world, dice, id, number, sent))
        plans.append((body, dice.random() < 0.2, dice.random() < 0.1))
    gate = asyncio.Semaphore(8)
    async with httpx2.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:

        async def play(body: bytes, is_twice: bool, is_forged: bool) -> None:
            async with gate:
                if is_forged:
                    wrong = whatsapp.sign(
                        body.replace(b"wamid.", b"wamid.forged"), "not the secret"
                    )
                    refused = await client.post(PATH, content=body, headers=wrong)
                    sent.forged += refused.status_code == 401
                for _ in range(2 if is_twice else 1):
                    await _deliver(client, body)
                    sent.delivered += 1
                sent.duplicates += is_twice

        await asyncio.gather(*(play(*plan) for plan in plans))
    return sent


def _message(world: World, dice: random.Random, id: str, number: int, sent: Sent) -> dict[str, Any]:
    kind = dice.random()
    who = dice.randrange(20)
    sent.replies.append(id)
    if kind < 0.1:
        content = whatsapp.attach(world, whatsapp.PNG)
        sent.cents[id] = 4_250  # what the pretended model reads from any picture
        return whatsapp.message(world, content, sender=f"5491100000{who:03}", id=id)
    if kind < 0.25:
        text = dice.choice(_ASKED)
        return whatsapp.message(world, whatsapp.text(text), sender=f"5491100000{who:03}", id=id)
    words, number_of = dice.choice(_SPENT)
    cents = dice.randrange(100, 5_000_000)
    amount = f"{cents // 100:,}".replace(",", ".") + f",{cents % 100:02}"
    sent.cents[id] = cents
    content = whatsapp.text(words.format(amount))
    if dice.random() < 0.1:  # somebody with a user name and no number
        user = f"AR.{10**15 + who}"
        return whatsapp.message(world, content, sender="", user_id=user, id=id)
    return whatsapp.message(world, content, sender=number_of.format(who), id=id)


async def _deliver(client: httpx2.AsyncClient, body: bytes) -> None:
    """As Meta does: again until it is a 200."""
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    while True:
        try:
            answer = await client.post(PATH, content=body, headers=whatsapp.sign(body))
            if answer.status_code == 200:
                return
            said = str(answer.status_code)
        except httpx2.HTTPError as error:
            said = type(error).__name__
        if loop.time() > until:
            raise AssertionError(f"POST {PATH}: {said}, for {PATIENCE:g} s")
        await asyncio.sleep(0.2)
