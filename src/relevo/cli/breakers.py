"""relevo breakers: list, show, open, close, probe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from relevo.cli.changing import ForOption, UntilOption, changes_table, moment_of, told
from relevo.cli.tables import ago, at, fields, short, table
from relevo.cli.terminal import NoteOption, Terminal, Verbs
from relevo.desk import BreakerView, Override, view

if TYPE_CHECKING:
    from rich.console import RenderableType

group = Verbs("Breakers: list, show, open, close, probe.", name="breakers")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Such as supplier:28.")]


@group.verb("ls")
async def ls(terminal: Terminal) -> None:
    """List the breakers that were ever troubled, open ones first."""
    async with terminal.desk() as desk:
        breakers = await desk.breakers()
        changes = [each for each in await desk.changes() if each.what == "breaker"]
    shown = [{**view(each), "changed": told(changes, each.name, "breaker")} for each in breakers]
    terminal.show(shown, lambda: breakers_text(breakers, changes))


@group.verb("show")
async def show(terminal: Terminal, name: Name) -> None:
    """Show one breaker with its last turns."""
    async with terminal.desk() as desk:
        seen = await desk.breaker(name)
        changed = told(await desk.changes(), name, "breaker")
    terminal.show({**view(seen), "changed": changed}, lambda: breaker_text(seen, changed))


@group.verb("open")
async def open_(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Stop calling: jobs are parked until it is closed, or a probe after the cool-down works."""
    await _turn(terminal, name, "open", note)


@group.verb("close")
async def close(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Call again, and let the parked jobs go, spread over time."""
    await _turn(terminal, name, "close", note)


@group.verb("probe")
async def probe(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Let one job try now instead of after the cool-down."""
    await _turn(terminal, name, "probe", note)


@group.verb("set")
async def set_(
    terminal: Terminal,
    name: Name,
    failures: Annotated[int | None, typer.Option(help="So many in a row open it.")] = None,
    window: Annotated[str | None, typer.Option(metavar="60s", help="Within so long.")] = None,
    cooldown: Annotated[
        str | None, typer.Option(metavar="30s", help="After which a probe may try.")
    ] = None,
    cap: Annotated[str | None, typer.Option(metavar="10m", help="The longest of these.")] = None,
    release: Annotated[
        int | None, typer.Option(help="Jobs a second that go when it closes.")
    ] = None,
    slow: Annotated[
        str | None, typer.Option(metavar="5s", help="A call that takes longer is a failure.")
    ] = None,
    until: UntilOption = None,
    lasting: ForOption = None,
    note: NoteOption = "",
) -> None:
    """Change when a breaker opens, and for how long, while workers run."""
    async with terminal.desk() as desk:
        made = await desk.set_breaker(
            name,
            terminal.person,
            note,
            until=moment_of(until),
            lasting=lasting,
            failures=failures,
            window=window,
            cooldown=cooldown,
            cap=cap,
            release=release,
            slow=slow,
        )
    terminal.show(made, lambda: f"{name}: {made}")


@group.verb("unset")
async def unset(terminal: Terminal, name: Name, note: NoteOption = "") -> None:
    """Take back what was changed of a breaker: it opens as its commands say again."""
    async with terminal.desk() as desk:
        changed = await desk.unset("breaker", name, terminal.person, note)
    said = "as the code says" if changed else "nothing was changed"
    terminal.show({"name": name, "changed": changed}, lambda: f"{name}: {said}")


async def _turn(
    terminal: Terminal, name: str, verb: Literal["open", "close", "probe"], note: str
) -> None:
    async with terminal.desk() as desk:
        seen = await desk.turn_breaker(name, verb, terminal.person, note)
    said = {
        "open": f"{name} is open",
        "close": f"{name} is closed, and what it held back goes on",
        "probe": f"{name} is {seen.circuit.state}; one job tries",
    }
    terminal.show(seen, lambda: said[verb])


def breakers_text(breakers: list[BreakerView], changes: list[Override]) -> RenderableType:
    from rich.console import Group

    listed = breakers_table(breakers)
    return Group(listed, "", changes_table(changes)) if changes else listed


def breakers_table(breakers: list[BreakerView]) -> RenderableType:
    return table(
        ("breaker", "state", "parked", "next try", "failures", "last turn", "why"),
        (
            (
                each.name,
                _state(each),
                each.parked,
                ago(each.circuit.until),
                each.circuit.failures,
                ago(each.circuit.history[-1].at) if each.circuit.history else None,
                short(each.circuit.history[-1].why, 80) if each.circuit.history else None,
            )
            for each in breakers
        ),
    )


def _state(breaker: BreakerView) -> str:
    said = breaker.circuit.state.replace("_", " ")
    return f"{said}, implied" if breaker.circuit.is_implied else said


def breaker_text(breaker: BreakerView, changed: str | None) -> RenderableType:
    from rich.console import Group

    circuit = breaker.circuit
    head = fields(
        (
            ("breaker", breaker.name),
            ("state", _state(breaker)),
            ("parked", breaker.parked),
            ("failures in a row", circuit.failures),
            ("slow calls of these", circuit.slow or None),
            ("changed", changed),
            ("next try", at(circuit.until)),
            ("cool-down", f"{circuit.cooldown / 1000:g}s" if circuit.cooldown else None),
            ("probing job", circuit.probe),
            ("implied", "its commands have no breaker=" if circuit.is_implied else None),
        )
    )
    turns = table(
        ("at", "state", "why"),
        ((at(turn.at), turn.state, short(turn.why, 160)) for turn in circuit.history),
    )
    return Group(head, "", turns)
