"""relevo expenses: who writes, a person's month, how a text would be read, and writing one."""

from __future__ import annotations

import importlib
import os
import re
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from relevo.cli.terminal import OK, PROBLEM, Terminal, Verbs
from relevo.errors import DefinitionError, NotFoundError

SENDER = "5491100000001"

group = Verbs("WhatsApp expenses: people, months, and the rules.", name="expenses")


@group.verb("read")
async def read(
    terminal: Terminal,
    text: Annotated[str, typer.Argument(help="A message, such as 'pan 500'.")],
    country: Annotated[str, typer.Option("--country", help="Where it is written.")] = "AR",
) -> int:
    """Show how the rules read a text, and write nothing; exit 1 when they would ask back."""
    from relevo.apps.expenses import rules

    if country not in rules.REGIONS:
        raise DefinitionError(f"no country {country!r:.20}: {', '.join(sorted(rules.REGIONS))}")
    region = rules.REGIONS[country]
    found = rules.read(_utf8(text), region.day(datetime.now(UTC)), region)
    if isinstance(found, rules.Several):
        spents = [_fields(spent) for spent in found.spents]
        terminal.show(
            {"is": "several", "expenses": spents},
            lambda: "\n".join(map(_numbered, range(1, len(spents) + 1), spents)),
        )
        return OK
    shown = {"is": type(found).__name__.lower()} | _fields(found)
    terminal.show(shown, lambda: "\n".join(f"{name}: {value}" for name, value in shown.items()))
    return PROBLEM if isinstance(found, rules.Question) else OK


def _fields(found: Any) -> dict[str, str]:
    return {each.name: str(getattr(found, each.name)) for each in fields(found)}


def _numbered(number: int, spent: dict[str, str]) -> str:
    told = (spent["amount"] + " " + spent["currency"], spent["description"], spent["category"])
    return f"{number}: {' · '.join(told)}"


def _utf8(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DefinitionError("the message is not text in UTF-8") from error
    return text


@group.verb("say")
async def say_to(
    terminal: Terminal,
    text: Annotated[str, typer.Argument(help="A message, such as 'pan 500'.")],
    sender: Annotated[str, typer.Option("--from", help="The number that writes.")] = SENDER,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Otherwise RELEVO_HOST and RELEVO_PORT."),
    ] = None,
) -> int:
    """Write to a running relevo as WhatsApp would: signed, to /api/webhook."""
    if not re.fullmatch(r"\d{1,20}", sender, re.ASCII):
        raise DefinitionError("--from is a number in digits alone, such as 5491100000001")
    from relevo.apps.outside import Outside

    base = terminal.server(to)
    pretended = importlib.import_module("relevo.simulators")
    importlib.import_module("relevo.simulators.whatsapp")
    secret = os.environ.get("WHATSAPP_APP_SECRET") or pretended.whatsapp.APP_SECRET
    content = pretended.whatsapp.text(_utf8(text))
    value = pretended.whatsapp.message(pretended.World(), content, sender=sender)
    body = pretended.whatsapp.envelope(value)
    async with Outside("relevo", base) as door:
        headers = pretended.whatsapp.sign(body, secret)
        answer = await door.call("POST", "/api/webhook", content=body, headers=headers, acts=True)
    shown = {"message": value["messages"][0]["id"], "status": answer.status}
    terminal.show(shown, lambda: f"answered {answer.status}")
    return OK if answer.status == 200 else PROBLEM


@group.verb("ls")
async def ls(terminal: Terminal) -> int:
    """List the people who write, and how many expenses each has."""
    from relevo.apps.expenses.records import Records

    async with terminal.engine() as relevo:
        people = await Records(relevo).users()
    rows: list[dict[str, Any]] = [
        {"id": each.User.id, "name": each.User.name, "expenses": each.count} for each in people
    ]
    terminal.show(
        rows,
        lambda: (
            "\n".join(f"{row['id']}  {row['expenses']:6}  {row['name']}" for row in rows)
            or "nobody has written yet"
        ),
    )
    return OK


@group.verb("month")
async def month(
    terminal: Terminal,
    person: Annotated[str, typer.Argument(help="An id of `relevo expenses ls`.")],
    month: Annotated[
        str, typer.Option("--month", metavar="YYYY-MM", help="This one unless told otherwise.")
    ] = "",
) -> int:
    """Show a person's month, expense by expense."""
    from relevo.apps.expenses.records import Records
    from relevo.apps.expenses.rules import HOME, REGIONS, after, month_of

    first = month_of(month)
    if month and first is None:
        raise DefinitionError(
            f"{month!r:.20} is not a month: write one like 2026-03, of the years 2000 to 2100"
        )
    async with terminal.engine() as relevo:
        records = Records(relevo)
        user = await records.user(person)
        if user is None:
            raise NotFoundError("there is no such person; see `relevo expenses ls`")
        today = REGIONS.get(user.country, HOME).day(relevo.clock.now())
        day = first or today.replace(day=1)
        found = await records.rows(person, day, after(day))
    rows = [row._asdict() | {"spent_on": row.spent_on.isoformat()} for row in found]
    terminal.show(rows, lambda: "\n".join(map(_line, rows)) or "nothing was spent")
    return OK


def _line(row: dict[str, Any]) -> str:
    amount = f"{row['cents'] / 100:,.2f} {row['currency']}"
    return f"{row['spent_on']}  {amount:>20}  {row['category']:14}  {row['description']}"
