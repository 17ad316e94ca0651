"""Sources of code hosts and issue trackers: GitHub, GitLab, Bitbucket, Jira, Linear, Notion."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from secrets import token_hex

from relevo.clock import Duration, milliseconds
from relevo.errors import SettingsError
from relevo.signatures import HmacHeader, Keys, Linear, Secrets, SharedSecret, Standard
from relevo.signatures.keys import from_base64
from relevo.sources.source import (
    JSON,
    OK,
    Source,
    body_hash,
    both,
    header,
    optional,
    pauses,
    text,
)
from relevo.webhook import FORM, Answer, Delivery


def github(secrets: Secrets | None) -> Source:
    """Webhooks of GitHub, as JSON or as the form that is its default.

    The delivery id is shared by all hooks that hear of one event, so the hook's id goes with it.
    GitHub never sends again by itself.
    """
    keys = Keys.read("github()", secrets)
    return Source(
        name="github",
        scheme=HmacHeader(keys, "X-Hub-Signature-256", "sha256", "sha256=", "hex"),
        id=lambda call: both(
            header(call, "X-GitHub-Delivery"), call.header("X-GitHub-Hook-ID") or ""
        ).rstrip(":"),
        type=_github_type,
        content_types=(*JSON, FORM),
        json_field="payload",
        setup=lambda call: OK if call.header("X-GitHub-Event") == "ping" else None,
        waits=timedelta(seconds=10),
        keep_headers=("x-github-hook-id", "x-github-hook-installation-target-id"),
        headers=lambda type, id: {
            "X-GitHub-Event": type.partition(".")[0] or "push",
            "X-GitHub-Delivery": id,
        },
        again="`GET …/hooks/ID/deliveries`, then `POST …/deliveries/ID/attempts` for each; "
        "deliveries are kept for three days",
    )


def _github_type(call: Delivery) -> str:
    name, action = header(call, "X-GitHub-Event"), optional(call, "action")
    return f"{name}.{action}" if action else name


def gitlab(token: Secrets | None = None, *, signing: Secrets | None = None) -> Source:
    """Webhooks of GitLab: its secret token, or the signing token of version 19 and later.

    What is configured decides, never what a call brings: with `signing` every call must be signed.
    """
    if (token is None) == (signing is None):
        raise SettingsError("gitlab() takes the secret token, or signing= the signing token")
    return Source(
        name="gitlab",
        scheme=SharedSecret(Keys.read("gitlab()", token), "X-Gitlab-Token", None, None, None)
        if signing is None
        else Standard(Keys.read("gitlab(signing=)", signing, from_base64), 300_000),
        # Signed are the webhook-* headers alone.
        id=_gitlab_id if signing is None else lambda call: header(call, "webhook-id"),
        type=lambda call: ".".join(
            filter(None, (text(call, "object_kind"), optional(call, "object_attributes", "action")))
        ),
        success=range(200, 400),
        waits=timedelta(seconds=10),
        ends="4 failures in a row switch the hook off for a minute, doubling to a day; 40 for good",
        keep_headers=("x-gitlab-event", "x-gitlab-instance"),
        headers=lambda type, id: {
            "X-Gitlab-Event": f"{(type.partition('.')[0] or 'push').title()} Hook",
            "Idempotency-Key": id,
        },
        again="`GET …/hooks/ID/events`, then `POST …/events/ID/resend` for each, or *Resend "
        "Request* on the hook's page",
    )


def _gitlab_id(call: Delivery) -> str:
    id = call.header("Idempotency-Key") or call.header("webhook-id")
    # Before version 17.4 there is none; the event's UUID is shared by what one event leads to.
    return id or both(header(call, "X-Gitlab-Event-UUID"), body_hash(call))


def bitbucket(secrets: Secrets | None) -> Source:
    """Webhooks of Bitbucket Cloud and Data Center; a body over 256 kB is not sent at all."""
    keys = Keys.read("bitbucket()", secrets)
    return Source(
        name="bitbucket",
        scheme=HmacHeader(keys, "X-Hub-Signature", "sha256", "sha256=", "hex"),
        id=lambda call: header(call, "X-Request-UUID", "X-Request-Id"),
        type=lambda call: header(call, "X-Event-Key"),
        attempt=lambda call: int(header(call, "X-Attempt-Number")),
        unsigned=lambda call: OK if call.header("X-Event-Key") == "diagnostics:ping" else None,
        waits=timedelta(seconds=10),
        retries=pauses(1, 1),
        keep_headers=("x-event-key", "x-attempt-number", "x-request-uuid"),
        headers=lambda type, id: {
            "X-Event-Key": type or "repo:push",
            "X-Request-UUID": id,
            "X-Attempt-Number": "1",
        },
        again="*Resend request* in the hook's *View requests*, where its history is enabled",
    )


def jira(secrets: Secrets | None) -> Source:
    """Webhooks of Jira Cloud that have a secret; a refusal is sent again on 5xx and 429 alone."""
    keys = Keys.read("jira()", secrets)
    return Source(
        name="jira",
        scheme=HmacHeader(keys, "X-Hub-Signature", "sha256", "sha256=", "hex"),
        id=lambda call: header(call, "X-Atlassian-Webhook-Identifier"),
        type=lambda call: text(call, "webhookEvent"),
        attempt=lambda call: int(header(call, "X-Atlassian-Webhook-Retry")) + 1,
        waits=timedelta(seconds=20),
        retries=pauses(5, 10, 15, 15, 15),
        ends="a 4xx other than 408, 409, 425 and 429 ends the repetitions of a call",
        keep_headers=("x-atlassian-webhook-identifier", "x-atlassian-webhook-retry"),
        headers=lambda type, id: {"X-Atlassian-Webhook-Identifier": id},
    )


def linear(secrets: Secrets | None, tolerance: Duration = "1m") -> Source:
    """Webhooks of Linear, whose time stands in the body and is signed with it."""
    keys = Keys.read("linear()", secrets)
    return Source(
        name="linear",
        scheme=Linear(keys, milliseconds(tolerance)),
        id=lambda call: header(call, "Linear-Delivery"),
        type=lambda call: f"{text(call, 'type')}.{text(call, 'action')}",
        success=(200,),
        waits=timedelta(seconds=5),
        retries=pauses(1, 60, 360),
        ends="a webhook that goes on failing may be disabled",
        varies=("webhookTimestamp",),
        keep_headers=("linear-delivery", "linear-event"),
        headers=lambda type, id: {
            "Linear-Event": type.partition(".")[0] or "Issue",
            "Linear-Delivery": id,
        },
    )


def notion(secrets: Secrets | None, *, on_token: Callable[[str], object] | None = None) -> Source:
    """Webhooks of Notion. The secret is the verification token of its first, unsigned call.

    `on_token` gets that token, such as `on_token=print`: paste it in Notion's page, configure it
    here, and take `on_token` out, since anybody may send such a call. With it the secret may be
    missing, and nothing else is taken until it is there.
    """
    if secrets is None and on_token is not None:
        secrets = token_hex(32)  # known to nobody
    keys = Keys.read("notion()", secrets)
    return Source(
        name="notion",
        scheme=HmacHeader(keys, "X-Notion-Signature", "sha256", "sha256=", "hex"),
        id=lambda call: text(call, "id"),
        type=lambda call: text(call, "type"),
        attempt=lambda call: int(text(call, "attempt_number")),
        unsigned=lambda call: _notions_token(call, on_token),
        retries=pauses(1, 5, 15, 60, 120, 240, 480, 480),
        varies=("attempt_number",),
    )


def _notions_token(call: Delivery, told: Callable[[str], object] | None) -> Answer | None:
    is_bare = "x-notion-signature" not in call.headers and len(call.body) < 1_000
    if not is_bare or b'"verification_token"' not in call.body:
        return None
    if set(call.json) != {"verification_token"}:
        return None
    if told is not None:
        told(text(call, "verification_token"))
    return OK


__all__ = ["bitbucket", "github", "gitlab", "jira", "linear", "notion"]
