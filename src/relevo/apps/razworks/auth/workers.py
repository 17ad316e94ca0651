"""How auth's orders are carried out."""

from __future__ import annotations

from relevo import Context, ProviderRefused
from relevo.apps.razworks import records
from relevo.apps.razworks.auth.queues import SendWelcomeEmail
from relevo.apps.razworks.gateways import Gateways


async def welcome(order: SendWelcomeEmail, ctx: Context) -> None:
    person = await ctx.use(records.Records).person(order.user_id)
    if person is None:
        raise ProviderRefused(f"there is no user {order.user_id}")
    mail = ctx.use(Gateways).mail
    message = await ctx.once("mail", lambda key: mail.welcome(person.email, person.name, key))
    async with ctx.transaction() as tx:
        await records.welcomed(tx, order.user_id, message)
