"""How a subscription reaches its integrations from relevo's own queues."""

from __future__ import annotations

from relevo import Context, ProviderError, StoreUnavailable
from relevo.apps.subscriptions import records
from relevo.apps.subscriptions.integrations import Integration, Integrations, effect_id
from relevo.apps.subscriptions.queues import AddToList, PublishJob, SaveRow, SendEmail
from relevo.apps.subscriptions.streams import Streams
from relevo.errors import ProviderRefused
from relevo.telemetry import log


async def publish(order: PublishJob, ctx: Context) -> None:
    """To the three streams where there is Redis; to our own queues where there is none, or away.

    A job may reach both: flags and effects are the job's, so each call is still made once.
    """
    streams = ctx.use(Streams)
    if streams.is_configured:
        try:
            await streams.publish(order.job_id)
            return
        except StoreUnavailable as error:
            log.warning("Redis is away; the job runs here", extra={"error": str(error)})
    async with ctx.transaction():
        for command in (SendEmail, AddToList, SaveRow):
            await ctx.enqueue(command(order.job_id))


async def email(order: SendEmail, ctx: Context) -> None:
    await _integrate(ctx.use(Integrations).email, order.job_id, ctx)


async def list_(order: AddToList, ctx: Context) -> None:
    await _integrate(ctx.use(Integrations).list, order.job_id, ctx)


async def spreadsheet(order: SaveRow, ctx: Context) -> None:
    await _integrate(ctx.use(Integrations).spreadsheet, order.job_id, ctx)


async def _integrate(worker: Integration, job_id: str, ctx: Context) -> None:
    job = await ctx.use(records.Records).job(job_id)
    if job is None:
        raise ProviderRefused(f"there is no job {job_id}")
    if worker.is_job_processed(job):
        return
    try:
        result = await ctx.once(
            worker.effect,
            lambda key: worker.process_job(job),
            find=(lambda key: worker.look_up(job)) if worker.can_look_up else None,
            repeatable=worker.is_repeatable,
            of=effect_id(job.id),
        )
    except ProviderError as error:
        worker.say_failed(job_id, error)
        raise
    async with ctx.transaction() as tx:
        await worker.mark_job_as_processed(tx, job_id, worker.flag(result))
    worker.say_done(job_id, worker.flag(result))
