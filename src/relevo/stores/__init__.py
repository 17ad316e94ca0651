"""Storage engines, and the one way to open them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from relevo.clock import Clock
from relevo.errors import DefinitionError, SettingsError
from relevo.store import Store


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store at `url`, not yet open. Each engine is imported only when it is named."""
    match urlsplit(url).scheme:
        case "sqlite":
            from relevo.stores.sqlite.store import SqliteStore

            return SqliteStore(url, clock=clock)
        case "postgresql" | "postgres":
            from relevo.stores.postgres.store import PostgresStore

            return PostgresStore(url, clock=clock)
        case "redis" | "rediss" | "redis+sentinel" | "redis+cluster" | "rediss+cluster":
            from relevo.stores.redis.store import RedisStore

            return RedisStore(url, clock=clock)
        case scheme:
            raise SettingsError(
                f"no store speaks '{scheme}': use sqlite:///path, postgresql://…, redis://…, "
                "rediss://…, redis+sentinel://… or redis+cluster://…"
            )


async def restore_store(
    url: str, copy: Path, *, force: bool, finish: Callable[[Store], Awaitable[None]]
) -> list[Path]:
    """Put a copy in the place of the store at `url`; names what was there, under its new names.

    The copy is verified, brought up to date and given to `finish`, open, before any other process
    can see it. DefinitionError, saying what to do, where a server restores its copies itself.
    """
    if not await asyncio.to_thread(copy.exists):
        raise DefinitionError(f"there is nothing at {copy}")

    async def make_ready(store: Store) -> None:
        await store.migrate()
        try:
            await store.open()
            await finish(store)
        finally:
            await store.close()

    store = open_store(url)
    match store.name:
        case "sqlite":
            from relevo.stores.sqlite import file, restoring

            target = file.parse(store.dsn).path
            draft = await asyncio.to_thread(restoring.prepare, copy, target, force=force)
            try:
                await make_ready(open_store(file.Address(draft, "full").url))
                return await asyncio.to_thread(restoring.put, draft, target)
            finally:
                await asyncio.to_thread(restoring.drop, draft)
        case "postgres":
            from relevo.stores.postgres import restoring

            await restoring.restore(copy, url)
            await make_ready(store)
            return []
        case _:
            raise DefinitionError(
                f"Redis loads its files itself, and only when it starts: stop it and every process "
                f"of relevo; put {copy} in the place of its appenddirname folder, or with "
                "appendonly no of its dbfilename; check it with redis-check-aof or "
                "redis-check-rdb; start Redis; then `relevo database mark-restored`"
            )
