"""Web: what one program's pages have in common; made once, handed to whoever builds pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from relevo.desk import Role
from relevo.desk.sweeps import Sweeps
from relevo.web.auth import Auth
from relevo.web.entries import Entries
from relevo.web.files import Files
from relevo.web.people import People

if TYPE_CHECKING:
    from relevo.engine import Relevo
    from relevo.settings import Settings

STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the menu; the title is English and translated with the page."""

    title: str
    path: str
    section: str = ""
    app: str | None = None  # only for those who see this app

    def holds(self, path: str) -> bool:
        """Whether a page is in this part."""
        return path == self.path or (self.path != "/" and path.startswith(f"{self.path}/"))


class Web:
    """People, menu and static files of one program.

    The dashboard adds its lines to `menu` and their Spanish to `spanish`, says where one searches
    with `search`, and in `closing` what to do when the engine closes.
    """

    def __init__(
        self,
        relevo: Relevo,
        settings: Settings,
        closing: list[Callable[[], Awaitable[None]]] | None = None,
    ) -> None:
        self.relevo = relevo
        self.settings = settings
        self.people = People(relevo.store, relevo.clock)
        entries = Entries(relevo.store, relevo.clock)
        self.auth = Auth(self.people, entries, settings, relevo.clock, relevo.watch)
        self.files = Files(STATIC, "/static")
        self.search: str | None = None
        self.sweeps = Sweeps()
        self.closing = [] if closing is None else closing
        self.closing.append(self.sweeps.close)
        self.spanish: dict[str, str] = {}  # of the menu, which stands on everyone's pages
        self.menu = [
            Entry(site.title, site.prefix, "Apps", app.name)
            for app in relevo.apps
            for site in app.sites
            if site.title is not None
        ]

    def guard(
        self, app: ASGIApp, role: Role | str = Role.VIEWER, *, of: str | None = None
    ) -> ASGIApp:
        """The app, for people of at least this role; with `of`, who may see that app of ours."""
        from relevo.web.doors import Guard

        return Guard(self, app, Role(role), of)

    def open(self, app: ASGIApp) -> ASGIApp:
        """The app, for everyone; with the same headers, host and form checks."""
        from relevo.web.doors import Guard

        return Guard(self, app, None, None)

    def doors(self) -> ASGIApp:
        """Everything under /login, /logout and /static."""
        from relevo.web.login import Doors

        return Doors(self)
