"""relevo seal-key: a key for RELEVO_SEAL_KEYS."""

from __future__ import annotations

from relevo.cli.terminal import AsIs, Terminal, Verbs
from relevo.sealing import new_key


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("seal-key")(seal_key)


async def seal_key(terminal: Terminal) -> None:
    """Make a key to seal what jobs and deliveries carry; it is printed, and kept nowhere."""
    key = new_key()
    terminal.show({"key": key}, lambda: AsIs(key))
