"""relevo effects: what was asked of the world outside, and how sure we are of it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from relevo.cli.jobs import Id, effects_table
from relevo.cli.tables import at, data, fields
from relevo.cli.terminal import (
    OK,
    PROBLEM,
    Cursor,
    Limit,
    NoteOption,
    Reveal,
    Terminal,
    Verbs,
    read_stdin,
)
from relevo.errors import DefinitionError
from relevo.store import EffectState

group = Verbs("Effects outside: list, show, confirm, deny.", name="effects")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The effect's name in the job.")]


@group.verb("ls")
async def ls(
    terminal: Terminal,
    state: Annotated[list[EffectState] | None, typer.Option("--state", help="Repeatable.")] = None,
    job: Annotated[
        str | None, typer.Option("--job", metavar="ID", help="Those of one job.")
    ] = None,
    text: Annotated[str | None, typer.Option("--text", help="Found in key or result.")] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    reveal: Reveal = False,
) -> None:
    """List the effect ledger, newest first."""
    async with terminal.desk() as desk:
        effects, more = await desk.effects(
            job=job, states=frozenset(state or ()), text=text, cursor=cursor, limit=limit
        )
        if not reveal:
            effects = [desk.masked_effect(effect) for effect in effects]
    terminal.show({"effects": effects, "cursor": more}, lambda: effects_table(effects))
    if more and not terminal.json:
        terminal.warn(f"there are more: --cursor {more}")


@group.verb("show")
async def show(terminal: Terminal, id: Id, name: Name, reveal: Reveal = False) -> None:
    """Show one effect of a job."""
    async with terminal.desk() as desk:
        effect = await desk.effect(id, name)
        shown = effect if reveal else desk.masked_effect(effect)
    terminal.show(
        shown,
        lambda: fields(
            (
                ("job", shown.job),
                ("queue", shown.queue),
                ("effect", shown.name),
                ("state", shown.state),
                ("key", shown.key),
                ("attempt", shown.attempt),
                ("result", data(shown.result)),
                ("error", shown.error),
                ("intended", at(shown.created_at)),
                ("updated", at(shown.updated_at)),
                ("decided by", shown.decided_by),
            )
        ),
    )


@group.verb("confirm")
async def confirm(
    terminal: Terminal,
    id: Id,
    name: Name,
    result: Annotated[
        str | None, typer.Option("--result", metavar="JSON", help="What came of it; - reads it.")
    ] = None,
    code: Annotated[
        str | None, typer.Option("--code", metavar="TEXT", help="The same, if it is just a text.")
    ] = None,
    anyway: Annotated[
        bool,
        typer.Option("--anyway", help="Even if the call's type= or earlier results say otherwise."),
    ] = False,
    note: NoteOption = "",
) -> int:
    """It did happen: write its result down and let the job go on from there."""
    value = _result(result, code)
    async with terminal.desk() as desk:
        retried = await desk.confirm_effect(id, name, value, terminal.person, note, anyway=anyway)
        effect = await desk.effect(id, name)
    return _decided(terminal, effect.state, name, retried)


@group.verb("deny")
async def deny(
    terminal: Terminal,
    id: Id,
    name: Name,
    fresh_key: Annotated[
        bool,
        typer.Option(
            "--fresh-key", help="Ask with another key: the provider repeats its answer to this one."
        ),
    ] = False,
    note: NoteOption = "",
) -> int:
    """It did not happen: let the job go on and ask for it again."""
    async with terminal.desk() as desk:
        retried = await desk.deny_effect(id, name, terminal.person, note, fresh_key=fresh_key)
        effect = await desk.effect(id, name)
    return _decided(terminal, effect.state, name, retried)


def _result(result: str | None, code: str | None) -> Any:
    # 12345 as JSON is a number, as a confirmation code it is text: the person must say which.
    if (result is None) == (code is None):
        raise DefinitionError("give either --result JSON or --code TEXT")
    if result is None:
        return code
    try:
        return msgspec.json.decode(read_stdin() if result == "-" else result)
    except msgspec.DecodeError as error:
        raise DefinitionError("--result is not JSON; a plain text goes into --code") from error


def _decided(terminal: Terminal, state: EffectState, name: str, retried: bool) -> int:
    if not retried and not terminal.json:
        terminal.warn("the job could not be retried: see `relevo jobs show`")
    again = ", and its job goes on" if retried else ""
    shown = {"effect": name, "state": state, "retried": retried}
    terminal.show(shown, lambda: f"'{name}' is {state}{again}")
    return OK if retried else PROBLEM
