"""relevo people, relevo tokens: who may log in, and with what programs come."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli.loading import come_along
from relevo.cli.tables import ago, at, table
from relevo.cli.terminal import AsIs, Terminal, Verbs, read_stdin
from relevo.clock import SystemClock
from relevo.desk import Role
from relevo.errors import DefinitionError, SettingsError

if TYPE_CHECKING:
    from relevo.web.people import People

people = Verbs("People who may log in: add, change, list, remove.", name="people")
tokens = Verbs("API tokens for programs: add, list, remove.", name="tokens")

Name = Annotated[str, typer.Argument(metavar="NAME", help="A person's name, or a token's.")]
RoleOption = Annotated[
    Role, typer.Option("--role", help="viewer looks, operator acts, admin edits and drains.")
]
Apps = Annotated[
    list[str] | None,
    typer.Option("--app", metavar="APP", help="Only the jobs of this app. Repeatable."),
]


@people.verb("add")
async def add(
    terminal: Terminal, name: Name, role: RoleOption = Role.VIEWER, app: Apps = None
) -> None:
    """Let someone in; the password is asked for, or read from standard input."""
    async with _people(terminal) as kept:
        await _check_apps(terminal, kept, app)
        password = _password()
        added = await kept.add(name, password, role, apps=tuple(app or ()), by=terminal.person.name)
    shown = {"name": added.name, "role": added.role, "apps": added.apps}
    terminal.show(shown, lambda: f"{added.name} may log in as {added.role}")


@people.verb("passwd")
async def passwd(terminal: Terminal, name: Name) -> None:
    """Give a person another password; their sessions end at once."""
    password = _password()
    async with _people(terminal) as kept:
        await kept.change_password(name, password, by=terminal.person.name)
    terminal.show({"changed": name}, lambda: f"{name} has another password, and no session")


@people.verb("ls")
async def ls(terminal: Terminal) -> None:
    """List who may log in besides admin, whose password is RELEVO_ADMIN_PASSWORD."""
    async with _people(terminal) as kept:
        everyone = await kept.all()
    terminal.show(
        everyone,
        lambda: table(
            ("name", "role", "apps", "since", "last seen"),
            (
                (
                    each.name,
                    each.role,
                    " ".join(each.apps) or "all",
                    ago(each.created_at),
                    _seen(each.seen_at),
                )
                for each in everyone
            ),
        ),
    )


@people.verb("rm")
async def rm(terminal: Terminal, name: Name) -> None:
    """Send someone away; their sessions end at once."""
    async with _people(terminal) as kept:
        await kept.remove(name, by=terminal.person.name)
    terminal.show({"removed": name}, lambda: f"{name} may not log in any more")


@tokens.verb("add")
async def add_token(
    terminal: Terminal,
    name: Name,
    role: RoleOption = Role.VIEWER,
    app: Apps = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="90d", help="How long it is good.")
    ] = "90d",
    forever: Annotated[bool, typer.Option("--forever", help="Good until it is removed.")] = False,
) -> None:
    """Make a token and show it, this once: only its hash is kept."""
    async with _people(terminal) as kept:
        await _check_apps(terminal, kept, app)
        token, record = await kept.add_token(
            name,
            role,
            apps=tuple(app or ()),
            expires=None if forever else expires,
            by=terminal.person.name,
        )
    terminal.show({"token": token, "record": record}, lambda: AsIs(token))
    terminal.warn(f"{record.role} until {at(record.expires_at) or 'it is removed'}; keep it safe")


@tokens.verb("ls")
async def ls_tokens(terminal: Terminal) -> None:
    """List the tokens that are good, without the tokens themselves."""
    async with _people(terminal) as kept:
        every = await kept.tokens()
    terminal.show(
        every,
        lambda: table(
            ("name", "id", "role", "apps", "since", "until", "made by", "last used"),
            (
                (
                    each.name,
                    each.id,
                    each.role,
                    " ".join(each.apps) or "all",
                    ago(each.created_at),
                    at(each.expires_at),
                    each.by,
                    _seen(each.seen_at),
                )
                for each in every
            ),
        ),
    )


@tokens.verb("rm")
async def rm_token(terminal: Terminal, name: Name) -> None:
    """Make a token worthless, by its name or id."""
    async with _people(terminal) as kept:
        await kept.remove_token(name, by=terminal.person.name)
    terminal.show({"removed": name}, lambda: f"the token {name} is worth nothing any more")


@asynccontextmanager
async def _people(terminal: Terminal) -> AsyncGenerator[People]:
    try:
        from relevo.web.people import People
    except ImportError as error:
        raise SettingsError(f"{error}: pip install 'relevo[web]'") from error
    async with terminal.desk() as desk:
        yield People(desk.store, SystemClock())


async def _check_apps(terminal: Terminal, kept: People, apps: list[str] | None) -> None:
    """DefinitionError for an app that neither the settings, the store nor relevo knows."""
    if not apps:
        return
    known = {each.name for each in terminal.apps()} | set(come_along()) | await kept.apps()
    for name in apps:
        if name not in known:
            raise DefinitionError(
                f"no app is called {name!r:.80}: there are {', '.join(sorted(known))}. An app of "
                "your own is known when RELEVO_APPS names it, or when it has a queue"
            )


def _seen(at: int | None) -> str:
    return ago(at) or "never"


def _password() -> str:
    if sys.stdin.isatty():
        return typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    lines = read_stdin(2_000).splitlines()
    if len(lines) != 1:
        raise DefinitionError("pipe the password in as one line, or run this on a terminal")
    return lines[0]
