"""relevo serve, relevo up: HTTP alone, or everything in one process."""

from __future__ import annotations

import asyncio
import importlib
import os
import socket
from contextlib import AsyncExitStack, ExitStack
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from relevo import supervisor
from relevo.cli.loading import come_along
from relevo.cli.terminal import OK, AppOption, AsIs, LogFormatOption, Terminal, Verbs, say
from relevo.cli.work import stop_on_signals, supervised
from relevo.errors import SettingsError

if TYPE_CHECKING:
    from relevo.app import App
    from relevo.settings import Settings

SIMULATORS_PORT = 8701

Host = Annotated[
    str | None, typer.Option("--host", help="The address to listen on; otherwise RELEVO_HOST.")
]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65_535, help="The port; otherwise RELEVO_PORT."),
]
Descriptors = Annotated[
    list[int] | None,
    typer.Option(
        "--fd",
        metavar="N",
        min=3,
        help="Listen on this socket, inherited from the parent. Repeatable. systemd's own "
        "sockets (LISTEN_FDS) are found without it.",
    ),
]
ReusePort = Annotated[
    bool,
    typer.Option(
        "--reuse-port",
        help="Share the address with the process that follows this one (SO_REUSEPORT): start it, "
        "then stop this one.",
    ),
]
Simulators = Annotated[
    bool, typer.Option("--simulators", help="Pretend the providers, on 127.0.0.1:8701.")
]
SimulatorsPort = Annotated[
    int, typer.Option("--simulators-port", min=0, max=65_535, help="Another port for them.")
]


def add_to(root: Verbs) -> None:
    """Hang the verbs under the program."""
    root.verb("serve")(serve)
    root.verb("up")(up)
    root.verb("simulators")(simulators)


async def serve(
    terminal: Terminal,
    app: AppOption = None,
    host: Host = None,
    port: Port = None,
    descriptors: Descriptors = None,
    reuse_port: ReusePort = False,
    log_format: LogFormatOption = None,
) -> int:
    """Serve HTTP alone: webhooks, the apps' sites, the API and the dashboard.

    The jobs are for `relevo work`, elsewhere. The first SIGTERM or SIGINT stops politely: calls
    under way are answered, and what waits in the spool is given to the store.
    """
    place = _Place(host, port, descriptors or [], reuse_port)
    return await _run(terminal, app, place, log_format, is_working=False)


async def up(
    terminal: Terminal,
    apps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[APP]…", help="Apps; otherwise RELEVO_APPS."),
    ] = None,
    host: Host = None,
    port: Port = None,
    pretend: Simulators = False,
    simulators_port: SimulatorsPort = SIMULATORS_PORT,
    descriptors: Descriptors = None,
    reuse_port: ReusePort = False,
    log_format: LogFormatOption = None,
) -> int:
    """Run everything in one process: HTTP, workers, upkeep, pollers and schedules.

    An embedded store is brought up to date by itself. On a terminal each delivery and job is told
    in a line, elsewhere what went wrong, in JSON.
    """
    place = _Place(host, port, descriptors or [], reuse_port)
    terminal.start_logging(log_format)
    if not pretend:
        return await _run(terminal, apps, place, log_format, is_working=True)
    # By name and only here: what runs in production does not know them.
    pretended = importlib.import_module("relevo.simulators")
    async with AsyncExitStack() as stack:
        try:
            world = await stack.enter_async_context(pretended.running(port=simulators_port))
        except OSError as error:
            place = f"127.0.0.1:{simulators_port}"
            raise SettingsError(f"cannot pretend the providers at {place}: {error}") from error
        os.environ.update(pretended.environment(world.base))
        say(AsIs(f"pretending the providers at {world.base}; effects at {world.base}/ledger"))
        return await _run(terminal, apps, place, log_format, is_working=True, world=world)


async def simulators(terminal: Terminal, port: SimulatorsPort = SIMULATORS_PORT) -> None:
    """Print the variables of `relevo up --simulators`, for the shell of another terminal.

    Such as: eval "$(relevo simulators)"
    """
    pretended = importlib.import_module("relevo.simulators")
    variables: dict[str, str] = pretended.environment(f"http://127.0.0.1:{port}")

    def lines() -> AsIs:
        return AsIs("\n".join(f"export {name}={quote(at)}" for name, at in variables.items()))

    terminal.show(variables, lines)


class _Place(NamedTuple):
    """Where to listen, as the command line says it."""

    host: str | None
    port: int | None
    descriptors: list[int]
    is_shared: bool


async def _run(
    terminal: Terminal,
    names: list[str] | None,
    place: _Place,
    log_format: str | None,
    *,
    is_working: bool,
    world: Any = None,
) -> int:
    try:
        from relevo.ingress.server import serving
    except ImportError as error:
        raise SettingsError(f"{error}: pip install 'relevo[web]'") from error
    is_read = terminal.start_logging(log_format)
    settings = terminal.settings
    apps = terminal.apps(names)
    if not apps:
        ours = ", ".join(come_along())
        raise SettingsError(
            f"no app to serve: name yours as module:attribute, or one that comes along ({ours}), "
            "or set RELEVO_APPS"
        )
    with ExitStack() as sockets:
        listeners = [sockets.enter_context(each) for each in _listeners(place, settings)]
        engine = terminal.engine(apps, keep_dead=settings.keep_dead, spool=settings.spool)
        terminal.remember(engine)
        if settings.tracing == "on":
            engine.telemetry.trace()
        if is_read:
            engine.telemetry.narrate()
        front = engine.asgi()
        stop = asyncio.Event()
        stop_on_signals(stop)
        grace = settings.grace.total_seconds()
        is_working = is_working and bool(engine.wants())
        async with AsyncExitStack() as stack:
            stack.push_async_callback(front.close)
            opening: asyncio.Task[None] = await front.open()
            stack.push_async_callback(front.gate.finish, grace)
            url = await stack.enter_async_context(serving(front, *listeners, grace=grace))
            if world is not None:
                world.target = url
            said = f"{_named(apps)} at {url}, on {engine.store.url}"
            say(AsIs(said))
            supervised(stack, said, beats=not is_working)
            if not await _is_opened(opening, stop):
                return OK
            if is_working:
                await engine.work(
                    concurrency=settings.concurrency,
                    slots=dict(settings.slots),
                    lease=settings.lease,
                    grace=settings.grace,
                    budget=settings.budget,
                    stop=stop,
                    on_blocked="restart",
                )
            await stop.wait()
    return OK


async def _is_opened(opening: asyncio.Task[None], stop: asyncio.Event) -> bool:
    """Whether the engine was opened before the process is to stop; raises why it cannot be."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if opening.done():
        await opening
    return opening.done()


def _listeners(place: _Place, settings: Settings) -> list[socket.socket]:
    """The sockets to serve: those that a parent passed, or one of our own."""
    from relevo.ingress.sockets import inherited, listen
    from relevo.web.auth import check_binding

    given = place.descriptors or supervisor.descriptors()
    if not given:
        host = place.host or settings.host
        check_binding(host, settings)
        port = settings.port if place.port is None else place.port
        return [listen(host, port, is_shared=place.is_shared)]
    if place.host is not None or place.port is not None or place.is_shared:
        raise SettingsError(
            "the sockets come from the parent process (--fd, LISTEN_FDS): leave out --host, --port "
            "and --reuse-port, and say there where to listen"
        )
    sockets = inherited(given)
    for each in sockets:
        check_binding(each.getsockname()[0], settings)
    return sockets


def _named(apps: list[App]) -> str:
    return ", ".join(app.name for app in apps)
