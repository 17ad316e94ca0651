"""Storage engines, and the one way to open them."""

from __future__ import annotations

from urllib.parse import urlsplit

from relevo.clock import Clock
from relevo.errors import SettingsError
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
