"""People register, publish and record; some press the button twice."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

import httpx2

from relevo.simulators.world import World

API = "/razworks/api"
NAMES = ("Ana Paz", "Luis Gil", "Marta Ríos", "Iker Sanz", "Noa Vidal", "Raúl Mena")


@dataclass(slots=True)
class Sent:
    """What was sent, and what must come of it."""

    delivered: int = 0
    duplicates: int = 0
    forged: int = 0
    emails: list[str] = field(default_factory=list[str])
    recordings: list[str] = field(default_factory=list[str])
    users: list[str] = field(default_factory=list[str])


async def run(world: World, base_url: str, count: int, seed: int) -> Sent:
    """So many people register; every third publishes, every fourth has a recording understood."""
    chance = random.Random(f"razworks/{seed}")
    sent = Sent()
    async with httpx2.AsyncClient(base_url=base_url, timeout=30, trust_env=False) as client:

        async def post(path: str, wish: dict[str, Any]) -> httpx2.Response:
            sent.delivered += 1
            for wait in (0.2, 0.5, 1, 2, 4):
                answer = await client.post(API + path, json=wish)
                if answer.status_code != 503:
                    return answer
                await asyncio.sleep(wait)
            return await client.post(API + path, json=wish)

        async def one(number: int, name: str, is_twice: bool) -> None:
            email = f"person.{seed}.{number}@razworks.example"
            wish = {"email": email, "name": name, "password": f"a long one, number {number}"}
            answer = await post("/users", wish)
            answer.raise_for_status()
            user_id = answer.json()["id"]
            sent.emails.append(email)
            sent.users.append(user_id)
            if is_twice and (await post("/users", wish)).status_code == 409:
                sent.duplicates += 1
            if number % 3 == 0:
                publication = {"user_id": user_id, "title": f"Boat {number}", "text": "It floats."}
                (await post("/projects", publication)).raise_for_status()
            if number % 4 == 0:
                url = f"https://storage.razworks.example/{seed}/{number}.ogg"
                upload = {"user_id": user_id, "storage_url": url, "media_type": "audio/ogg"}
                answer = await post("/recordings", upload)
                answer.raise_for_status()
                sent.recordings.append(answer.json()["id"])

        wishes = [(n, chance.choice(NAMES), chance.random() < 0.2) for n in range(count)]
        for start in range(0, count, 10):
            await asyncio.gather(*(one(*wish) for wish in wishes[start : start + 10]))
    return sent
