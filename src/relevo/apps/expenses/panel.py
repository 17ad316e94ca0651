"""Expenses for people: who writes, one person's month with its chart, and the export.

Staff see everybody behind the dashboard's login; a person sees their own through the signed link
that "exportar" brings them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import DefinitionError, NotFoundError, Relevo
from relevo.apps.expenses import export, links, texts
from relevo.apps.expenses.records import Records, Row, User
from relevo.apps.expenses.rules import REGIONS, SOMEWHERE, Region, after, before, month_of
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.apps.expenses.words import REFUSALS, SPANISH
from relevo.settings import Settings
from relevo.web import Room, Web, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)

_WIDE = 190  # of a chart 480 wide, which fits a telephone


class Bar(NamedTuple):
    """One category of a chart."""

    name: str
    shown: str
    width: int
    top: int


class Part(NamedTuple):
    """A month in one currency."""

    currency: str
    total: str
    bars: list[Bar]


def build(relevo: Relevo) -> ASGIApp:
    """The pages of staff."""

    async def overview(request: Request) -> Response:
        people = await relevo.use(Records).users()
        return room.page(request, "people.html", people=people)

    async def month(request: Request) -> Response:
        user = await _user(relevo, request.path_params["user"])
        asked = request.query_params.get("month", "")
        today = _region(user).day(relevo.clock.now())
        first = month_of(asked) if asked else today.replace(day=1)
        if first is None:
            raise DefinitionError("Write a month like 2026-03, of the years 2000 to 2100.")
        rows = await relevo.use(Records).rows(user.id, first, after(first))
        path = f"/expenses/{user.id}"
        return _answer(request, user, rows, first, after(first), path, {"month": f"{first:%Y-%m}"})

    return site([Route("/expenses", overview), Route("/expenses/{user}", month)], room)


def build_mine(relevo: Relevo) -> ASGIApp:
    """The page of whoever holds a link."""

    async def mine(request: Request) -> Response:
        token = request.query_params.get("link", "")
        link = links.read(relevo.use(ExpensesSettings).link_key, token, relevo.clock.now())
        if link is None:
            raise NotFoundError("This link is over, or was never ours: ask for a new one.")
        user = await _user(relevo, link.user)
        rows = await relevo.use(Records).rows(user.id, link.since, link.until)
        return _answer(request, user, rows, link.since, link.until, "/my/expenses", {"link": token})

    web = Web(relevo, Settings.read())
    web.menu = []  # whoever comes by a link has one page
    return web.open(site([Route("/my/expenses", mine)], room))


async def _user(relevo: Relevo, id: str) -> User:
    user = await relevo.use(Records).user(id[:64])
    if user is None:
        raise NotFoundError("There is no such person.")
    return user


def _region(user: User) -> Region:
    return REGIONS.get(user.country, SOMEWHERE)


def _answer(
    request: Request,
    user: User,
    rows: Sequence[Row],
    since: date,
    until: date,
    path: str,
    query: dict[str, str],
) -> Response:
    language = room.words(request).language
    match request.query_params.get("format", ""):
        case "csv":
            return _file(export.to_csv(rows, user.language), export.CSV_TYPE, f"{since}.csv")
        case "xlsx":
            return _file(export.to_excel(rows, user.language), export.EXCEL_TYPE, f"{since}.xlsx")
        case _:
            pass
    region = _region(user)

    def money(row: Row) -> str:
        return texts.money(row.cents, row.currency, region.decimal)

    def category(row: Row) -> str:
        return texts.category(row.category, language)

    is_month = until == after(since) and since.day == 1
    return room.page(
        request,
        "month.html",
        who=user,
        rows=rows,
        parts=_parts(rows, language, region.decimal),
        money=money,
        category=category,
        when=texts.month(since, language) if is_month else f"{since} – {until}",
        before=f"{before(since):%Y-%m}",
        behind=f"{after(since):%Y-%m}",
        path=path,
        query=query,
        is_staff="month" in query,
    )


def _parts(rows: Sequence[Row], language: str, decimal: str) -> list[Part]:
    sums: dict[str, dict[str, int]] = {}
    for row in rows:
        of = sums.setdefault(row.currency, {})
        of[row.category] = of.get(row.category, 0) + row.cents
    parts: list[Part] = []
    for currency, of in sorted(sums.items()):
        most = max(of.values())
        ranked = sorted(of.items(), key=lambda each: -each[1])
        bars = [
            Bar(
                texts.category(slug, language),
                texts.money(cents, currency, decimal),
                max(2, cents * _WIDE // most),
                at * 30,
            )
            for at, (slug, cents) in enumerate(ranked)
        ]
        parts.append(Part(currency, texts.money(sum(of.values()), currency, decimal), bars))
    return parts


def _file(data: bytes, content_type: str, name: str) -> Response:
    headers: dict[str, Any] = {
        "content-disposition": f'attachment; filename="expenses-{name}"',
        "cache-control": "no-store",
        "x-content-type-options": "nosniff",
    }
    return Response(data, 200, headers, media_type=content_type)
