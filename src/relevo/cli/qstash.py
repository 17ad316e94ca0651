"""relevo qstash: a QStash of our own, on this machine."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from relevo.addresses import is_loopback
from relevo.cli.serve import up
from relevo.cli.terminal import AsIs, Terminal, Verbs, say
from relevo.errors import SettingsError

PORT = 8080  # the vendor's own development server has it too


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("qstash")(qstash)


async def qstash(
    terminal: Terminal,
    host: Annotated[
        str | None, typer.Option("--host", help="The address to listen on; otherwise RELEVO_HOST.")
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="The port to listen on.")
    ] = PORT,
    dev: Annotated[
        bool,
        typer.Option("--dev", help="The vendor's development token and keys; loopback is called."),
    ] = False,
) -> int:
    """Serve QStash's v2 API: set QSTASH_URL of your programs to this address.

    Without --dev it needs QSTASH_TOKEN, QSTASH_CURRENT_SIGNING_KEY and QSTASH_NEXT_SIGNING_KEY.
    Addresses that are not public are not called, but for those in QSTASH_ALLOW.
    """
    if dev:
        at = host or terminal.settings.host
        if not is_loopback(at):
            raise SettingsError(
                f"--dev on {at}: its token and keys are known to everybody, so it listens on "
                "127.0.0.1 only; for others to reach it, set QSTASH_TOKEN and both signing keys"
            )
        os.environ["QSTASH_DEV"] = "1"
        say(AsIs("development keys: for this machine only"))
    return await up(terminal, ["qstash"], host, port)
