"""Every finished workflow of GitHub is posted to a channel of Slack, once."""

import os
from typing import Any

import slack_sdk

from relevo import App, Command, Delivery, Intake, PlainContext, exponential, sources

app = App("deploys")


class Post(
    Command,
    queue="deploys:slack:post",
    key="run:{run}",
    unique="forever",
    attempts=8,
    backoff=exponential("2s", cap="5m"),
    timeout="1m",
):
    run: int
    text: str


@app.webhook(
    "/hooks/github",
    source=sources.github(os.environ.get("GITHUB_WEBHOOK_SECRET")),
    types=["workflow_run.completed"],
)
async def told(delivery: Delivery, ctx: Intake) -> None:
    run = delivery.json["workflow_run"]
    await ctx.enqueue(Post(run=run["id"], text=f"{run['name']}: {run['conclusion']}"))


def client() -> slack_sdk.WebClient:
    return slack_sdk.WebClient(
        os.environ["SLACK_BOT_TOKEN"],
        base_url=os.environ.get("SLACK_API", "https://slack.com/api/"),
        retry_handlers=[],  # relevo tries again
    )


@app.worker
def post(order: Post, ctx: PlainContext) -> None:
    channel = os.environ["SLACK_CHANNEL"]

    def send(key: str) -> Any:
        mark = {"event_type": "deploy", "event_payload": {"key": key}}
        return client().chat_postMessage(channel=channel, text=order.text, metadata=mark)

    def find(key: str) -> str | None:
        # Slack knows no idempotency keys: the key travels in the message's metadata.
        recent = client().conversations_history(channel=channel, include_all_metadata=True)
        for message in recent["messages"]:
            if message.get("metadata", {}).get("event_payload", {}).get("key") == key:
                return message["ts"]
        return None

    ctx.once(
        "post", send, find=find, keep=lambda sent: sent if isinstance(sent, str) else sent["ts"]
    )
