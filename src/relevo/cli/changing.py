"""What `queues set`, `breakers set` and `lanes set` have in common."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from relevo.cli.tables import at, table
from relevo.desk import Override
from relevo.errors import DefinitionError

if TYPE_CHECKING:
    from rich.console import RenderableType

UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="MOMENT", help="It ends then: 2026-12-24T18:00Z.")
]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="2h", help="It ends after so long; else with unset.")
]


def moment_of(text: str | None) -> datetime | None:
    """The moment that a text says; without a time zone it is this machine's."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise DefinitionError(
            f"{text!r:.40} is no moment: write one like 2026-12-24T18:00Z"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()


def changes_table(changes: Iterable[Override]) -> RenderableType:
    return table(
        ("what", "name", "lane", "is", "until", "by", "note"),
        (
            (
                each.what,
                each.name,
                each.lane,
                "paused" if each.is_pause else each.said,
                at(each.until) if each.until else "unset",
                each.by,
                each.note,
            )
            for each in changes
        ),
    )


def told(changes: Iterable[Override], name: str, *what: str) -> str | None:
    """What has been changed of a queue or a breaker, and until when; None: nothing."""
    said = [
        f"{each.lane}: {each}" if each.lane is not None else str(each)
        for each in changes
        if each.name == name and each.what in what
    ]
    return "; ".join(said) or None
