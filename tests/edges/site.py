"""A program with its pages: one engine on SQLite, everything that stands behind its front."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from relevo import App, Command, Context, Poll, sources
from relevo.desk import Role
from relevo.engine import Relevo
from relevo.front import _parts  # pyright: ignore[reportPrivateUsage] - every door there is
from relevo.intake import Intake
from relevo.route import site, webhook
from relevo.testing import ManualClock
from relevo.web import site as pages
from relevo.web.people import People, PersonRecord
from relevo.web.visit import SECRET, SESSION
from relevo.webhook import Delivery

PASSWORD = "correct horse battery"
ORIGIN = "http://127.0.0.1:8700"
EVIL = "https://evil.example"
HOOK = "a-secret-of-the-hook"
ACCEPT = {"accept": "text/html"}


class Book(Command, queue="cars:suppliers:book"):
    code: str


class Save(Command, queue="hotel:messages:save"):
    text: str


async def _hook(delivery: Delivery, ctx: Intake) -> None:
    await ctx.enqueue(Book(delivery.json["code"]))


async def _panel(request: Request) -> Response:
    return PlainTextResponse(f"panel of {request.state.person.name}")


def apps() -> list[App]:
    cars = App(
        "cars",
        sites=[site("/cars", lambda _: pages([Route("/cars", _panel)]), title="Cars")],
        webhooks=[
            webhook(
                "/hooks/cars",
                _hook,
                verify=sources.shared_secret(HOOK, header="x-secret"),
                key=lambda delivery: delivery.json["id"],
            )
        ],
    )
    hotel = App("hotel")

    @cars.worker
    async def book(order: Book) -> None: ...

    @cars.poller("rates:{place}", over=lambda: [{"place": "cun"}], every="1h")
    async def poll_rates(turn: Poll, ctx: Context) -> None: ...

    @cars.schedule("0 6 * * *")
    def remind() -> Book:
        return Book("remind")

    @hotel.worker
    async def save(order: Save) -> None: ...

    return [cars, hotel]


class Site:
    """The front of an engine, and browsers to look at it with."""

    def __init__(self, relevo: Relevo, path: Path, clock: ManualClock) -> None:
        self.relevo = relevo
        self.path = path
        self.clock = clock
        self.people = People(relevo.store, clock)
        self.app = relevo.asgi()

    @asynccontextmanager
    async def browser(
        self, role: Role | None = None, *, apps: tuple[str, ...] = (), **options: Any
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """Somebody of this role with a session; None: a stranger."""
        address = options.pop("address", "192.0.2.7")
        transport = httpx2.ASGITransport(self.app, client=(address, 4711))
        options = {"base_url": ORIGIN, **options}
        async with httpx2.AsyncClient(transport=transport, **options) as client:
            if role is not None:
                name = f"{role}-{len(apps)}"
                record = await self.people.person(name)
                if record is None:
                    # Not by add(): what a password costs is measured elsewhere.
                    record = PersonRecord(name=name, role=role, apps=apps, password="scrypt$")
                    await self._keep(record)
                client.cookies.set(SESSION, await self.people.begin(name, record.password))
            yield client

    async def _keep(self, record: PersonRecord) -> None:
        import msgspec

        from relevo.store import Note

        note = Note(kind="person", name=record.name, value=msgspec.json.encode(record))
        assert await self.relevo.store.remember([note]) == [True]

    def routes(self) -> Iterator[tuple[str, str]]:
        """Every verb and path that is answered behind the guard or in front of it."""
        for _, part in _parts(self.relevo, [])[0]:
            inner = getattr(part, "app", part)
            for route in getattr(inner, "routes", []):
                yield from _verbs(route)

    def state(self) -> str:
        """A hash of everything in the store, but for who has come in."""
        with sqlite3.connect(f"file:{self.path}?mode=ro", uri=True) as db:
            names = db.execute("select name from sqlite_master where type = 'table' order by 1")
            questions = [f'select * from "{name}"' for (name,) in names]  # noqa: S608 - our own tables
            rows = [
                sorted(row for row in map(repr, db.execute(question)) if not _CAME_IN.search(row))
                for question in questions
            ]
        return sha256(repr(rows).encode()).hexdigest()


_CAME_IN = re.compile("'seen'|'use token'|'sqlite_")


def _verbs(route: BaseRoute) -> Iterator[tuple[str, str]]:
    if isinstance(route, Route):
        for verb in sorted((route.methods or {"GET"}) - {"HEAD"}):
            yield verb, route.path


ENDLESS = re.compile(r"/(live|stream)\b")
"""Answers that go on for as long as somebody looks."""


def filled(path: str, value: str = "0" * 32) -> str:
    """A path of the route table with something in its places."""
    return re.sub(r"\{[^}]+\}", value, path)


async def token_of(browser: httpx2.AsyncClient) -> str:
    """What this browser's forms bring along."""
    page = await browser.get("/api/docs", headers=ACCEPT)
    found = re.search(r'name="csrf" content="([0-9a-f]{40})"', page.text)
    assert found and SECRET in browser.cookies
    return found[1]
