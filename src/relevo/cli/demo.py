"""`relevo demo`: five systems under faults and kill -9, and the proof."""

from __future__ import annotations

import asyncio
import json
import signal
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from relevo.errors import SettingsError

if TYPE_CHECKING:
    from rich.table import Table

    from relevo.demo import Proof


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(  # pyright: ignore[reportUnusedFunction] - typer calls it
        store: Annotated[
            str | None,
            typer.Option("--store", help="An empty store; default: a fresh SQLite file."),
        ] = None,
        database: Annotated[
            str | None,
            typer.Option("--database", help="The database beside a store that is none."),
        ] = None,
        seed: Annotated[int, typer.Option("--seed", help="Same seed, same story.")] = 1,
        once: Annotated[
            bool, typer.Option("--once", help="End after the proof instead of serving on.")
        ] = False,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Run five systems under faults and kill -9, and count what was lost and doubled."""
        try:
            proof = asyncio.run(_show(seed, store, database, once, as_json))
        except asyncio.CancelledError:
            raise typer.Exit(130) from None
        except ImportError as error:
            raise SettingsError(f"{error}: pip install 'relevo[apps]'") from error
        raise typer.Exit(0 if proof.is_clean else 1)


async def _show(
    seed: int, store: str | None, database: str | None, once: bool, as_json: bool
) -> Proof:
    from rich.console import Console
    from rich.live import Live

    from relevo.demo import Proof, play

    console = Console(stderr=True)
    enough = asyncio.Event()
    told = asyncio.Event()
    task = asyncio.current_task()

    def stop() -> None:
        enough.set()
        if task is not None and not told.is_set():
            task.cancel()  # in the middle of the story: the stage is cleared all the same

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stop)
    options: dict[str, Any] = {"seed": seed, "store": store, "database": database}
    is_live = console.is_terminal and not as_json
    with Live(table("", Proof()), console=console, transient=True, auto_refresh=False) as live:

        def tell(what: str, proof: Proof) -> None:
            if is_live and what != "the proof":
                live.update(table(what, proof), refresh=True)
            elif what == "the proof":
                live.stop()
                _print(proof, as_json, once)
                told.set()

        return await play(**options, tell=tell, then=None if once else enough)


def _print(proof: Proof, as_json: bool, once: bool) -> None:
    from rich.console import Console

    if as_json:
        typer.echo(json.dumps(proof.as_json()))
        return
    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    console = Console(**plain)
    if not console.is_terminal:
        console = Console(width=120, **plain)
    console.print(table("the proof", proof))
    for name, state in sorted(proof.breakers.items()):
        console.print(f"  breaker {name}: opened, now {state}")
    for reason, count in sorted(proof.reasons.items()):
        console.print(f"  {count} × {reason}")
    verdict = "Nothing lost, nothing doubled." if proof.is_clean else "It is not clean!"
    typer.echo(f"{verdict} Workers killed with -9: {proof.kills}. {proof.seconds} s.")
    if not once:
        typer.echo(f"The dashboard is at {proof.url} until Ctrl-C.")


def table(what: str, proof: Proof) -> Table:
    """The systems, a row each, and their sum."""
    from rich.table import Table

    from relevo.demo import Row

    view = Table(title=f"relevo demo · {what} · {proof.seconds} s")
    view.add_column("system")
    for field in fields(Row):
        view.add_column(field.name, justify="right")
    for name, row in [*proof.systems.items(), ("total", proof.totals)]:
        values = asdict(row)
        cells = [str(value) for value in values.values()]
        style = "red" if values["lost"] or values["doubled"] else None
        view.add_row(name, *cells, style=style, end_section=name != "total")
    return view
