"""One function per order. What a message causes commits in one transaction; the reply has its own
job, so that a reply that fails is sent again and the expense is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from relevo import Context, Dead, ProviderCredentials, ProviderRefused, ProviderUnavailable
from relevo.apps.expenses import links, records, texts
from relevo.apps.expenses.gateways import Gateways
from relevo.apps.expenses.gateways.gemini import Reading as Seen
from relevo.apps.expenses.gateways.graph import MediaRefused
from relevo.apps.expenses.queues import (
    Incoming,
    ProcessMessage,
    PublishMessage,
    RecordStatuses,
    SendReply,
    SetAside,
    SpreadMessages,
)
from relevo.apps.expenses.records import Records, Times
from relevo.apps.expenses.rules import (
    ALL,
    Change,
    Order,
    Question,
    Reading,
    Region,
    Several,
    Spent,
    language_of,
    read,
    region_of,
)
from relevo.apps.expenses.settings import ExpensesSettings
from relevo.apps.expenses.webhooks import order_for
from relevo.job import LIVE

PATIENCE = 4
"""Attempts that a second reader gets; then the person is asked instead."""
LOOK_AGAIN = timedelta(seconds=2)

_TEXT = ("text", "interactive", "button")
_ATTACHED = ("image", "audio", "document")
_QUIET = ("reaction", "system", "unsupported", "unknown", "edit", "ephemeral")


@dataclass(frozen=True, slots=True)
class Understood:
    """What a message says, who read it, and how its person writes."""

    reading: Reading | str  # a str is a question by its name; empty: nothing to say
    read_by: str
    language: str
    region: Region


async def publish_message(order: PublishMessage, ctx: Context) -> str:
    """By QStash; the same message within ten minutes is one to it, and one to us for ever."""
    qstash = ctx.use(Gateways).qstash
    url = ctx.use(ExpensesSettings).process_url
    if qstash is None:
        await ctx.enqueue(ProcessMessage(order.message_id, order.message.sender, order.message))
        return "by our own queue"
    body = msgspec.json.encode(order.message)
    return await ctx.once(
        "publish",
        lambda key: qstash.publish(url, body, deduplication=order.message_id),
        repeatable=True,
    )


async def spread_messages(order: SpreadMessages, ctx: Context) -> None:
    async with ctx.transaction():
        for message in order.messages:
            await ctx.enqueue(order_for(message, ctx.use(ExpensesSettings)))


async def set_aside(order: SetAside, ctx: Context) -> Dead:
    id = order.delivery
    return Dead(f"cannot be read: {order.why}; once it can: `relevo deliveries replay {id}`")


async def process_message(order: ProcessMessage, ctx: Context) -> str | None:
    """Understand, then write everything down at once: person, expense, reply, processed."""
    message = order.message
    now = ctx.use(Records).now()
    times = Times(datetime.fromtimestamp(message.sent_at, UTC) if message.sent_at else now, now)
    understood = await understand(message, times, ctx)
    settings = ctx.use(ExpensesSettings)
    async with ctx.transaction() as tx:
        if await tx.get(records.Processed, message.id) is not None:
            return None
        outcome, reply = await carry_out(tx, message, understood, times, settings)
        tx.add(
            records.Processed(
                message_id=message.id, kind=message.kind, outcome=outcome, processed_at=now
            )
        )
        if reply:
            tx.add(
                records.Answer(
                    id=message.id,
                    phone_number_id=message.phone_number_id,
                    recipient=message.wa_id or message.user_id,
                    body=reply,
                )
            )
            await ctx.enqueue(SendReply(message.id))
        return outcome


# Understanding


async def understand(message: Incoming, times: Times, ctx: Context) -> Understood:
    """By rules if they are certain, by Gemini if it is there, else a question."""
    settings = ctx.use(ExpensesSettings)
    region = region_of(message.user_id, message.wa_id, settings.home)
    today = region.day(times.sent_at)
    language = language_of(message.text, region)
    by_rules = Understood("", "rules", language, region)
    if message.kind in _QUIET or (message.kind not in (*_TEXT, *_ATTACHED) and not message.text):
        quiet = message.kind not in ("video", "sticker", "location", "contacts")
        return by_rules if quiet else replace(by_rules, reading="kind")
    found: Reading | None = read(message.text, today, region) if message.text else None
    if isinstance(found, Spent | Several | Change | Order):
        return replace(by_rules, reading=found)
    is_attached = message.kind in _ATTACHED and bool(message.media_id)
    is_choice = isinstance(found, Question) and found.why == "several"
    is_undo = isinstance(found, Question) and found.why == "undo"
    if is_undo or not (is_attached or is_choice):
        return replace(by_rules, reading=found if found is not None else "unclear")
    choice = found if isinstance(found, Question) else None
    return await _second(message, choice, by_rules, today, ctx)


async def _second(
    message: Incoming, asked: Question | None, by_rules: Understood, today: date, ctx: Context
) -> Understood:
    """The second reader's opinion, which counts only where it can be right."""
    gateways = ctx.use(Gateways)
    gemini = gateways.gemini
    fallback: Reading | str = asked if asked is not None else "unclear"
    if gemini is None or await ctx.use(Records).is_processed(message.id):
        return replace(by_rules, reading=fallback)

    async def look(_: str) -> Seen:
        is_attached = message.kind in _ATTACHED and bool(message.media_id)
        media = (
            await gateways.graph.fetch(message.media_id, message.media_sha256)
            if is_attached
            else None
        )
        return await gemini.read(message.text, media, today)

    try:
        seen = await ctx.once("understand", look, repeatable=True, type=Seen)
    except MediaRefused:
        return replace(by_rules, reading="media")
    except (ProviderRefused, ProviderCredentials):  # the person is answered in any case
        return replace(by_rules, reading=fallback)
    except ProviderUnavailable:
        if ctx.attempt < PATIENCE:
            raise
        return replace(by_rules, reading=fallback)
    return replace(by_rules, reading=_accepted(seen, asked, by_rules, today), read_by="gemini")


def _accepted(
    seen: Seen, asked: Question | None, by_rules: Understood, today: date
) -> Reading | str:
    """What the second reader said, if its amounts are those that were written: all of them, each
    once, and in their order. What was attached, and says no number that we know, is one expense."""
    amounts = tuple(Decimal(item.cents) / 100 for item in seen.items)
    written = asked.amounts if asked is not None else ()
    if not amounts or (amounts != written if written else len(amounts) != 1):
        return asked if asked is not None else "unclear"
    spents: list[Spent] = []
    for amount, item in zip(amounts, seen.items, strict=True):
        currency = item.currency or (asked.currency if asked is not None else "")
        currency = currency or by_rules.region.currency
        if not currency:
            return Question("currency")
        on = date.fromisoformat(item.on) if item.on else today
        if asked is not None and asked.on is not None:
            on = asked.on
        spents.append(Spent(amount, currency, item.category, item.description, on))
    return spents[0] if len(spents) == 1 else Several(tuple(spents))


# Carrying out


async def carry_out(
    tx: AsyncSession,
    message: Incoming,
    understood: Understood,
    times: Times,
    settings: ExpensesSettings,
) -> tuple[str, str]:
    """Write down what a message means; gives the outcome's name and what to reply."""
    reading, language, region = understood.reading, understood.language, understood.region
    if reading == "":
        return "ignored", ""
    user = await records.upsert_user(tx, message, region, language, times.now)
    match reading:
        case Spent():
            await records.add_expense(tx, user, message, reading, understood.read_by, times)
            return "expense", texts.written_down(reading, language, region)
        case Several(spents=spents):
            for position, spent in enumerate(spents):
                await records.add_expense(
                    tx, user, message, spent, understood.read_by, times, position
                )
            return "expense", texts.all_written_down(spents, language, region)
        case Change():
            return await _change(tx, user, reading, times, language, region)
        case Question():
            user.asked_at = times.sent_at
            return "asked", texts.asked(reading, language, region)
        case str():
            user.asked_at = times.sent_at
            return "asked", texts.question(reading, language, region)
        case Order(wish="help"):
            return "help", texts.help_text(language)
        case Order(wish="undo"):
            return await _undo(tx, user, reading, times, language, region)
        case Order(wish="export" | "page"):
            link = links.Link(user.id, reading.since, reading.until)
            token = links.make(settings.link_key, link, times.now)
            url = f"{settings.site_url}/my/expenses?link={token}"
            if reading.file:
                url += f"&format={reading.file}"
            return reading.wish, texts.export(url, reading, language)
        case Order():
            found = await records.rows(tx, user.id, reading.since, reading.until)
            return "total", texts.total(found, reading, language, region)


async def _undo(
    tx: AsyncSession, user: records.User, order: Order, times: Times, language: str, region: Region
) -> tuple[str, str]:
    latest = await records.lately(tx, user, times)
    if not latest:
        return "undo", texts.nothing_to_take_back(language)
    gone = records.meant(latest, order.target)
    if order.target == "":
        gone = gone[-1:]
    if not gone:
        return "asked", texts.not_found(order.target, language)
    if len(gone) > 1 and order.target != ALL:
        return "asked", texts.which(await _rows(tx, gone), gone, language, region)
    for each in gone:
        each.deleted_at = times.now
    return "undo", texts.taken_back(await _rows(tx, gone), language, region)


async def _change(
    tx: AsyncSession,
    user: records.User,
    change: Change,
    times: Times,
    language: str,
    region: Region,
) -> tuple[str, str]:
    """Correct one expense. When the last thing we did was to ask, "eran 600" does not speak of an
    expense that was written down before."""
    latest = await records.lately(tx, user, times)
    if not latest:
        return "asked", texts.nothing_to_change(language)
    asked_at = None if user.asked_at is None else _aware(user.asked_at)
    is_vague = not change.target and not change.names_last
    if is_vague and asked_at is not None and asked_at > _aware(latest[0].sent_at):
        return "asked", texts.nothing_to_change(language)
    found = records.meant(latest, change.target)
    if change.names_last:
        found = found[-1:]
    if not found:
        return "asked", texts.not_found(change.target, language)
    if len(found) > 1:
        return "asked", texts.which(await _rows(tx, found), found, language, region)
    [before] = await _rows(tx, found)
    await records.apply(tx, found[0], change)
    [after] = await _rows(tx, found)
    return "changed", texts.changed(before, after, language, region)


async def _rows(tx: AsyncSession, expenses: Sequence[records.Expense]) -> list[records.Row]:
    return [await records.as_row(tx, each) for each in expenses]


def _aware(moment: datetime) -> datetime:
    """SQLite gives moments back without their zone."""
    return moment.replace(tzinfo=moment.tzinfo or UTC)


# Replying


async def send_reply(order: SendReply, ctx: Context) -> Dead | None:
    """Send it once. WhatsApp has no idempotency key, but the statuses of what it sent say what it
    was: a call without an answer waits for one before it is made again."""
    kept = ctx.use(Records)
    graph = ctx.use(Gateways).graph
    silence = ctx.use(ExpensesSettings).silence
    answer = await kept.reply(order.reply_id)
    if answer is None:
        return Dead("there is no such reply")

    # Before once(), so that whoever takes this job over while we are slow sees that it was tried:
    # once() looks at the lease right before the call, and nothing may come between.
    if answer.tried_at is None:
        await kept.trying(answer.id)

    async def send(_: str) -> str:
        number, to = answer.phone_number_id, answer.recipient
        try:
            return await graph.send(number, to, answer.body, answer.id)
        except (ProviderRefused, ProviderUnavailable, ProviderCredentials):
            await kept.not_tried(answer.id)
            raise

    async def find(_: str) -> str | None:
        known = await kept.reply(answer.id)
        if known is None or known.wamid is not None or known.tried_at is None:
            return None if known is None else known.wamid
        tried_at = known.tried_at.replace(tzinfo=known.tried_at.tzinfo or UTC)
        # No silence: one that we were not there to hear, or a status that waits in our own queue.
        if kept.now() - max(tried_at, kept.opened_at) < silence or await _statuses_wait(ctx):
            raise ProviderUnavailable(
                "no answer, and no status yet", retry_after=LOOK_AGAIN, spends=False
            )
        await kept.trying(answer.id)
        return None

    wamid = await ctx.once("send", send, find=find)
    async with ctx.transaction() as tx:
        row = await tx.get(records.Answer, answer.id)
        if row is not None:
            row.wamid = wamid
    return None


async def _statuses_wait(ctx: Context) -> bool:
    queue = RecordStatuses.__relevo__.queue
    tallies = [tally for tally in await ctx.tallies() if tally.queue == queue]
    return any(tally.counts.get(state) for tally in tallies for state in LIVE)


async def record_statuses(order: RecordStatuses, ctx: Context) -> None:
    async with ctx.transaction() as tx:
        await records.record_statuses(tx, order.statuses)
