"""Calling a provider over HTTP, and saying in relevo's words how it went.

    mex = Outside("Mex Group", "https://mex.example/api", seconds=30)
    reply = await mex.call("POST", "/reserve", json={…}, acts=True)
    code = reply.check().json()["code"]

Every call has one deadline for all of it, reads 5 MiB at most and follows no redirect. What an
error or a status means is read in the table of client errors, to which `errors=` adds a provider's
own rows; a call that `acts` and may have happened is ProviderUncertain. Nothing of a body, a header
or a query is ever part of an error.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import TracebackType
from typing import Any, cast

import httpx2

from relevo import (
    ErrorRow,
    Means,
    Proof,
    ProviderCredentials,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    judge_client_error,
    judge_response,
    retry_after_of,
)
from relevo.apps.xml import Element, Unreadable, is_html, parse_xml
from relevo.client_errors import Row, Rows

LIMIT = 5 * 1_048_576
SECONDS = 30.0

NOT_NOW = (
    # These providers, and what stands before them, turn a call away with a 503: none was begun.
    ErrorRow(status=503, means="not_sent"),
    ErrorRow(status=429, means="wait", retry_after="30s"),
)
"""What the systems' providers add to the table of client errors; see `Outside(errors=…)`."""


def provider_error(proof: Proof | None, said: str, *, acts: bool) -> ProviderError:
    """What a client's error or answer means for the job, without the provider's own words.

    A call that does not act can be made again, whatever became of it.
    """
    means = Means.UNCERTAIN if proof is None else proof.kind
    wait = None if proof is None else proof.retry_after
    match means:
        case Means.WAIT:
            return ProviderUnavailable(said, retry_after=wait, spends=False)
        case Means.OUR_CREDENTIALS:
            return ProviderCredentials(said)
        case Means.REFUSED:
            return ProviderRefused(said)
        case Means.UNCERTAIN if acts:
            return ProviderUncertain(said)
        case _:
            return ProviderUnavailable(said, retry_after=wait)


_NOT_BEGUN = Proof(Means.NOT_SENT, "no request was begun")  # seen by the client's own trace


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
    errors: Rows = NOT_NOW

    def check(self) -> Reply:
        """Itself if it is a 2xx; else what its status means for the job."""
        if 200 <= self.status < 300:
            return self
        said = f"{self.who} answered {self.status}"
        if self.status < 400:  # never followed; "see other": it was done, and its result is there
            is_done = self.status == 303 and self.acts
            raise ProviderUncertain(said) if is_done else ProviderUnavailable(said)
        proof = judge_response(self, self.errors)
        if proof is not None and proof.retry_after is None:
            proof = replace(proof, retry_after=retry_after_of(self))
        raise provider_error(proof, said, acts=self.acts)

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
        errors: Iterable[Row] = (),
    ) -> None:
        self.who = who
        self._errors = (*errors, *NOT_NOW)
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
        except (TimeoutError, httpx2.HTTPError, httpx2.StreamError) as error:
            proof = judge_client_error(error, self._errors) if has_left else _NOT_BEGUN
            is_away = proof is not None and proof.kind is Means.NOT_SENT
            verb = "cannot be reached" if is_away else "did not answer"
            said = f"{self.who} {verb}: {_name(error)}"
            raise provider_error(proof, said, acts=acts) from error

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
        reply = Reply(self.who, answer.status_code, answer.headers, bytes(body), acts, self._errors)
        if len(body) <= self._limit:
            encoding = answer.headers.get("content-encoding", "identity").strip().lower()
            if encoding in ("", "identity"):
                return reply
            plain = _inflated(bytes(body), encoding, self._limit)
            if plain is not None:
                return Reply(
                    self.who, answer.status_code, answer.headers, plain, acts, self._errors
                )
        raise reply.unreadable(f"more than {self._limit:,} bytes, or an unknown encoding")


@cache
def _trust() -> ssl.SSLContext:
    """Whom we believe; read from disk once, since each reading takes as long as a call."""
    return httpx2.create_ssl_context(trust_env=False)


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
