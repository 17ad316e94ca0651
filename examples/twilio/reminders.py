"""Reminders by SMS: each is sent once, and its status is written down."""

import asyncio
import os

from sqlalchemy import text
from twilio.http.http_client import TwilioHttpClient
from twilio.rest import Client

from relevo import App, Command, Delivery, Intake, PlainContext, Relevo, exponential, sources

app = App("reminders")


class Remind(
    Command,
    queue="reminders:sms:send",
    key="remind:{appointment}",
    unique="forever",
    attempts=8,
    backoff=exponential("2s", cap="5m"),
    timeout="1m",
):
    appointment: str
    phone: str
    text: str


class NoteStatus(
    Command,
    queue="reminders:status:note",
    key="{message}:{status}",
    unique="forever",
    attempts=8,
    backoff=exponential("2s", cap="5m"),
    timeout="30s",
):
    message: str
    status: str


class Http(TwilioHttpClient):
    """Twilio's client, at another address in tests."""

    def request(self, method: str, url: str, *args, **kwargs):
        there = os.environ.get("TWILIO_API", "https://api.twilio.com")
        return super().request(
            method, url.replace("https://api.twilio.com", there), *args, **kwargs
        )


def client() -> Client:
    account, token = os.environ["TWILIO_ACCOUNT_SID"], os.environ["TWILIO_AUTH_TOKEN"]
    return Client(account, token, http_client=Http())


@app.worker
def remind(order: Remind, ctx: PlainContext) -> str:
    body = f"{order.text} ({order.appointment})"

    def find(key: str) -> object:
        # Twilio knows no idempotency keys: the message itself is looked for.
        sent = client().messages.list(to=order.phone, limit=50)
        return next((each for each in sent if each.body == body), None)

    return ctx.once(
        "sms",
        lambda key: client().messages.create(
            to=order.phone, from_=os.environ["TWILIO_FROM"], body=body
        ),
        find=find,
        keep=lambda message: message.sid,
    )


@app.webhook(
    "/hooks/twilio",
    source=sources.twilio(os.environ.get("TWILIO_AUTH_TOKEN")),
    types=["MessageStatus.*"],
)
async def told(delivery: Delivery, ctx: Intake) -> None:
    form = delivery.form
    await ctx.enqueue(NoteStatus(message=form["MessageSid"], status=form["MessageStatus"]))


@app.worker
def note(order: NoteStatus, ctx: PlainContext) -> None:
    with ctx.transaction() as tx:
        tx.execute(text("create table if not exists statuses (message text, status text)"))
        row = {"message": order.message, "status": order.status}
        tx.execute(text("insert into statuses values (:message, :status)"), row)


async def main() -> None:
    async with Relevo(os.environ.get("RELEVO_STORE_URL"), apps=[app]) as relevo:
        await relevo.enqueue(Remind("a-1", "+34600000001", "Tomorrow at ten"))


if __name__ == "__main__":
    asyncio.run(main())
