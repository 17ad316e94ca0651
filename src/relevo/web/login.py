"""The pages before the others: /login and /logout, and the static files they need."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from relevo.web.auth import address_of, is_https
from relevo.web.doors import PLAIN, go, headed, site, visit_of
from relevo.web.forms import form
from relevo.web.visit import SESSION

if TYPE_CHECKING:
    from relevo.web.web import Web

_PATH = re.compile(
    r"/(?:[A-Za-z0-9._~-][A-Za-z0-9._~/:@%-]*)?(?:\?[A-Za-z0-9._~/:@%&=+*-]*)?", re.ASCII
)


class Doors:
    """An ASGI app for /login, /logout and /static, open to everyone."""

    def __init__(self, web: Web) -> None:
        self.app = site(
            [
                Route("/login", show, methods=["GET"]),
                Route("/login", enter, methods=["POST"]),
                Route("/logout", leave, methods=["POST"]),
            ]
        )
        self._pages = web.open(self.app)
        self._files = web.files

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "").removeprefix(scope.get("root_path", ""))
        if path.startswith("/static/"):
            # Without asking who it is for: a page that says the store is away wants its clothes.
            await self._files(scope, receive, headed(send))
        else:
            await self._pages(scope, receive, send)


async def show(request: Request) -> Response:
    """The form."""
    if visit_of(request).person is not None:
        return go(request, "/")
    return _form(request, _next(request.query_params.get("next", "/")))


async def enter(request: Request) -> Response:
    """Check the form; a new session whatever came before."""
    visit = visit_of(request)
    auth = visit.web.auth
    filled = await form(request)
    name, password, there = filled["name"].strip(), filled["password"], _next(filled["next"])
    address = address_of(request)
    _ = PLAIN.words(request)
    if auth.is_too_often(name, request):
        await auth.hold_back(name, address)
        return _form(request, there, name, _("Too many attempts: wait a minute."), 429)
    session = await auth.log_in(name, password, address)
    if session is None:
        return _form(request, there, name, _("The name or the password is not right."), 401)
    if visit.session is not None:
        await auth.log_out(visit.session)
    response = RedirectResponse(visit.url(there), 303)
    response.set_cookie(
        SESSION,
        session,
        path=visit.url("/"),
        httponly=True,
        secure=is_https(request),
        samesite="strict",
    )
    return response


async def leave(request: Request) -> Response:
    """End the session, here and in the store."""
    visit = visit_of(request)
    if visit.session is not None:
        await visit.web.auth.log_out(visit.session)
    _ = PLAIN.words(request)
    response = go(request, "/login", _("You are out."))
    response.delete_cookie(SESSION, path=visit.url("/"))
    return response


def _form(
    request: Request, there: str, name: str = "", problem: str = "", status: int = 200
) -> Response:
    return PLAIN.page(
        request,
        "login.html",
        status=status,
        next=there,
        name=name[:64],
        problem=problem,
    )


def _next(path: str) -> str:
    """Where to go on: a path of ours, and never a name that a browser takes for a host."""
    return path if len(path) <= 2_000 and _PATH.fullmatch(path) and "//" not in path else "/"
