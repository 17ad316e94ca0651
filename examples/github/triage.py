"""New issues on GitHub get a comment, one each."""

import os

from github import Auth, Github
from github.Issue import Issue

from relevo import App, Command, Delivery, Intake, PlainContext, exponential, sources

app = App("triage")


class Greet(
    Command,
    queue="triage:issues:greet",
    key="greet:{repository}#{number}",
    unique="forever",
    attempts=8,
    backoff=exponential("2s", cap="5m"),
    timeout="1m",
):
    repository: str
    number: int


@app.webhook(
    "/hooks/github",
    source=sources.github(os.environ.get("GITHUB_WEBHOOK_SECRET")),
    types=["issues.opened"],
)
async def told(delivery: Delivery, ctx: Intake) -> None:
    body = delivery.json
    await ctx.enqueue(
        Greet(repository=body["repository"]["full_name"], number=body["issue"]["number"])
    )


def issue(order: Greet) -> Issue:
    hub = Github(
        auth=Auth.Token(os.environ["GITHUB_TOKEN"]),
        base_url=os.environ.get("GITHUB_API", "https://api.github.com"),
        retry=None,  # relevo tries again
        seconds_between_requests=None,
        seconds_between_writes=None,
    )
    return hub.get_repo(order.repository).get_issue(order.number)


@app.worker
def greet(order: Greet, ctx: PlainContext) -> None:
    # GitHub knows no idempotency keys: the key stands in the comment, where it can be found.
    ctx.once(
        "comment",
        lambda key: issue(order).create_comment(f"Thank you. <!-- {key} -->"),
        find=lambda key: next(
            (each for each in issue(order).get_comments() if key in each.body), None
        ),
        keep=lambda comment: comment.id,
    )
