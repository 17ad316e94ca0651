"""A TCP proxy in front of a server, to delay, lose, swallow, cut and drop what passes through it.

It runs in a thread of its own, so that a test may block without holding anybody's packets up.
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

HOST = "127.0.0.1"
TCP_REPAIR = 19  # a socket closed in this mode says nothing to its peer; only root may
RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 s: close() sends RST

_ADDRESS = re.compile(r"127\.0\.0\.1:(\d+)")


class Proxy:
    """Listens on a port of its own and carries bytes to `target` and back.

    `delay` seconds hold every chunk up on its way; of a hundred chunks `loss` are late, as after a
    retransmission, and so is what comes behind them; a `hole` swallows everything without a word
    until it is closed.
    """

    def __init__(self, target: int) -> None:
        self.port = 0
        self.delay = 0.0
        self.loss = 0.0
        self.held = 0  # chunks that the hole has swallowed so far
        self.target = target
        self._open: asyncio.Event = asyncio.Event()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @classmethod
    def before(cls, url: str) -> tuple[Proxy, str]:
        """A proxy for the server of a URL, and the URL through it."""
        found = _ADDRESS.search(url)
        assert found is not None, f"no 127.0.0.1:port in {url}"
        proxy = cls(int(found[1])).start()
        return proxy, _ADDRESS.sub(f"{HOST}:{proxy.port}", url, count=1)

    def start(self) -> Proxy:
        self._thread.start()
        self._do(self._listen())
        return self

    def stop(self) -> None:
        self.cut()
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def open_hole(self) -> None:
        self._loop.call_soon_threadsafe(self._open.clear)

    def close_hole(self) -> None:
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> int:
        """Reset every connection; answers how many there were."""
        return self._each(lambda raw: raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET))

    def vanish(self) -> int:
        """Forget every connection without a word to the client; PermissionError unless root."""
        return self._each(lambda raw: raw.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1))

    @property
    def connections(self) -> int:
        return len(self._pairs)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _each(self, prepare: Callable[[socket.socket], None]) -> int:
        async def close() -> int:
            pairs = list(self._pairs)
            for client, server in pairs:
                prepare(client.get_extra_info("socket"))
                client.transport.abort()
                server.transport.abort()
            return len(pairs)

        return self._do(close())

    async def _listen(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._carry, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    async def _carry(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await asyncio.open_connection(HOST, self.target)
        except OSError:
            client.transport.abort()
            return
        pair = (client, server)
        self._pairs.add(pair)
        try:
            await asyncio.gather(self._pump(reader, server), self._pump(answers, client))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._pairs.discard(pair)
            for writer in pair:
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction; chunks leave in the order they came, each when its time has come."""
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def send() -> None:
            while True:
                at, data = await chunks.get()
                await asyncio.sleep(max(0.0, at - self._loop.time()))
                self.held += not self._open.is_set()
                await self._open.wait()
                if not data:
                    writer.write_eof()
                    return
                writer.write(data)
                await writer.drain()

        sending = asyncio.create_task(send())
        try:
            data = b"-"
            while data:
                data = await reader.read(65_536)
                late = self.delay
                while self.loss and random.random() < self.loss:
                    late = max(0.2, 2 * late)
                chunks.put_nowait((self._loop.time() + late, data))
            await sending
        finally:
            sending.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await sending
