"""Wire, the connections to one server, to whom the sentinels name, or to a cluster's nodes.

Which server to ask, when to give up and what an error means is decided here, so that nothing is
sent twice behind our back. Whoever calls sets the time limit.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from binascii import crc_hqx
from collections.abc import AsyncGenerator, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from msgspec import Struct

from relevo.errors import SettingsError, StoreDamaged, StoreError, StoreUnavailable
from relevo.stores.redis.address import Address, Host
from relevo.stores.redis.line import CONNECT, Arg, Denied, Line, Login, Told, connect, pack

CONNECTIONS = 16  # per server
REDIRECTS = 12
LONGEST_PAUSE = 2.0
SLOTS = 16_384
# What some scripts share beside moves.lua, which stands in front of all. Every function is made
# anew each time a script runs: what few scripts need is kept apart.
SHARED = {
    "insert": ("latest", "plain", "members"),
    "join": ("members",),
    "claim": ("latest",),
    "settle": ("unbegun",),
    "rescue": ("unbegun",),
    "arrive": ("plain", "kept", "letters"),
    "receive": ("kept", "letters"),
    "resolve": ("kept", "letters"),
    "delivered": ("kept",),
    "deliveries": ("kept",),
    "delivery": ("kept",),
    "tidy_deliveries": ("kept",),
    "erase_deliveries": ("kept",),
    "read": ("shown",),
    "tally": ("shown",),
    "walk": ("shown",),
    "retry": ("latest", "acts"),
    "cancel": ("acts",),
    "edit": ("acts",),
    "mode": ("acts",),
    "audit": ("acts",),
    "intend": ("ledger",),
    "effects": ("ledger",),
    "conclude": ("ledger", "acts"),
    "erase": ("ledger", "removal", "kept", "acts"),
    "prune": ("ledger", "removal", "shelves", "kept"),
    "forget": ("shelves",),
    "tidy_notes": ("shelves",),
    "tidy_workers": ("shelves",),
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
    sources = {
        name: b"".join(found[part] for part in ("moves", *SHARED.get(name, ()), name))
        for name in found
    }
    return {name: scripted(source) for name, source in sources.items()}


def scripted(source: bytes) -> Script:
    """A script of this text."""
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


def explain(error: BaseException, where: str) -> StoreError:
    """Our word for what the server told us, or for its silence."""
    text = str(error) or type(error).__name__
    if "NOPERM" in text or "permission" in text.lower():
        return Refused(
            f"the Redis at {where} does not let this user do it ({text:.200}); "
            "the package's docstring lists what its ACL must allow"
        )
    if isinstance(error, Denied):
        return StoreUnavailable(f"the Redis at {where} refuses the user or password: {text:.200}")
    if isinstance(error, Told) and not any(word in text for word in PASSING):
        if "WRONGTYPE" in text:
            return StoreDamaged(f"a key of ours at {where} holds another program's data: {text}")
        if error.word not in ("MOVED", "ASK"):
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

    def __init__(self, host: Host, login: Login) -> None:
        self.host = host
        self.where = f"{host[0]}:{host[1]}"
        self._login = login
        self._idle: list[Line] = []
        self._trust = 0
        self._slots = asyncio.Semaphore(CONNECTIONS)
        self._failures = 0
        self._not_before = 0.0
        self.asked = 0  # commands sent so far

    async def ask(self, *commands: bytes) -> list[Any]:
        """The answers to commands sent together; an error answer is a value here."""
        async with self._slots:
            line, trust = await self._take(), self._trust
            self.asked += len(commands)
            try:
                answers = await line.ask(*commands)
            except OSError as error:
                line.close()
                self.distrust()
                raise explain(error, self.where) from error
            except BaseException:
                # Cancelled while the answer was on its way: this line is of no use any more.
                line.close()
                raise
            if trust == self._trust:
                self._idle.append(line)
            else:
                line.close()
        for answer in answers:
            if isinstance(answer, Denied):
                raise explain(answer, self.where) from answer
        return answers

    async def line(self) -> Line:
        """A fresh connection for the caller's own use."""
        loop = asyncio.get_running_loop()
        if (pause := self._not_before - loop.time()) > 0:
            raise Unsent(f"the Redis at {self.where} is away; next try in {pause:.1f} s")
        try:
            made = await connect(self.host, self._login)
        except (Told, OSError) as error:
            self.distrust()
            longest = min(LONGEST_PAUSE, 0.05 * 2 ** min(self._failures, 10))
            self._not_before = loop.time() + longest * random.uniform(0.5, 1)
            self._failures += 1
            raise Unsent(str(explain(error, self.where))) from error
        self._failures = 0
        return made

    def distrust(self) -> None:
        """Use no connection of before again: one that hangs is not noticed until it is used."""
        self._trust += 1
        while self._idle:
            self._idle.pop().close()

    async def _take(self) -> Line:
        while self._idle:
            line = self._idle.pop()
            # A server that restarted has closed its end; better to see it before we send.
            if line.is_quiet:
                return line
            line.close()
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
        tls = _trusting(address.ca) if address.tls else None
        self._login = Login(address.username, address.password, address.database, tls)

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
        if isinstance(answer, Told) and answer.word == "NOSCRIPT":
            # A restarted or promoted server has never seen it; EVAL shows it and runs it.
            (answer,) = await self._send(slot, pack(b"EVAL", work.source, *tail), wait=wait)
        return self._value(answer)

    async def command(self, key: bytes, *args: Arg) -> Any:
        """One plain command on a key."""
        slot = key_slot(key) if self.is_cluster else 0
        (answer,) = await self._send(slot, pack(*args))
        return self._value(answer)

    async def scan(self, pattern: bytes, kind: bytes) -> AsyncGenerator[bytes]:
        """The keys of a pattern and a type, of every master; one may come twice."""
        for node in await self._masters():
            cursor = b"0"
            while True:
                packed = pack(b"SCAN", cursor, b"MATCH", pattern, b"TYPE", kind, b"COUNT", 1_000)
                (answer,) = await node.ask(packed)
                cursor, keys = self._value(answer)
                for key in keys:
                    yield key
                if cursor == b"0":
                    break

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
            node.distrust()
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
                answers = await node.ask(*ahead, command, *behind)
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
            match answer.word if isinstance(answer, Told) else "":
                case "MOVED":
                    self._owners[slot] = self._node(_named(answer, node))
                    self._stale = True
                case "ASK":
                    target = self._node(_named(answer, node))
                    ahead = (pack(b"ASKING"),)
                case "TRYAGAIN" | "CLUSTERDOWN":
                    self._stale = True
                    await asyncio.sleep(0.05 * (turn + 1))
                case "":
                    if behind:
                        _check_replicas(answers[-1], wait, node.where)
                    return [answer]
                case _:
                    if "READONLY" in str(answer)[:200]:
                        # It is a replica now: whoever has the name or the slots is found anew.
                        self._stale = True
                        node.distrust()
                    return [answer]
        raise StoreUnavailable("the cluster is moving its slots, or is down; try again in a moment")

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
            raise StoreUnavailable("the store is closed")
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
        address = self.address
        login = Login(address.sentinel_username, address.sentinel_password, tls=self._login.tls)
        question = pack(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", self.address.service)
        trouble = "none of them answers"
        for host in random.sample(self.address.hosts, len(self.address.hosts)):
            sentinel = Node(host, login)
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
                sentinel.distrust()
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
            self._nodes[host] = Node(host, self._login)
        return self._nodes[host]


def key_slot(key: bytes) -> int:
    """The slot of a cluster on which a key lives: by the word in its first braces, if it has."""
    _, found, rest = key.partition(b"{")
    word, closed, _ = rest.partition(b"}")
    return crc_hqx(word if found and closed and word else key, 0) % SLOTS


def _trusting(ca: str | None) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise SettingsError(f"ca={ca} of the Redis address cannot be used: {error}") from error
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    return made


def _named(answer: Told, asked: Node) -> Host:
    """Where "MOVED slot host:port" points to."""
    host, _, port = str(answer).split(" ")[2].rpartition(":")
    return host or asked.host[0], int(port)


def _check_replicas(answer: Any, wait: int, where: str) -> None:
    if isinstance(answer, Exception):
        raise explain(answer, where) from answer
    if answer < wait:
        # It is stored on the master all the same; the caller may hand it in again, by its id.
        raise StoreUnavailable(f"only {answer} of {wait} replicas of {where} have the insert")
