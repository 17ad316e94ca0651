"""`relevo demo`: see it survive."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    @app.command()
    def demo(  # pyright: ignore[reportUnusedFunction] - typer calls it
        store: Annotated[
            str | None,
            typer.Option("--store", help="Where to run it; default: a fresh SQLite file."),
        ] = None,
        seed: Annotated[int, typer.Option("--seed", help="Same seed, same orders.")] = 1,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
        once: Annotated[bool, typer.Option("--once", help="Accepted; it always ends.")] = False,
    ) -> None:
        """Run a worker fleet under kill -9 and count what was lost and doubled."""
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table

        from relevo.demo import Proof, story

        console = Console(stderr=True)

        def table(what: str, proof: Proof) -> Table:
            view = Table(title=f"relevo demo: {what}")
            for name in proof.as_json():
                view.add_column(name, justify="right")
            view.add_row(*(str(value) for value in proof.as_json().values()))
            return view

        if as_json or not console.is_terminal:
            proof = asyncio.run(story(store, seed, lambda what, proof: None))
        else:
            with Live(table("starting", Proof()), console=console, transient=True) as live:
                proof = asyncio.run(
                    story(store, seed, lambda what, proof: live.update(table(what, proof)))
                )
        if as_json:
            typer.echo(json.dumps(proof.as_json()))
        else:
            Console().print(table("the proof", proof))
            verdict = "Nothing lost, nothing doubled." if proof.is_clean else "It is not clean!"
            typer.echo(f"{verdict} Workers killed with -9: {proof.kills}.")
        raise typer.Exit(0 if proof.is_clean else 1)
