"""relevo new: start a module in the shape that every module has."""

from __future__ import annotations

import importlib.util
import keyword
import re
import sys
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from relevo.cli.terminal import Terminal, Verbs

NAME_MAX = 30

_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*", re.ASCII)
_APP = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
_TAKEN = {"relevo", "test", "tests", "conftest"}

_NAME_HELP = "What the module is called: lower-case letters, digits and '_'."
_APP_HELP = "The app that will list it; otherwise the module is an app of its own."


group = Verbs("Start something new: a module.", name="new")


@group.verb("module")
async def module(
    terminal: Terminal,
    name: Annotated[str, typer.Argument(help=_NAME_HELP)],
    app: Annotated[str | None, typer.Option("--app", metavar="APP", help=_APP_HELP)] = None,
) -> None:
    """Write a working module here: events, listeners, queues, workers, and a test."""
    _check(name, app)
    wrote = _write(name, app)
    terminal.show({"wrote": wrote}, lambda: "\n".join(f"wrote {path}" for path in wrote))
    terminal.warn(_next(name, app))


def _write(name: str, app: str | None) -> list[str]:
    files = render(name, app)
    if not Path("tests").exists():
        files[Path("tests/__init__.py")] = f'"""The tests of {name}."""\n'
    for path in (Path(name), *files):
        if path.exists() or path.is_symlink():
            raise typer.BadParameter(f"{path} is there already, and nothing is overwritten")
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    return [path.as_posix() for path in files]


def _check(name: str, app: str | None) -> None:
    if not _NAME.fullmatch(name) or len(name) > NAME_MAX:
        raise typer.BadParameter(
            f"{name!r:.60} cannot name a module: write lower-case letters, digits and '_', "
            f"{NAME_MAX} at most, such as 'welcome_email'"
        )
    is_known = name in sys.stdlib_module_names or importlib.util.find_spec(name) is not None
    if name in _TAKEN or keyword.iskeyword(name) or (is_known and not Path(name).exists()):
        raise typer.BadParameter(f"'{name}' is taken: a package of that name would hide another")
    if app is not None and (not _APP.fullmatch(app) or len(app) > NAME_MAX):
        raise typer.BadParameter(
            f"{app!r:.60} cannot name an app: write lower-case letters, digits, '-' and '_'",
            param_hint="--app",
        )


def _next(name: str, app: str | None) -> str:
    if app is None:
        return f"next: pytest tests/test_{name}.py, then relevo work --app {name}:app"
    return (
        f"next: pytest tests/test_{name}.py, then list it in its app: "
        f'App("{app}", workers=[*{name}.WORKERS], listeners=[*{name}.LISTENERS])'
    )


def render(name: str, app: str | None) -> dict[Path, str]:
    """The files of a module, by their path."""
    slug = name.replace("_", "-")
    words = {
        "name": name,
        "app": app or name,
        "event": slug,
        "queue": f"{app}:{slug}:carry-out" if app else f"{name}:requests:carry-out",
        "apps": "" if app is None else _APP_IN_TEST.format(app),
        "wiring": "app" if app is None else "LISTENERS, WORKERS",
    }
    templates = {
        Path(name, "__init__.py"): _APP_ITSELF if app is None else _PART_OF_APP,
        Path(name, "events.py"): _EVENTS,
        Path(name, "queues.py"): _QUEUES,
        Path(name, "listeners.py"): _LISTENERS,
        Path(name, "workers.py"): _WORKERS,
        Path("tests", f"test_{name}.py"): _TEST,
    }
    return {path: Template(text).substitute(words) for path, text in templates.items()}


_APP_ITSELF = '''\
"""$name, its table of contents: who carries out what, and who reacts."""

from relevo import App

from . import listeners, workers

app = App(
    "$app",
    workers=[workers.carry_out],
    listeners=[listeners.order],
)
'''

_PART_OF_APP = '''\
"""$name, its table of contents. Its app lists it:

App(
    "$app",
    workers=[*$name.WORKERS],
    listeners=[*$name.LISTENERS],
)
"""

from . import listeners, workers

WORKERS = [workers.carry_out]
LISTENERS = [listeners.order]
'''

_EVENTS = '''\
"""Facts: what has happened, in the past tense. Any number of listeners may react."""

from relevo import Event


class Requested(Event, name="$event.requested"):
    request_id: str


class Completed(Event, name="$event.completed"):
    request_id: str
    reference: str
'''

_QUEUES = '''\
"""Orders: what is to be done, in the imperative. One worker carries each of them out."""

from relevo import Command, exponential


class CarryOut(
    Command,
    queue="$queue",
    attempts=5,
    backoff=exponential("15s", cap="10m"),
    timeout="45s",
    key="carry-out:{request_id}",
    unique="forever",
):
    request_id: str
'''

_LISTENERS = '''\
"""Reactions to facts, one function each. A listener mostly enqueues, and is quick."""

from relevo import Context

from .events import Requested
from .queues import CarryOut


async def order(fact: Requested, ctx: Context) -> None:
    await ctx.enqueue(CarryOut(fact.request_id))
'''

_WORKERS = '''\
"""The work itself, one function per command."""

from relevo import Context

from .events import Completed
from .queues import CarryOut


async def carry_out(order: CarryOut, ctx: Context) -> None:
    # The effect first, with a key by which the provider knows a repeated call; then one
    # transaction for your rows, the event and the end of the job.
    reference = await ctx.once("carry-out", lambda key: call_provider(order, key))
    async with ctx.transaction():
        await ctx.publish(Completed(order.request_id, reference))


async def call_provider(order: CarryOut, key: str) -> str:
    """Stands in for the outside, and answers what the provider would."""
    return f"{order.request_id} as {key}"
'''

_APP_IN_TEST = """\
    app = App("{}", workers=WORKERS, listeners=LISTENERS)
"""

_TEST = '''\
"""$name carries out a request once, however often it is told."""

import asyncio
from pathlib import Path

from relevo import App, Relevo
from relevo.testing import assert_enqueued, drain

from $name import $wiring
from $name.events import Completed, Requested
from $name.queues import CarryOut


def test_a_request_told_twice_is_carried_out_once(tmp_path: Path) -> None:
    asyncio.run(tell_twice(tmp_path))


async def tell_twice(folder: Path) -> None:
    heard: list[Completed] = []

    async def hear(fact: Completed) -> None:
        heard.append(fact)

$apps    others = App("others", listeners=[hear])
    url = f"sqlite:///{folder / 'relevo.db'}"
    async with Relevo(url, apps=[app, others]) as relevo:
        await relevo.publish(Requested("R-1"))
        await relevo.publish(Requested("R-1"))
        await drain(relevo)

        await assert_enqueued(relevo, CarryOut, times=1, request_id="R-1")
        assert [fact.request_id for fact in heard] == ["R-1"]
'''
