"""A fresh and private store of each kind for every sample, as durable as in production."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import redis

from bench.measure import apart
from bench.work import prepare

_STATEMENT = re.compile(r"duration: [\d.]+ ms  (?:execute [^:]+|statement): \s*(\w+)")


class Place(ABC):
    """Where a store is measured."""

    name: str
    raw: ModuleType

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The address of an empty store with its tables."""
        with self.empty() as url:
            apart(prepare, url)
            yield url

    @abstractmethod
    def empty(self) -> Any:
        """The same without tables, as a context manager."""

    def bare(self) -> Any:
        """The address of an empty server, for who brings tables of its own."""
        return self.empty()

    @abstractmethod
    def versions(self) -> dict[str, str]: ...

    @contextmanager
    def counting(self) -> Iterator[Callable[[], Counter[str]]]:
        """What the server is asked to do meanwhile, by command; nothing where there is none."""
        yield Counter

    @abstractmethod
    def close(self) -> None: ...


class Sqlite(Place):
    """A file on the disk where temporary files go; that should not be one in memory."""

    name = "sqlite"

    def __init__(self) -> None:
        import bench.raw.sqlite

        self.raw = bench.raw.sqlite
        self._folder = Path(tempfile.mkdtemp(prefix="relevo-bench-"))
        self._numbers = count()

    @contextmanager
    def empty(self) -> Iterator[str]:
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            yield f"sqlite:///{folder / 'relevo.db'}"
        finally:
            shutil.rmtree(folder)

    def versions(self) -> dict[str, str]:
        return {"SQLite": sqlite3.sqlite_version}

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class Postgres(Place):
    """A server of our own with fsync on; a schema for every sample."""

    name = "postgres"

    def __init__(self) -> None:
        from tests.servers.postgres import PostgresServer

        import bench.raw.postgres

        self.raw = bench.raw.postgres
        conf = {"shared_buffers": "1GB", "max_wal_size": "4GB"}
        self._server = PostgresServer(conf=conf).start()
        self._numbers = count()

    @contextmanager
    def empty(self) -> Iterator[str]:
        schema = f"bench_{next(self._numbers)}"
        try:
            yield f"{self._server.url}?schema={schema}"
        finally:
            self._server.sql(f"drop schema if exists {schema} cascade")
            self._server.sql("drop schema if exists raw cascade")
            self._server.sql("checkpoint")  # its cost belongs to this sample, not to the next

    @contextmanager
    def bare(self) -> Iterator[str]:
        name = f"peer_{next(self._numbers)}"
        self._server.sql(f"create database {name} owner relevo", database="postgres")
        try:
            yield self._server.url.removesuffix("relevo") + name
        finally:
            self._server.sql(f"drop database {name} with (force)", database="postgres")

    def versions(self) -> dict[str, str]:
        import asyncpg

        return {
            "PostgreSQL": self._server.sql("show server_version"),
            "asyncpg": asyncpg.__version__,
        }

    @contextmanager
    def counting(self) -> Iterator[Callable[[], Counter[str]]]:
        log = self._server.data.parent / "log"
        # For connections made from now on; nothing else of the server changes.
        self._server.sql("alter role relevo set log_min_duration_statement = 0")
        begin = log.stat().st_size
        try:
            yield lambda: Counter(_STATEMENT.findall(log.read_text()[begin:]))
        finally:
            self._server.sql("alter role relevo reset log_min_duration_statement")

    def close(self) -> None:
        self._server.remove()


class Redis(Place):
    """A server for every sample, with its log synced every second."""

    name = "redis"

    def __init__(self) -> None:
        from tests.servers.redis import RedisServer

        import bench.raw.redis

        self.raw = bench.raw.redis
        # As deploy/ has it: room for the log, as PostgreSQL has it above.
        self._start = lambda: RedisServer("appendfsync everysec", "auto-aof-rewrite-min-size 2gb")
        self._server: Any = None

    @contextmanager
    def empty(self) -> Iterator[str]:
        with self._start() as self._server:
            yield self._server.url

    def versions(self) -> dict[str, str]:
        with self._start() as server:
            version = str(server.info("server")["redis_version"])
        return {"Redis": version, "redis-py": redis.__version__}

    @contextmanager
    def counting(self) -> Iterator[Callable[[], Counter[str]]]:
        seen: list[str] = []
        client = redis.Redis.from_url(self._server.url, protocol=2, socket_timeout=None)
        with client.monitor() as monitor:
            listener = threading.Thread(target=_listen, args=(monitor, seen), daemon=True)
            listener.start()
            yield lambda: Counter(seen)
            assert listener.is_alive(), "the ear at the server fell off: nothing was counted"

    def close(self) -> None:
        """Each sample's server has gone with it."""


def _listen(monitor: Any, seen: list[str]) -> None:
    with contextlib.suppress(redis.ConnectionError, ValueError, OSError):  # the end of the block
        for said in monitor.listen():
            if said["client_type"] != "lua":
                seen.append(said["command"].split()[0].lower())


PLACES: dict[str, type[Place]] = {"sqlite": Sqlite, "postgres": Postgres, "redis": Redis}


def on_disk() -> bool:
    """Whether temporary files go to a disk, so that a commit means what it says."""
    kinds = (
        {
            place.split()[1]: place.split()[2]
            for place in Path("/proc/mounts").read_text().splitlines()
        }
        if Path("/proc/mounts").exists()
        else {}
    )
    where = Path(tempfile.gettempdir()).resolve()
    mount = next((str(p) for p in (where, *where.parents) if str(p) in kinds), "")
    return kinds.get(mount) not in ("tmpfs", "ramfs") and os.access(where, os.W_OK)
