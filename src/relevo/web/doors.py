"""Guard: the one way in. Host, who, form token, role; then the app, with our headers around it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial, wraps
from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relevo.desk import Person, Role
from relevo.errors import (
    DefinitionError,
    MisuseError,
    NotAllowed,
    NotFoundError,
    PayloadError,
    RelevoError,
    StoreError,
)
from relevo.web.forms import check_form
from relevo.web.room import TEMPLATES, Room, say
from relevo.web.visit import Visit

if TYPE_CHECKING:
    from relevo.web.web import Web

log = logging.getLogger("relevo.web")

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; "
    "base-uri 'none'"
)
HEADERS: Final = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "x-frame-options": "DENY",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
SESSION_ENDED: Final = "Your session has ended, and nothing was done: log in and try again."
QUERY_MAX = 8_192
_RANK = list(Role)
_TITLES: Final[dict[int, str]] = {
    400: "Wrong request",
    401: "Log in",
    403: "Not allowed",
    404: "Not found",
    409: "Not now",
    422: "Wrong request",
    503: "The store does not answer",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class Guard:
    """An ASGI app around another; a role of None lets everyone through, with the same checks."""

    def __init__(self, web: Web, app: ASGIApp, role: Role | None, of: str | None) -> None:
        self.web = web
        self.app = app
        self.role = role
        self.of = of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._guarded(scope, receive, headed(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Request(scope, receive)
        visit = Visit.known(scope)
        try:
            if visit is None:
                _check_shape(self.web, asked)
                visit = await _enter(self.web, asked)
                if self.role is None or visit.person is not None:
                    # Of whoever is not in nothing is taken; a form older than their session would
                    # be called forged.
                    receive = await check_form(visit, asked, receive)
            refused = self._refused(visit, asked)
        except (RelevoError, HTTPException) as error:
            if visit is None:
                Visit(self.web, scope.get("root_path", "")).enter(scope)
            refused = tell(asked, error)
        if refused is not None:
            await refused(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refused(self, visit: Visit, asked: Request) -> Response | None:
        if self.role is None:
            return None
        if visit.person is None:
            return _log_in_first(visit, asked)
        if not reaches(visit.person, self.role):
            raise _not_for(visit.person, self.role)
        if self.of is not None and not visit.sees(self.of):
            raise NotFoundError("There is no such page.")
        return None


def reaches(person: Person, role: Role) -> bool:
    """Whether a person's role is this one or more."""
    return _RANK.index(person.role) >= _RANK.index(role)


def needs(role: Role | str) -> Callable[[Endpoint], Endpoint]:
    """An endpoint for people of at least this role."""
    wanted = Role(role)

    def guard(endpoint: Endpoint) -> Endpoint:
        @wraps(endpoint)
        async def guarded(request: Request) -> Response:
            person = visit_of(request).person
            if person is None or not reaches(person, wanted):
                raise _not_for(person, wanted)
            return await endpoint(request)

        return guarded

    return guard


def _not_for(person: Person | None, role: Role) -> NotAllowed:
    if person is None:
        return NotAllowed(f"this is for {role}")
    return NotAllowed(f"{person.name} is {person.role}; this is for {role}")


def visit_of(request: Request) -> Visit:
    """Who is asking, and where relevo is mounted."""
    return Visit.of(request.scope)


def go(request: Request, path: str, said: str = "") -> Response:
    """After a POST: on to a page of ours, which says what happened."""
    visit = visit_of(request)
    response = RedirectResponse(visit.url(path), 303)
    if said:
        say(request, response, said)
    return response


def site(routes: Sequence[BaseRoute], room: Room | None = None, **options: Any) -> Starlette:
    """Pages, with our way of telling errors, in the words of `room`; for guard()."""
    handle = partial(_handle, PLAIN if room is None else room)
    handlers = dict.fromkeys((RelevoError, HTTPException, Exception), handle)
    made = Starlette(routes=list(routes), exception_handlers=handlers, **options)
    made.router.redirect_slashes = False  # it would lead to wherever the Host header says
    return made


# What is checked


def _check_shape(web: Web, asked: Request) -> None:
    hosts = asked.headers.getlist("host")
    if len(hosts) != 1 or not web.auth.is_host(hosts[0]):  # of two a proxy may have seen the other
        raise HTTPException(
            400, "this is not the host you asked for: RELEVO_ALLOWED_HOSTS lists its names"
        )
    if web.auth.is_flood(asked):
        raise HTTPException(
            429, "too many requests from there: wait a minute", {"retry-after": "60"}
        )
    query: bytes = asked.scope.get("query_string", b"")
    if len(query) > QUERY_MAX:
        raise HTTPException(414, f"the query has more than {QUERY_MAX:,} bytes")
    if query.count(b"&") >= 200:
        raise HTTPException(400, "the query has more than 200 parameters")


async def _enter(web: Web, asked: Request) -> Visit:
    found = await web.auth.find(asked)
    visit = Visit(
        web,
        asked.scope.get("root_path", ""),
        found.person,
        found.apps,
        found.session,
        by_token=found.by_token,
    )
    visit.enter(asked.scope)
    if found.is_wrong:
        raise HTTPException(401, "the token is not one of ours, or not any more")
    return visit


async def is_somebody(web: Web, scope: Scope) -> bool:
    """Whether a request that nothing guards comes from a person or a token of ours."""
    asked = Request(scope)
    try:
        _check_shape(web, asked)
    except HTTPException:
        return False
    return (await web.auth.find(asked)).person is not None


def headed(send: Send) -> Send:
    """Send, with the headers that every answer of ours has."""

    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return with_headers


# What is said


def wants_json(asked: HTTPConnection) -> bool:
    """Whether whoever asks is a program."""
    base = asked.scope.get("root_path", "")
    known = Visit.known(asked.scope)
    path = asked.scope["path"].removeprefix(base if known is None else known.base)
    is_api = path.startswith("/api/") and path != "/api/docs"
    return is_api or "text/html" not in asked.headers.get("accept", "text/html")


def _log_in_first(visit: Visit, asked: Request) -> Response:
    there = quote(visit.path(asked.scope), safe="/")
    query = asked.url.query
    filters = quote(f"?{query}", safe="") if 0 < len(query) < 1_500 else ""
    door = visit.url(f"/login?next={there}{filters}")
    if asked.headers.get("hx-request") == "true":
        return Response("", 401, {"hx-redirect": door})
    if asked.method in ("GET", "HEAD") and not wants_json(asked):
        if asked.headers.get("sec-fetch-site", "none") in ("cross-site", "same-site"):
            # Whoever follows a link from elsewhere comes without the cookie, which is for our own
            # pages only. One of them, asking for the same again, gets it sent along.
            path = "/" + there.lstrip("/")  # what begins with two is a host's name to a browser
            here = escape(visit.url(path) + (f"?{query}" if query else ""))
            return HTMLResponse(
                f'<!doctype html><meta http-equiv="refresh" content="0;url={here}">'
            )
        return RedirectResponse(door, 302)
    if not wants_json(asked):
        raise HTTPException(401, SESSION_ENDED)
    said = "log in, or send a token: Authorization: Bearer rlv_…"
    return _json_error(401, said, {"www-authenticate": "Bearer"})


def status_of(error: RelevoError) -> int:
    """The HTTP status that says what an error says."""
    match error:
        case NotFoundError():
            return 404
        case NotAllowed():
            return 403
        case PayloadError():
            return 422
        case DefinitionError():
            return 400
        case MisuseError():
            return 409
        case StoreError():
            return 503
        case _:
            return 500


def tell(asked: Request, error: Exception, room: Room | None = None) -> Response:
    """An error as a page in the words of `room`, or as JSON."""
    room = PLAIN if room is None else room
    headers: Mapping[str, str] = {}
    match error:
        case HTTPException():
            status, text, headers = error.status_code, error.detail, error.headers or {}
            if text == HTTPStatus(status).phrase:
                text = (
                    "There is no such page." if status == 404 else "This page does not take that."
                )
        case RelevoError():
            status, text = status_of(error), str(error)
        case _:
            status, text = 500, "The mistake was written to the log."
    if status >= 500:
        log.error("page failed", exc_info=error, extra={"path": asked.scope["path"]})
    if wants_json(asked):
        return _json_error(status, text, headers)
    title = _TITLES.get(status, "Something went wrong" if status >= 500 else "Not now")
    return room.page(
        asked,
        "error.html",
        status=status,
        headers=headers,
        heading=room.words(asked)(title),
        text=room.retold(asked, text),
    )


def _json_error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse(
        {"error": HTTPStatus(status).phrase.lower(), "message": text}, status, headers
    )


async def _handle(room: Room, request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"allow": ", ".join(sorted(_methods(request)))}
    return tell(request, error, room)


def _methods(request: Request) -> set[str]:
    """What an address takes: two routes may share it, each with a method of its own."""
    routes: list[BaseRoute] = request.app.routes
    return {
        method
        for route in routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
        for method in route.methods or ()
    }


PLAIN: Final = Room(TEMPLATES)
