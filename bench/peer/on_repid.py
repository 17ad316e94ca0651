"""repid on Redis streams: acknowledged once the actor has returned."""

from __future__ import annotations

import json

import uvloop
from repid import RedisServer, Repid, Router
from stage import JOBS, TEXT, URL, Count, by_callers

app = Repid(title="bench", version="1")
app.servers.register_server("default", RedisServer(URL), is_default=True)
router = Router()
count = Count()


@router.actor(channel="default")
async def work(number: int, text: str) -> None:
    count.one()


app.include_router(router)


async def call(number: int) -> None:
    payload = json.dumps({"number": number, "text": TEXT}).encode()
    await app.send_message(channel="default", payload=payload, headers={"topic": "work"})


async def main() -> None:
    async with app.servers.default.connection():
        count.figures["enqueue"] = await by_callers(call)
        await app.run_worker(messages_limit=JOBS, tasks_limit=1000)


uvloop.run(main())
