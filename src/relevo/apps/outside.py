"""Calling a provider over HTTP, and saying in relevo's words how it went.

    mex = Outside("Mex Group", "https://mex.example/api", seconds=30)
    reply = await mex.call("POST", "/reserve", json={…}, acts=True)
    code = reply.check().json()["code"]

Every call has one deadline for all of it, reads 5 MiB at most and follows no redirect. What went
wrong before anything was sent is ProviderUnavailable; what went wrong after it is, for a call that
`acts`, ProviderUncertain: it may have happened. Nothing of a body, a header or a query is ever
part of an error.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cache
from types import TracebackType
from typing import Any, cast

import httpx2

from relevo.apps.xml import Element, Unreadable, is_html, parse_xml
from relevo.errors import ProviderError, ProviderRefused, ProviderUnavailable, ProviderUncertain

LIMIT = 5 * 1_048_576
SECONDS = 30.0
WAIT_MIN, WAIT_MAX = timedelta(seconds=1), timedelta(hours=1)
WAIT = timedelta(seconds=30)  # after a 429 that does not say how long

_NEVER_LEFT = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
)
_LATER = frozenset({408, 425, 503})


class Deadline:
    """One span for several calls: `seconds=deadline.left()`."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds

    def left(self) -> float:
        """What remains; never quite nothing, so that a call fails as a call that is too late."""
        return max(0.001, self._until - time.monotonic())


@dataclass(frozen=True, slots=True)
class Reply:
    """What a provider answered, whatever its status."""

    who: str
    status: int
    headers: httpx2.Headers
    body: bytes
    acts: bool

    def check(self) -> Reply:
        """Itself if it is a 2xx; else what its status means for the job."""
        if 200 <= self.status < 300:
            return self
        said = f"{self.who} answered {self.status}"
        wait = retry_after(self.headers.get("retry-after"))
        if self.status == 429:
            raise ProviderUnavailable(said, retry_after=wait or WAIT, spends=False)
        if self.status == 303 and self.acts:  # "see other": it was done, and its result is there
            raise ProviderUncertain(said)
        if self.status in _LATER or self.status < 400:
            raise ProviderUnavailable(said, retry_after=wait)
        if self.status < 500:
            raise ProviderRefused(said)
        raise ProviderUncertain(said) if self.acts else ProviderUnavailable(said, retry_after=wait)

    def json(self) -> Any:
        """The body as JSON, strictly: no NaN, no repeated keys."""
        try:
            return _json(self.body)
        except (ValueError, RecursionError) as error:
            raise self.unreadable("no JSON") from error

    def object(self) -> dict[str, Any]:
        """The body as a JSON object."""
        found = self.json()
        if not isinstance(found, dict):
            raise self.unreadable("no object")
        return cast("dict[str, Any]", found)

    def xml(self) -> Element:
        """The body as XML without DTD, entities or excess; see parse_xml()."""
        try:
            return parse_xml(self.body)
        except Unreadable as error:
            raise self.unreadable(str(error)) from error

    def unreadable(self, why: str) -> ProviderError:
        """The error for an answer that says nothing; for a gateway to raise.

        A web page comes from something in front of the provider, which it therefore never reached.
        """
        said = f"{self.who} answered {self.status} with {why}"
        is_page = is_html(self.body[:4096].decode("latin-1"))
        return ProviderUncertain(said) if self.acts and not is_page else ProviderUnavailable(said)


class Outside:
    """One provider's HTTP address. Close it, or use it as `async with`."""

    def __init__(
        self,
        who: str,
        base: str = "",
        *,
        seconds: float = SECONDS,
        limit: int = LIMIT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.who = who
        self.base = base.rstrip("/")
        self.seconds = seconds
        self._limit = limit
        self._client = httpx2.AsyncClient(
            # Ours, over everything; theirs are per read and never end with a byte a second.
            timeout=None,
            follow_redirects=False,
            trust_env=False,
            verify=_trust(),
            headers={"accept-encoding": "identity", "user-agent": "relevo", **(headers or {})},
            # A connection kept long may be closed by the other side just as a booking leaves.
            limits=httpx2.Limits(max_connections=100, keepalive_expiry=2.0),
        )

    async def __aenter__(self) -> Outside:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._client.aclose()

    async def call(
        self,
        method: str,
        path: str = "",
        *,
        acts: bool,
        json: Any = None,
        form: Mapping[str, str] | None = None,
        content: bytes | str | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        seconds: float | None = None,
    ) -> Reply:
        """The answer, of any status; `acts` when the call changes something over there."""
        has_left = False

        async def trace(event: str, _: Mapping[str, Any]) -> None:
            nonlocal has_left
            has_left = has_left or ".send_request_headers" in event

        request = self._client.build_request(
            method,
            path if path.startswith(("http://", "https://")) else self.base + path,
            params=params,
            headers=headers,
            json=json,
            data=form,
            content=content,
            extensions={"trace": trace},
        )
        try:
            async with asyncio.timeout(seconds or self.seconds):
                return await self._send(request, acts)
        except _NEVER_LEFT as error:
            raise ProviderUnavailable(f"{self.who} cannot be reached: {_name(error)}") from error
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            said = f"{self.who} did not answer: {_name(error)}"
            if acts and has_left:
                raise ProviderUncertain(said) from error
            raise ProviderUnavailable(said) from error

    async def _send(self, request: httpx2.Request, acts: bool) -> Reply:
        answer = await self._client.send(request, stream=True)
        try:
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > self._limit:
                    break
        finally:
            await answer.aclose()
        reply = Reply(self.who, answer.status_code, answer.headers, bytes(body), acts)
        if len(body) <= self._limit:
            encoding = answer.headers.get("content-encoding", "identity").strip().lower()
            if encoding in ("", "identity"):
                return reply
            plain = _inflated(bytes(body), encoding, self._limit)
            if plain is not None:
                return Reply(self.who, answer.status_code, answer.headers, plain, acts)
        raise reply.unreadable(f"more than {self._limit:,} bytes, or an unknown encoding")


@cache
def _trust() -> ssl.SSLContext:
    """Whom we believe; read from disk once, since each reading takes as long as a call."""
    return httpx2.create_ssl_context(trust_env=False)


def retry_after(value: str | None) -> timedelta | None:
    """What a Retry-After header asks for, within a second and an hour; None without one."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        wait = timedelta(seconds=min(int(text), 86_400)) if int(text) > 0 else WAIT_MIN
    else:
        try:
            at = parsedate_to_datetime(text)
            wait = at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)
        except (ValueError, TypeError, OverflowError):
            wait = WAIT_MAX if re.fullmatch(r"\d[\d.eE+]{0,40}", text, re.ASCII) else WAIT
    return min(max(wait, WAIT_MIN), WAIT_MAX)


def as_object(value: Any) -> dict[str, Any]:
    """A JSON object, or an empty one where something else came."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def as_objects(value: Any) -> list[dict[str, Any]]:
    """The JSON objects in a list; none where something else came."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]


def _json(data: bytes) -> Any:
    def no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key came twice")
        return found

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return json.loads(data, object_pairs_hook=no_twins, parse_constant=no_constant)


def _inflated(data: bytes, encoding: str, limit: int) -> bytes | None:
    """Data that came compressed though we asked for plain; None when it is too much or broken."""
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return None
    try:
        inflater = zlib.decompressobj(wbits=47)
        plain = inflater.decompress(data, limit + 1)
    except zlib.error:
        return None
    return plain if len(plain) <= limit and inflater.eof else None


def _name(error: BaseException) -> str:
    return "time is up" if isinstance(error, TimeoutError) else type(error).__name__
