"""What projects does when something has happened."""

from __future__ import annotations

from relevo import Context
from relevo.apps.razworks import records
from relevo.apps.razworks.projects.events import ProjectPublished


async def index_project(fact: ProjectPublished, ctx: Context) -> None:
    """Make a project findable: its words, once."""
    async with ctx.transaction() as tx:
        await records.index_project(tx, fact.project_id)
