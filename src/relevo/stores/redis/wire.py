"""Wire, the connections to one server, to whom the sentinels name, or to a cluster's nodes.

redis-py speaks the protocol; which server to ask, when to give up and what an error means is
decided here, so that nothing is sent twice behind our back. Whoever calls sets the time limit.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Mapping, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any, Protocol, TypeAlias, cast

import hiredis
from msgspec import Struct
from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from relevo.errors import MisuseError, SettingsError, StoreDamaged, StoreError, StoreUnavailable
from relevo.stores.redis.address import Address, Host

Arg: TypeAlias = bytes | str | int
CONNECT = 1.5  # seconds; a server that takes longer is away
CONNECTIONS = 16  # per server
REDIRECTS = 12
LONGEST_PAUSE = 2.0
# A server that vanished without a word is noticed in 5 + 3 × 3 seconds, at no command's cost.
KEEP_ALIVE = {
    getattr(socket, name): value
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
}
# Words of errors that pass. Inside a script they come wrapped, so the text is searched.
PASSING = (
    "OOM",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "UNBLOCKED",
    "max number of clients",
    "non local key",
)


class Line(Protocol):
    """What we use of a redis-py connection."""

    async def connect(self) -> None: ...
    async def disconnect(self, nowait: bool = False) -> None: ...
    async def can_read(self) -> bool: ...
    async def send_packed_command(self, command: bytes, check_health: bool = True) -> None: ...
    async def read_response(self, *, timeout: float | None = None) -> Any: ...


class Script(Struct, frozen=True):
    """A Lua file, and the name the server knows it by once it has seen it."""

    source: bytes
    sha: bytes


def script(name: str) -> Script:
    """`scripts/name.lua`, with the words that all of them share in front of it."""
    return _scripts()[name]


@cache
def _scripts() -> dict[str, Script]:
    # All at once: a process that has run out of file handles must still extend its leases.
    found = {
        file.name.removesuffix(".lua"): file.read_bytes()
        for file in (files("relevo.stores.redis") / "scripts").iterdir()
        if file.name.endswith(".lua")
    }
    sources = {name: found["moves"] + source for name, source in found.items()}
    return {
        name: Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())
        for name, source in sources.items()
    }


def pack(*args: Arg) -> bytes:
    """A command as it travels."""
    packer = cast(Any, hiredis).pack_command
    try:
        return packer(args)
    except UnicodeEncodeError:
        return packer(
            tuple(
                arg.encode("utf-8", "surrogatepass") if isinstance(arg, str) else arg
                for arg in args
            )
        )


def explain(error: BaseException, where: str) -> StoreError:
    """Our word for a driver's error."""
    code: str | None = getattr(error, "status_code", None)  # redis-py takes it off the text
    text = " ".join(filter(None, (code, str(error) or type(error).__name__)))
    if isinstance(error, NoPermissionError) or "NOPERM" in text or "permission" in text.lower():
        return Refused(
            f"the Redis at {where} does not let this user do it ({text:.200}); "
            "the package's docstring lists what its ACL must allow"
        )
    if isinstance(error, AuthenticationError):
        return StoreUnavailable(f"the Redis at {where} refuses the user or password: {text:.200}")
    if isinstance(error, ResponseError) and not any(word in text for word in PASSING):
        if "WRONGTYPE" in text:
            return StoreDamaged(f"a key of ours at {where} holds another program's data: {text}")
        if not isinstance(error, (ReadOnlyError, ClusterDownError, TryAgainError, AskError)):
            return StoreError(f"the Redis at {where} refused a command: {text:.500}")
    if any(word in text for word in ("OOM", "MISCONF", "NOREPLICAS", "BUSY")):
        return Refused(f"the Redis at {where} cannot take it now: {text:.200}")
    return StoreUnavailable(f"the Redis at {where} does not answer: {text:.200}")


class Refused(StoreUnavailable):
    """The server is there and says why it cannot do it now: it is full, busy, or must not."""


class Unsent(StoreUnavailable):
    """No connection could be made: the command did not leave, and may go elsewhere."""


class Node:
    """One server: a few connections, lent one call at a time."""

    def __init__(self, host: Host, options: Mapping[str, Any], *, tls: bool) -> None:
        self.host = host
        self.where = f"{host[0]}:{host[1]}"
        self._make = SSLConnection if tls else Connection
        self._options = options
        self._idle: list[Line] = []
        self._doubtful: list[Line] = []
        self._trust = 0
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._failures = 0
        self._not_before = 0.0
        self.asked = 0  # commands sent so far

    async def ask(self, *commands: bytes) -> list[Any]:
        """The answers to commands sent together; an error answer is a value here."""
        async with self._slots:
            line, trust = await self._take(), self._trust
            answers: list[Any] = []
            self.asked += len(commands)
            try:
                await line.send_packed_command(b"".join(commands), check_health=False)
                for _ in commands:
                    try:
                        answers.append(await line.read_response())
                    except ResponseError as error:
                        answers.append(error)
            except (RedisError, OSError) as error:
                await self.drop()
                raise explain(error, self.where) from error
            except BaseException:
                # Cancelled while the answer was on its way: this line is of no use any more.
                await line.disconnect(nowait=True)
                raise
            (self._idle if trust == self._trust else self._doubtful).append(line)
            return answers

    async def line(self) -> Line:
        """A fresh connection for the caller's own use."""
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            raise Unsent(f"the Redis at {self.where} is away; next try in {pause:.1f} s")
        made = cast(Line, self._make(host=self.host[0], port=self.host[1], **self._options))
        try:
            await made.connect()
        except (RedisError, OSError) as error:
            await made.disconnect(nowait=True)
            await self.drop()
            longest = min(LONGEST_PAUSE, 0.05 * 2 ** min(self._failures, 10))
            self._not_before = loop.time() + longest * random.uniform(0.5, 1)
            self._failures += 1
            raise Unsent(str(explain(error, self.where))) from error
        except BaseException:
            await made.disconnect(nowait=True)
            raise
        self._failures = 0
        return made

    def distrust(self) -> None:
        """Use no connection of before again: one that hangs is not noticed until it is used."""
        self._trust += 1
        self._doubtful += self._idle
        self._idle = []

    async def drop(self) -> None:
        """Close what is idle: after an error none of it is trusted."""
        self.distrust()
        while self._doubtful:
            await self._doubtful.pop().disconnect(nowait=True)

    async def _take(self) -> Line:
        while self._doubtful:
            await self._doubtful.pop().disconnect(nowait=True)
        while self._idle:
            line = self._idle.pop()
            # A server that restarted has closed its end; better to see it before we send.
            if not await line.can_read():
                return line
            await line.disconnect(nowait=True)
        return await self.line()


class Wire:
    """Calls scripts and commands where their keys live."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.is_cluster = address.kind == "cluster"
        self._nodes: dict[Host, Node] = {}
        self._owners: dict[int, Node] = {}  # slot → node; cluster only
        self._master: Node | None = None  # alone and sentinel
        self._stale = True
        self._is_closed = False
        self._refreshing = asyncio.Lock()
        self._options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "db": address.database,
            **self._common(),
        }

    async def call(
        self, work: Script, keys: Sequence[bytes], args: Sequence[Arg], *, wait: int = 0
    ) -> Any:
        """Run a script where its first key lives, and let `wait` replicas have it."""
        if self.is_cluster:
            # A key that is never there. While a slot moves, Redis then says "try again" instead of
            # running a script that finds half of its keys gone.
            keys = [*keys, *(key + b":never" for key in keys)]
        tail = (len(keys), *keys, *args)
        slot = key_slot(keys[0]) if self.is_cluster else 0
        (answer,) = await self._send(slot, pack(b"EVALSHA", work.sha, *tail), wait=wait)
        if isinstance(answer, NoScriptError):
            # A restarted or promoted server has never seen it; EVAL shows it and runs it.
            (answer,) = await self._send(slot, pack(b"EVAL", work.source, *tail), wait=wait)
        return self._value(answer)

    async def command(self, key: bytes, *args: Arg) -> Any:
        """One plain command on a key."""
        slot = key_slot(key) if self.is_cluster else 0
        (answer,) = await self._send(slot, pack(*args))
        return self._value(answer)

    async def everywhere(self, *args: Arg) -> list[tuple[str, Any]]:
        """One command to every master: where, and the answer or error."""
        packed = pack(*args)
        nodes = await self._masters()
        answers = await asyncio.gather(*(node.ask(packed) for node in nodes))
        return [(node.where, answer) for node, (answer,) in zip(nodes, answers, strict=True)]

    async def line(self) -> Line:
        """A connection of one's own to any master: published messages reach them all."""
        nodes = await self._masters()
        random.shuffle(nodes)
        return await nodes[0].line()

    @property
    def asked(self) -> int:
        """Commands sent so far, to every node there is."""
        return sum(node.asked for node in self._nodes.values())

    def distrust(self) -> None:
        """Trust no connection, and look again who is the master or has which slots."""
        self._stale = True
        for node in self._nodes.values():
            node.distrust()

    def open(self) -> None:
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        for node in self._nodes.values():
            await node.drop()
        self._nodes.clear()
        self._owners.clear()
        self._master = None
        self._stale = True

    async def _send(self, slot: int, command: bytes, *, wait: int = 0) -> list[Any]:
        ahead: tuple[bytes, ...] = ()
        behind = (pack(b"WAIT", wait, 2_000),) if wait else ()
        target: Node | None = None
        for turn in range(REDIRECTS):
            node = target or await self._route(slot)
            try:
                _, *answers = [None, *await node.ask(*ahead, command, *behind)]
            except Unsent:
                self._stale = True
                if turn or not self.is_cluster:
                    raise
                continue  # perhaps its replica has taken over meanwhile
            except StoreError:
                self._stale = True
                raise
            answer = answers[len(ahead)]
            target, ahead = None, ()
            if isinstance(answer, MovedError):
                self._owners[slot] = self._node(_named(answer, node))
                self._stale = True
            elif isinstance(answer, AskError):
                target = self._node(_named(answer, node))
                ahead = (pack(b"ASKING"),)
            elif isinstance(answer, (TryAgainError, ClusterDownError)):
                self._stale = True
                await asyncio.sleep(0.05 * (turn + 1))
            else:
                if isinstance(answer, ReadOnlyError) or "READONLY" in str(answer)[:200]:
                    await self._demoted(node)
                if behind and not isinstance(answer, Exception):
                    _check_replicas(answers[-1], wait, node.where)
                return [answer]
        raise StoreUnavailable("the cluster is moving its slots, or is down; try again in a moment")

    async def _demoted(self, node: Node) -> None:
        # It is a replica now: whoever has the name or the slots today is found anew.
        self._stale = True
        await node.drop()

    def _value(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise explain(answer, self.address.shown) from answer
        return answer

    async def _route(self, slot: int) -> Node:
        if self._stale:
            await self._refresh()
        if self._master is not None:
            return self._master
        if slot in self._owners:
            return self._owners[slot]
        self._stale = True
        raise StoreUnavailable(f"no node of the cluster serves slot {slot} at the moment")

    async def _masters(self) -> list[Node]:
        if self._stale:
            await self._refresh()
        if self._master is not None:
            return [self._master]
        return list(dict.fromkeys(self._owners.values()))

    async def _refresh(self) -> None:
        if self._is_closed:
            raise MisuseError("the store is closed")
        async with self._refreshing:
            if not self._stale:
                return
            match self.address.kind:
                case "alone":
                    self._master = self._node(self.address.hosts[0])
                case "sentinel":
                    self._master = await self._ask_sentinels()
                case "cluster":
                    await self._ask_nodes()
            self._stale = False

    async def _ask_sentinels(self) -> Node:
        options = {
            "username": self.address.sentinel_username,
            "password": self.address.sentinel_password,
            **self._common(),
        }
        question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.address.service)
        trouble = "none of them answers"
        for host in random.sample(self.address.hosts, len(self.address.hosts)):
            sentinel = Node(host, options, tls=self.address.tls)
            try:
                async with asyncio.timeout(CONNECT):
                    (answer,) = await sentinel.ask(question)
                    if answer is None:
                        raise SettingsError(f"no sentinel knows '{self.address.service}'")
                    if isinstance(answer, Exception):
                        raise explain(answer, sentinel.where)
                    master = self._node((answer[0].decode(), int(answer[1])))
                    (role,) = await master.ask(pack(b"ROLE"))
            except (StoreError, TimeoutError) as error:
                trouble = str(error) or "it takes too long"
                continue
            finally:
                await sentinel.drop()
            # Sentinels name the old master for a while; it does not know yet, or is a replica.
            if isinstance(role, Exception) or role[0] == b"master":
                return master
            trouble = f"{master.where} is no master yet"
        raise StoreUnavailable(f"the sentinels give no master: {trouble}")

    async def _ask_nodes(self) -> None:
        known = list(dict.fromkeys([*self._owners.values(), *map(self._node, self.address.hosts)]))
        random.shuffle(known)
        trouble: StoreError | None = None
        for node in known:
            try:
                async with asyncio.timeout(CONNECT):
                    (answer,) = await node.ask(pack(b"CLUSTER", b"SLOTS"))
            except TimeoutError:
                continue
            except StoreError as error:
                trouble = error
                continue
            if isinstance(answer, Exception):
                trouble = explain(answer, node.where)
                if "cluster support disabled" in str(answer):
                    raise SettingsError(
                        f"{node.where} is no cluster node: use redis://"
                    ) from answer
                continue
            self._owners = {
                slot: self._node(((host or b"").decode() or node.host[0], port))
                for first, last, (host, port, *_), *_ in answer
                for slot in range(first, last + 1)
            }
            return
        raise StoreUnavailable("no node of the cluster answers") from trouble

    def _node(self, host: Host) -> Node:
        if host not in self._nodes:
            self._nodes[host] = Node(host, self._options, tls=self.address.tls)
        return self._nodes[host]

    def _common(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "protocol": 2,
            "driver_info": None,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": CONNECT,
            "socket_keepalive_options": KEEP_ALIVE,
            "socket_read_size": 262_144,
        }
        if self.address.tls:
            options |= {
                "ssl_ca_certs": self.address.ca,
                "ssl_min_version": ssl.TLSVersion.TLSv1_2,
            }
        return options


def _named(answer: AskError, asked: Node) -> Host:
    host, port = cast(Host, answer.node_addr)
    return host or asked.host[0], port


def _check_replicas(answer: Any, wait: int, where: str) -> None:
    if isinstance(answer, Exception):
        raise explain(answer, where) from answer
    if answer < wait:
        # It is stored on the master all the same; the caller may hand it in again, by its id.
        raise StoreUnavailable(f"only {answer} of {wait} replicas of {where} have the insert")
