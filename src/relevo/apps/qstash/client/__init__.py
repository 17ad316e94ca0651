"""Calling addresses that come from data: guarded, without redirects, within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv6Address

import httpx2

from relevo.apps.qstash.client.guard import Forbidden, Guard, Place

__all__ = ["Called", "Caller", "Failed", "Forbidden", "Guard", "Place"]

ANSWER_MAX = 1_048_576


class Failed(Exception):
    """No answer: the connection failed, or took too long."""


@dataclass(frozen=True, slots=True)
class Called:
    """What was answered."""

    status: int
    headers: dict[str, list[str]]
    body: bytes


class Caller:
    """One client for all destinations. `rewrite` sends some prefixes elsewhere, for tests."""

    def __init__(self, guard: Guard, rewrite: Mapping[str, str] | None = None) -> None:
        self.guard = guard
        self._rewrite = dict(rewrite or {})
        self._client = httpx2.AsyncClient(
            timeout=None,  # ours, over everything
            follow_redirects=False,
            trust_env=False,  # a proxy would resolve the name again
            # A connection kept for one host must not serve another at the same address.
            limits=httpx2.Limits(max_connections=200, max_keepalive_connections=0),
        )

    async def close(self) -> None:
        await self._client.aclose()

    def look(self, url: str) -> Place:
        """The place that a URL names, after the rewrites; Forbidden if it must not be called."""
        for prefix, other in self._rewrite.items():
            if url.startswith(prefix):
                return self.guard.look(other + url[len(prefix) :])
        return self.guard.look(url)

    async def call(
        self,
        method: str,
        url: str,
        headers: list[tuple[str, str]],
        body: bytes,
        seconds: float,
    ) -> Called:
        """Call a URL; Forbidden when it must not be called, Failed when nobody answers."""
        place = self.look(url)
        try:
            async with asyncio.timeout(seconds):
                address = await self.guard.find(place)
                return await self._send(place, address.compressed, method, headers, body)
        except TimeoutError as error:
            raise Failed(f"no answer within {seconds:g} s") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Failed(f"the destination does not answer: {type(error).__name__}") from error

    async def _send(
        self, place: Place, address: str, method: str, headers: list[tuple[str, str]], body: bytes
    ) -> Called:
        shown = f"[{address}]" if ":" in address else address
        host = f"[{place.host}]" if isinstance(place.address, IPv6Address) else place.host
        is_usual = place.port == (443 if place.scheme == "https" else 80)
        request = self._client.build_request(
            method,
            f"{place.scheme}://{shown}:{place.port}{place.path}",
            headers=[
                (name.encode(), _bytes(value))
                for name, value in [
                    *headers,
                    ("host", host if is_usual else f"{host}:{place.port}"),
                ]
            ],
            content=body,
            # The certificate must be that of the name, though the call goes to an address.
            extensions={"sni_hostname": place.host} if place.scheme == "https" else {},
        )
        answer = await self._client.send(request, stream=True)
        try:
            read = bytearray()
            async for piece in answer.aiter_raw():
                read += piece
                if len(read) > ANSWER_MAX:
                    break
        finally:
            await answer.aclose()
        told: dict[str, list[str]] = {}
        for name, value in answer.headers.multi_items():
            told.setdefault(name.title(), []).append(value)
        return Called(answer.status_code, told, bytes(read[:ANSWER_MAX]))


def _bytes(value: str) -> bytes:
    """A header's value as it came, which is latin-1; in a batch it may be any text."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode(errors="replace")
