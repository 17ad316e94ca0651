"""Expenses for people: who writes, one person's month with its chart, and the export.

Staff see everybody behind the dashboard's login; a person sees and changes their own through the
signed link that "mis gastos" or "exportar" brings them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from relevo import DefinitionError, NotFoundError, Relevo
from relevo.apps.expenses import export, links, texts
from relevo.apps.expenses.links import Link
from relevo.apps.expenses.records import Edit, Records, Row, User
from relevo.apps.expenses.rules import (
    CATEGORIES,
    FIRST_YEAR,
    REGIONS,
    SOMEWHERE,
    Region,
    after,
    before,
    month_of,
)
from relevo.apps.expenses.rules.money import CODES
from relevo.apps.expenses.rules.numbers import MOST, read_digits
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.apps.expenses.words import REFUSALS, SPANISH
from relevo.settings import Settings
from relevo.web import Form, Room, Web, form, go, site

room = Room(Path(__file__).parent / "templates", SPANISH, REFUSALS)

MINE = "/my/expenses"
_KEPT = ("link", "month")
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
        today = _region(user).day(relevo.clock.now())
        first = _month(request) or today.replace(day=1)
        rows = await relevo.use(Records).rows(user.id, first, after(first))
        path = f"/expenses/{user.id}"
        return _answer(request, user, rows, first, after(first), path)

    return site([Route("/expenses", overview), Route("/expenses/{user}", month)], room)


def build_mine(relevo: Relevo) -> ASGIApp:
    """The page of whoever holds a link."""

    async def opened(request: Request) -> tuple[Link, User]:
        token = request.query_params.get("link", "")
        link = links.read(relevo.use(ExpensesSettings).link_key, token, relevo.clock.now())
        if link is None:
            raise NotFoundError("This link is over, or was never ours: ask for a new one.")
        return link, await _user(relevo, link.user)

    async def mine(request: Request) -> Response:
        link, user = await opened(request)
        first = _month(request)
        since, until = (link.since, link.until) if first is None else (first, after(first))
        rows = await relevo.use(Records).rows(user.id, since, until)
        return _answer(request, user, rows, since, until, MINE)

    async def change(request: Request) -> Response:
        _, user = await opened(request)
        filled = await form(request)
        is_gone = filled["act"] == "delete"
        region = _region(user)
        edit = None if is_gone else _edit(filled, region, region.day(relevo.clock.now()))
        if not await relevo.use(Records).change(user.id, request.path_params["id"][:64], edit):
            raise NotFoundError("There is no such expense.")
        kept = {key: request.query_params[key] for key in _KEPT if key in request.query_params}
        said = room.words(request)("Deleted." if is_gone else "Saved.")
        return go(request, f"{MINE}?{urlencode(kept)}", said)

    web = Web(relevo, Settings.read())
    web.menu = []  # whoever comes by a link has one page
    change_one = Route(MINE + "/{id}", change, methods=["POST"])
    return web.open(site([Route(MINE, mine), change_one], room))


def _month(request: Request) -> date | None:
    """The month that is asked for; None when none is."""
    asked = request.query_params.get("month", "")
    first = month_of(asked)
    if asked and first is None:
        raise DefinitionError("Write a month like 2026-03, of the years 2000 to 2100.")
    return first


def _edit(filled: Form, region: Region, today: date) -> Edit:
    """What a form makes of an expense, checked like a message."""
    amount = read_digits(filled["amount"].strip(), region.grouping)
    if amount is None or not 0 < amount <= MOST:
        raise DefinitionError("Write an amount in digits, such as 1234.50.")
    try:
        day = date.fromisoformat(filled["day"])
    except ValueError:
        day = date.min
    if not date(FIRST_YEAR, 1, 1) <= day <= today:
        raise DefinitionError("Choose a day that has come, from the year 2000 on.")
    currency, category = filled["currency"], filled["category"]
    if currency not in CODES or category not in CATEGORIES:
        raise DefinitionError("Choose a currency and a category of those in the list.")
    shown = "".join(each if each.isprintable() else " " for each in filled["description"])
    return Edit(int(amount * 100), currency, category, shown.strip()[:200], day)


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

    def plain(row: Row) -> str:
        return f"{row.cents // 100}{region.decimal}{row.cents % 100:02}"

    def category(row: Row) -> str:
        return texts.category(row.category, language)

    is_month = until == after(since) and since.day == 1
    token = request.query_params.get("link", "") if path == MINE else ""
    query = {"link": token} if token else {}
    here = query | ({"month": f"{since:%Y-%m}"} if is_month else {})
    chosen = request.query_params.get("edit", "") if token else ""
    return room.page(
        request,
        "month.html",
        who=user,
        rows=rows,
        parts=_parts(rows, language, region.decimal),
        money=money,
        category=category,
        when=texts.month(since, language) if is_month else f"{since} – {until}",
        before=query | {"month": f"{before(since):%Y-%m}"},
        behind=query | {"month": f"{after(since):%Y-%m}"},
        path=path,
        here=here,
        is_mine=bool(token),
        edited=next((row for row in rows if row.id == chosen), None),
        categories=sorted((texts.category(slug, language), slug) for slug in CATEGORIES),
        currencies=sorted(CODES),
        plain=plain,
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
