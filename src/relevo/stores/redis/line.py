"""Line, one connection to a server: bytes go out, answers come in, in the same order.

hiredis reads the protocol. There is no client behind it: one that knows every command there is
takes as much memory as the rest of a worker.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections import deque
from collections.abc import Callable
from ssl import SSLContext
from typing import Any, TypeAlias, cast

import hiredis
from msgspec import Struct

from relevo.stores.alive import keep_alive
from relevo.stores.redis.address import Host

Arg: TypeAlias = bytes | str | int
CONNECT = 1.5  # seconds; a server that takes longer is away
DENIED = ("WRONGPASS", "NOAUTH", "ERR AUTH", "ERR Client sent AUTH", "ERR invalid password")

_packer = cast(Any, hiredis).pack_command


class Told(Exception):
    """An error that the server answered. Its first word says which."""

    @property
    def word(self) -> str:
        return str(self).partition(" ")[0]


class Denied(Told):
    """It does not know the user, or not by this password."""


class Login(Struct, frozen=True):
    """How to get in."""

    username: str | None
    password: str | None
    database: int = 0
    tls: SSLContext | None = None


def pack(*args: Arg) -> bytes:
    """A command as it travels."""
    try:
        return _packer(args)
    except UnicodeEncodeError:
        return _packer(
            tuple(
                arg.encode("utf-8", "surrogatepass") if isinstance(arg, str) else arg
                for arg in args
            )
        )


async def connect(host: Host, login: Login) -> Line:
    """An open line, logged in; Told or OSError if it cannot be had."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT):
        _, line = await loop.create_connection(Line, *host, ssl=login.tls)
        try:
            await line.greet(login)
        except BaseException:
            line.close()
            raise
        return line


class Line(asyncio.Protocol):
    """Whoever has it sends, then reads as many answers as it sent commands."""

    def __init__(self) -> None:
        self._reader = hiredis.Reader(replyError=_told)
        self._answers: deque[Any] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._lost: Exception | None = None
        self._heard: Callable[[Any], None] | None = None
        self._news = select.poll()

    @property
    def is_quiet(self) -> bool:
        """Whether it is open, and nothing came that was not asked for.

        The socket itself is asked: the event loop may not have heard yet that the server is gone.
        """
        return self._lost is None and not self._answers and not self._news.poll(0)

    async def greet(self, login: Login) -> None:
        commands: list[bytes] = []
        if login.password is not None:
            names = () if login.username is None else (login.username,)
            commands.append(pack(b"AUTH", *names, login.password))
        if login.database:
            commands.append(pack(b"SELECT", login.database))
        for answer in await self.ask(*commands):
            if isinstance(answer, Exception):
                raise answer

    async def ask(self, *commands: bytes) -> list[Any]:
        """The answers to commands sent together; an error answer is a value here."""
        if commands:
            self._transport.write(b"".join(commands))
        return [await self.read() for _ in commands]

    async def read(self) -> Any:
        """The next answer."""
        while not self._answers:
            if self._lost is not None:
                raise ConnectionError(str(self._lost)) from self._lost
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._answers.popleft()

    async def listen(self, heard: Callable[[Any], None]) -> None:
        """Hand over what a subscription brings, as it comes, until the line is lost."""
        self._heard = heard
        while True:
            heard(await self.read())

    def close(self) -> None:
        self._lost = self._lost or ConnectionError("we hung up")
        self._transport.abort()

    # what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        made: socket.socket = transport.get_extra_info("socket")
        self._news.register(made.fileno(), select.POLLIN)
        keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                if self._heard is None or self._answers:
                    self._answers.append(answer)
                else:
                    self._heard(answer)  # at once, not at the listener's next turn
        except hiredis.ProtocolError as error:
            self._lost = error
            self._transport.abort()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._lost or exc or ConnectionError("the server hung up")
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _told(text: str) -> Told:
    return Denied(text) if text.startswith(DENIED) else Told(text)
