"""Everything that a worker of the fleet needs, imported once by the process it is forked from."""

from __future__ import annotations

import aiosqlite
import asyncpg
import redis.asyncio
from sqlalchemy.ext.asyncio import create_async_engine

from relevo import engine, relay, telemetry, testing
from relevo.stores import open_store
from tests.faults import apps, every_call, fleet, starts

__all__ = [
    "aiosqlite", "apps", "asyncpg", "engine", "every_call", "fleet", "redis", "relay",
    "starts", "telemetry", "testing",
]  # fmt: skip

create_async_engine("sqlite+aiosqlite://")
for url in ("sqlite:///none.db", "postgresql://127.0.0.1/none", "redis://127.0.0.1"):
    open_store(url)
