"""The door of QStash's API: the token, the body, one transaction a request, errors in its words."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from relevo import Relevo
from relevo.apps.qstash.office import BODY_MAX
from relevo.apps.qstash.settings import DEV
from relevo.apps.qstash.wire import Wrong
from relevo.apps.qstash.workers import Post
from relevo.apps.tables import is_data_error
from relevo.errors import StoreError
from relevo.telemetry import log
from relevo.web.auth import is_local

READ_MAX = 16 * BODY_MAX

TRIES = 4
EMPTY = Response(status_code=200)

Work = Callable[[Request, AsyncSession, Post], Awaitable[Any]]


class Api:
    """Endpoints, each behind the token and inside a transaction of its own."""

    def __init__(self, relevo: Relevo) -> None:
        self._relevo = relevo
        self.routes: list[Route] = []

    def add(self, path: str, work: Work, *methods: str) -> None:
        async def endpoint(request: Request) -> Response:
            post = self._relevo.use(Post)
            try:
                _check_token(request, post.settings.token)
                _check_text(request)
                await _read(request)
                answer = await self._run(work, request, post)
            except Wrong as error:
                return JSONResponse({"error": str(error)}, error.status)
            except (StoreError, DBAPIError) as error:
                if is_data_error(error):  # to try again would not help
                    log.error("a value does not fit its column", extra={"path": request.url.path})
                    return JSONResponse({"error": "the store cannot hold such a value"}, 400)
                return JSONResponse({"error": "the store does not answer, try again"}, 503)
            return answer if isinstance(answer, Response) else JSONResponse(answer)

        route = Route(path, endpoint, methods=list(methods))
        # So that a path with a line break is refused in our words, not lost among the routes.
        route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)
        if methods != ("GET",) and route.methods is not None:
            route.methods.discard("HEAD")  # Starlette adds it to GET, which here may publish
        self.routes.append(route)

    async def _run(self, work: Work, request: Request, post: Post) -> Any:
        """Once more when two met at the same row: both made it, or each waited for the other."""
        for attempt in range(TRIES):
            try:
                async with self._relevo.transaction() as tx:
                    return await work(request, tx, post)
            except DBAPIError as error:
                if attempt == TRIES - 1 or is_data_error(error):
                    raise
        return None


def json_of(request: Request) -> Any:
    try:
        return msgspec.json.decode(request.state.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Wrong("the body is not JSON") from error


def _check_token(request: Request, token: str) -> None:
    given = request.headers.get("authorization", "")
    said = given[7:] if given[:7].lower() == "bearer " else request.query_params.get("qstash_token")
    if said is None or not hmac.compare_digest(said.encode(), token.encode()):
        raise Wrong("invalid token", 401)
    if token == DEV["QSTASH_TOKEN"] and not is_local(request):
        raise Wrong("the development token is known to everybody: for this machine only", 403)


def _check_text(request: Request) -> None:
    """Refuse NUL in what is looked up by; a destination travels as it was written."""
    if "destination" in request.path_params:
        return
    for _, text in [*request.path_params.items(), *request.query_params.multi_items()]:
        check_text(text)


def check_text(text: str) -> str:
    """A text that every store can hold."""
    if "\0" in text:
        raise Wrong("NUL is no text")
    return text


async def _read(request: Request) -> None:
    """The body, into request.state.body, up to what may be sent."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > READ_MAX:
            raise Wrong(f"the body has more than {READ_MAX:,} bytes", 413)
    request.state.body = bytes(body)


def object_of(request: Request) -> dict[str, Any]:
    told = json_of(request)
    if not isinstance(told, dict):
        raise Wrong("the body is an object")
    return cast("dict[str, Any]", told)


def count_of(request: Request, most: int) -> int:
    given = request.query_params.get("count")
    return most if given is None else max(1, min(most, integer(given, "count")))


def integer(text: str, name: str, most: int = 10**18 - 1) -> int:
    if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or int(text) > most:
        raise Wrong(f"{name} is a whole number up to {most:,}")
    return int(text)


def milliseconds_of(text: str | None, name: str) -> int | None:
    return None if not text else integer(text, name)
