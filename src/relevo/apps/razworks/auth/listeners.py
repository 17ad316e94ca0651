"""What auth does when something has happened."""

from __future__ import annotations

from relevo import Context
from relevo.apps.razworks.auth.events import UserRegistered
from relevo.apps.razworks.auth.queues import SendWelcomeEmail


async def order_welcome(fact: UserRegistered, ctx: Context) -> None:
    await ctx.enqueue(SendWelcomeEmail(fact.user_id))
