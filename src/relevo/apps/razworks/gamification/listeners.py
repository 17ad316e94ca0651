"""What gamification does when something has happened; each reaction is a job of its own."""

from __future__ import annotations

from relevo import Context
from relevo.apps.razworks import records
from relevo.apps.razworks.auth.events import UserRegistered
from relevo.apps.razworks.projects.events import ProjectPublished

FIRST_POINTS = 10
PROJECT_POINTS = 50
FIRST_COINS = 5


async def create_profile(fact: UserRegistered, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await records.add_profile(tx, fact.user_id, FIRST_POINTS)


async def create_wallet(fact: UserRegistered, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await records.add_wallet(tx, fact.user_id, FIRST_COINS)


async def reward_project(fact: ProjectPublished, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await records.add_points(tx, fact.user_id, PROJECT_POINTS, fact.project_id)
