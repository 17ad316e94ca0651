"""relevo cars: reservations as support sees them, and what support may do about one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.cli.terminal import NoteOption, Terminal, Verbs, Yes, clean

if TYPE_CHECKING:
    from relevo.apps.cars.support import Case, Support

group = Verbs(
    "Car rental's reservations: list, show, retry, confirm, cancel, refund, refunded.", name="cars"
)

Code = Annotated[str, typer.Argument(metavar="CODE", help="As in RES-7K2M9QXW4T.")]


@asynccontextmanager
async def _support(terminal: Terminal) -> AsyncGenerator[Support]:
    from relevo.apps.cars.records import Records
    from relevo.apps.cars.settings import powers
    from relevo.apps.cars.support import Support

    async with terminal.engine() as relevo:
        yield Support(Records(relevo), relevo.desk, *powers())


@group.verb("ls")
async def ls(
    terminal: Terminal,
    status: Annotated[
        str | None,
        typer.Option("--status", help="PENDING, PAID, CONFIRMED, CANCELLED, STUCK or TO_REFUND."),
    ] = None,
    text: Annotated[str, typer.Option("--text", help="A code, e-mail or supplier's number.")] = "",
) -> None:
    """List reservations, newest first."""
    async with _support(terminal) as support:
        found = await support.ls(status=status, text=text)
        orders = await support.orders([each.code for each in found])
    shown = [
        {
            "code": each.code,
            "status": each.status,
            "supplier_id": each.supplier_id,
            "supplier_reservation_code": each.supplier_reservation_code,
            "order": orders.get(each.code, ("", ""))[0] or None,
            "reason": orders.get(each.code, ("", ""))[1],
            "created_at": each.created_at.isoformat(),
        }
        for each in found
    ]

    def lines() -> str:
        return "\n".join(
            f"{each['code']}  {each['status']:<9}  {each['supplier_id']:>4}  "
            f"{each['supplier_reservation_code'] or '-':<12}  {each['order'] or '-':<10}  "
            f"{each['created_at']}  {clean(str(each['reason']))[:120]}".rstrip()
            for each in shown
        )

    terminal.show({"reservations": shown}, lambda: lines() or "nothing here")


@group.verb("show")
async def show(terminal: Terminal, code: Code) -> None:
    """Show a reservation, its history, and every call of its supplier."""
    async with _support(terminal) as support:
        case = await support.show(code)
    _print(terminal, case)


@group.verb("retry")
async def retry(
    terminal: Terminal,
    code: Code,
    not_booked: Annotated[
        bool, typer.Option("--not-booked", help="I have looked: the supplier does not have it.")
    ] = False,
    note: NoteOption = "",
) -> None:
    """Have the supplier asked again."""
    async with _support(terminal) as support:
        case = await support.retry(code, terminal.person, note, not_booked=not_booked)
    _print(terminal, case)


@group.verb("confirm")
async def confirm(
    terminal: Terminal,
    code: Code,
    confirmation: Annotated[
        str, typer.Option("--confirmation", metavar="NUMBER", help="The supplier's number.")
    ],
    note: NoteOption = "",
) -> None:
    """The supplier has the booking: confirm the reservation with its number."""
    async with _support(terminal) as support:
        case = await support.confirm(code, confirmation, terminal.person, note)
    _print(terminal, case)


@group.verb("cancel")
async def cancel(
    terminal: Terminal,
    code: Code,
    at_supplier: Annotated[
        bool, typer.Option("--at-supplier", help="Cancel the car at the supplier too.")
    ] = False,
    not_booked: Annotated[
        bool, typer.Option("--not-booked", help="I have looked: the supplier does not have it.")
    ] = False,
    confirmation: Annotated[
        str, typer.Option("--confirmation", metavar="NUMBER", help="The supplier's number.")
    ] = "",
    note: NoteOption = "",
    yes: Yes = False,
) -> None:
    """Give a reservation up; one that was paid is marked for a refund.

    Where the supplier may hold the car, say --at-supplier to cancel it there too, or --not-booked.
    """
    terminal.ask(f"Cancel {code}?", yes)
    async with _support(terminal) as support:
        case = await support.cancel(
            code,
            terminal.person,
            note,
            at_supplier=at_supplier,
            not_booked=not_booked,
            number=confirmation,
        )
    _print(terminal, case)


@group.verb("refund")
async def refund(terminal: Terminal, code: Code, note: NoteOption = "", yes: Yes = False) -> None:
    """Give the customer's money back at Stripe, once; a worker does it."""
    terminal.ask(f"Give the money of {code} back?", yes)
    async with _support(terminal) as support:
        case = await support.refund(code, terminal.person, note)
    _print(terminal, case)


@group.verb("refunded")
async def refunded(terminal: Terminal, code: Code, note: NoteOption = "") -> None:
    """The money was given back by hand: take it off the list of TO_REFUND."""
    async with _support(terminal) as support:
        case = await support.refunded(code, terminal.person, note)
    _print(terminal, case)


def _print(terminal: Terminal, case: Case) -> None:
    kept = case.reservation
    history = [
        {"at": each.at.isoformat(), "what": each.what, "detail": each.detail}
        for each in case.history
    ]
    requests = [
        {
            "at": each.at.isoformat(),
            "verb": each.verb,
            "attempt": each.attempt,
            "outcome": each.outcome,
            "detail": each.detail,
            "milliseconds": each.milliseconds,
        }
        for each in case.requests
    ]
    job = None if case.job is None else {"id": case.job.id, "state": case.job.state}
    shown: dict[str, Any] = {
        "code": kept.code,
        "status": kept.status,
        "supplier_id": kept.supplier_id,
        "supplier_reservation_code": kept.supplier_reservation_code,
        "job": job,
        "advice": case.advice,
        "history": history,
        "requests": requests,
    }

    def lines() -> str:
        state = "none" if case.job is None else f"{case.job.state} ({case.job.id})"
        head = f"{kept.code}  {kept.status}  supplier {kept.supplier_id}  order: {state}"
        advice = [f"next: {case.advice}"] if case.advice else []
        told = [f"{each['at']}  {each['what']:<16}  {each['detail']}" for each in history]
        called = [
            f"{each['at']}  {each['verb']:<16}  attempt {each['attempt']}, {each['outcome']} "
            f"in {each['milliseconds']:,} ms  {each['detail']}"
            for each in requests
        ]
        asked = ["", "the supplier was called:", *called] if called else []
        return clean("\n".join([head, *advice, *told, *asked]))

    terminal.show(shown, lines)
