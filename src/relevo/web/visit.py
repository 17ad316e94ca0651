"""Visit: one request's who and where, as the guard found it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Scope

from relevo.desk import Desk, Person

if TYPE_CHECKING:
    from relevo.web.web import Web

SESSION = "relevo_session"
SECRET = "relevo_visit"  # noqa: S105 - a cookie's name
_STATE = "relevo.visit"


@dataclass(slots=True)
class Visit:
    """Who is asking, what they may see, and where relevo is mounted."""

    web: Web
    base: str  # the prefix relevo is mounted under
    person: Person | None = None
    apps: frozenset[str] | None = None  # None: all of them
    session: str | None = field(default=None, repr=False)  # the cookie, when it is a good one
    secret: str = field(default="", repr=False)
    by_token: bool = False
    _is_new: bool = False

    @classmethod
    def of(cls, scope: Scope) -> Visit:
        """The visit of a guarded request."""
        return scope["state"][_STATE]

    @classmethod
    def known(cls, scope: Scope) -> Visit | None:
        state: dict[str, Any] = scope.get("state") or {}
        return state.get(_STATE)

    def enter(self, scope: Scope) -> None:
        """Put it where endpoints look: request.state.person, .desk and .web."""
        cookie = HTTPConnection(scope).cookies.get(SECRET, "")
        is_ours = len(cookie) == 32 and cookie.isalnum() and cookie.isascii()
        self.secret = cookie if is_ours else secrets.token_hex(16)
        self._is_new = not is_ours
        # A dict of our own: one that a server shares among requests would share the person too.
        state: dict[str, Any] = dict(scope.get("state") or {})
        found = {_STATE: self, "person": self.person, "desk": self.desk, "web": self.web}
        scope["state"] = state | found

    @property
    def desk(self) -> Desk:
        """A desk that sees what the person may see."""
        desk, reveals = self.web.relevo.desk, self.may("reveal")
        if self.apps is None and reveals:
            return desk
        return Desk(desk.store, apps=self.apps, reveals=reveals, keep_dead=desk.keep_dead)

    def sees(self, app: str) -> bool:
        return self.apps is None or app in self.apps

    def may(self, action: str) -> bool:
        return self.person is not None and self.person.may(action)

    @property
    def csrf(self) -> str:
        """What a form must bring along; only pages of this very browser and session know it."""
        key = f"{self.session or ''}/{self.secret}".encode()
        return hmac.new(key, b"relevo form", hashlib.sha256).hexdigest()[:40]

    def keep_secret(self, response: Response, *, is_secure: bool) -> None:
        """Give the browser what the form token is made from, if it has none."""
        if self._is_new:
            response.set_cookie(
                SECRET,
                self.secret,
                path=self.url("/"),
                httponly=True,
                secure=is_secure,
                samesite="strict",
            )

    def url(self, path: str) -> str:
        """A path of ours as a browser must ask for it."""
        return f"{self.base}{path}"

    def static(self, name: str) -> str:
        """The address of a static file of ours."""
        return self.url(self.web.files.address(name))

    def path(self, scope: Scope) -> str:
        """The path within relevo."""
        return scope["path"].removeprefix(self.base)

    @property
    def now(self) -> Callable[[], int]:
        clock = self.web.relevo.clock
        return lambda: int(clock.now().timestamp() * 1000)
