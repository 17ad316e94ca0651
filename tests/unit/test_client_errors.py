"""The table of client errors: rows of an app, answers, and exceptions that resist being read."""

from __future__ import annotations

import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from slack_sdk.web import SlackResponse

from relevo import (
    DefinitionError,
    ErrorRow,
    Means,
    Proof,
    ProviderRefused,
    judge_client_error,
    judge_response,
    retry_after_of,
)
from relevo.client_errors import OWN_RETRIES, error_rows


def _status_error(
    status: int, headers: dict[str, str] | None = None, json: Any = None
) -> Exception:
    request = httpx.Request("POST", "https://api.ship.example/orders")
    answer = httpx.Response(status, headers=headers, json=json, request=request)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        answer.raise_for_status()
    return caught.value


def _kind(error: BaseException, *rows: Any) -> Means:
    proof = judge_client_error(error, rows)
    assert proof is not None
    return proof.kind


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), OSError("disk"), Exception()])
def test_what_no_client_raised_is_not_judged(error: Exception) -> None:
    assert judge_client_error(error) is None


def test_the_words_of_relevo_are_not_judged() -> None:
    assert judge_client_error(ProviderRefused("no")) is None


@pytest.mark.parametrize(
    ("status", "means"),
    [
        (400, Means.REFUSED),
        (401, Means.OUR_CREDENTIALS),
        (402, Means.REFUSED),
        (403, Means.REFUSED),
        (404, Means.REFUSED),
        (407, Means.OUR_CREDENTIALS),
        (408, Means.UNCERTAIN),
        (409, Means.UNCERTAIN),
        (410, Means.REFUSED),
        (422, Means.REFUSED),
        (423, Means.UNCERTAIN),
        (425, Means.UNCERTAIN),
        (429, Means.WAIT),
        (500, Means.UNCERTAIN),
        (502, Means.UNCERTAIN),
        (503, Means.UNCERTAIN),
        (504, Means.UNCERTAIN),
    ],
)
def test_each_status_has_one_meaning(status: int, means: Means) -> None:
    assert _kind(_status_error(status)) is means
    answer = httpx.Response(status, request=httpx.Request("POST", "https://x.example"))
    proof = judge_response(answer)
    assert proof is not None
    assert (proof.kind, proof.status) == (means, status)
    assert str(status) in proof.row


def test_a_refusal_has_the_words_of_the_provider() -> None:
    error = _status_error(402, json={"error": {"message": "Your card was declined.", "code": "x"}})
    proof = judge_client_error(error)
    assert proof == Proof(
        Means.REFUSED, "httpx.HTTPStatusError 402", "Your card was declined.", None, 402
    )


def test_a_secret_in_the_words_is_left_out() -> None:
    # Joined here, so that no scanner takes the line for a leaked key.
    key = "sk_" + "live_" + "51Abcdefghijklmnop"
    proof = judge_client_error(_status_error(402, json={"message": f"not with {key}"}))
    assert proof is not None
    assert key not in proof.message


@pytest.mark.parametrize("code", ["api_key_expired", "ExpiredToken", "token_revoked"])
def test_a_key_called_expired_is_our_mistake(code: str) -> None:
    assert _kind(_status_error(403, json={"error": {"code": code}})) is Means.OUR_CREDENTIALS


@pytest.mark.parametrize(
    ("said", "wait"),
    [
        ("30", timedelta(seconds=30)),
        ("0", timedelta(seconds=1)),
        ("-5", timedelta(seconds=1)),
        ("86400", timedelta(hours=1)),
        ("999999999999999999", timedelta(hours=1)),
        ("soon", None),
        ("", None),
        ("Wed, 99 Foo 2026", None),
        ("²", None),
    ],
)
def test_retry_after_is_read_within_its_limits(said: str, wait: timedelta | None) -> None:
    answer = httpx.Response(429, headers={"Retry-After": said.encode()})
    assert retry_after_of(answer) == wait


def test_retry_after_may_be_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    wait = retry_after_of(_status_error(429, {"Retry-After": date}))
    assert wait is not None
    assert timedelta(minutes=4) < wait <= timedelta(minutes=5)
    proof = judge_client_error(_status_error(429, {"Retry-After": "7"}))
    assert proof is not None
    assert (proof.kind, proof.retry_after) == (Means.WAIT, timedelta(seconds=7))


def test_an_answer_below_400_is_none_and_accept_lets_others_through() -> None:
    assert judge_response(httpx.Response(302)) is None
    assert judge_response({"status": 500}) is None
    assert judge_response("text") is None
    assert judge_response(None) is None
    assert judge_response(httpx.Response(404), accept={404}) is None
    assert judge_response(httpx.Response(410), accept={404}) is not None


def _slack(body: dict[str, object], status: int = 200) -> SlackResponse:
    return SlackResponse(
        client=None,
        http_verb="POST",
        api_url="https://slack.com/api/chat.postMessage",
        req_args={},
        data=body,
        headers={},
        status_code=status,
    )


def test_a_no_of_slack_is_judged_by_its_word() -> None:
    proof = judge_response(_slack({"ok": False, "error": "channel_not_found"}))
    assert proof is not None
    assert (proof.kind, proof.row) == (Means.REFUSED, "ok: false 200 channel_not_found")
    for word, means in {
        "invalid_auth": Means.OUR_CREDENTIALS,
        "ratelimited": Means.WAIT,
        "internal_error": Means.UNCERTAIN,
    }.items():
        proof = judge_response(_slack({"ok": False, "error": word}))
        assert proof is not None
        assert proof.kind is means
    assert judge_response(_slack({"ok": False, "error": "gone"}), accept={"gone"}) is None
    assert judge_response(_slack({"ok": True, "error": "x"})) is None


def test_a_no_of_slack_is_known_by_its_host_too() -> None:
    body = {"ok": False, "error": "channel_not_found"}
    for host, kind in {"slack.com": Means.REFUSED, "api.shop.example": None}.items():
        request = httpx.Request("POST", f"https://{host}/api/chat.postMessage")
        proof = judge_response(httpx.Response(200, json=body, request=request))
        assert (None if proof is None else proof.kind) is kind


class Order:
    """What an app's own function may give: its fields mean what the app says."""

    def __init__(self) -> None:
        self.id = 1
        self.status = 450
        self.data = {"ok": False, "error": "queued"}
        self.headers: dict[str, str] | None = None


def test_what_is_no_answer_of_a_client_is_a_result() -> None:
    order = Order()
    assert judge_response(order) is None
    order.headers = {"lines": "2"}
    del order.data
    assert judge_response(order) is None
    assert judge_response({"ok": False, "error": "queued"}) is None


class Busy(Exception):
    code = "declined"


def test_an_app_adds_rows() -> None:
    assert judge_client_error(Busy()) is None
    assert _kind(Busy(), ErrorRow(Busy, "refused")) is Means.REFUSED
    name = f"{Busy.__module__}.Busy"
    row = ErrorRow(name, "wait", retry_after="30s")
    proof = judge_client_error(Busy(), (row,))
    assert proof is not None
    assert (proof.kind, proof.retry_after) == (Means.WAIT, timedelta(seconds=30))
    assert name.partition(".")[0] in proof.row
    assert judge_client_error(Busy(), (ErrorRow("other.Busy", "refused"),)) is None
    chosen = ErrorRow(Busy, Means.REFUSED, when=lambda error: error.code == "declined")
    assert _kind(Busy(), chosen) is Means.REFUSED
    other = ErrorRow(Busy, Means.REFUSED, when=lambda error: error.code == "other")
    assert judge_client_error(Busy(), (other,)) is None
    assert judge_client_error(Busy(), {Busy: "refused"}) is not None


def test_a_503_is_a_wait_where_the_apps_table_says_so() -> None:
    row = ErrorRow(status=503, host="api.ship.example", means="wait")
    proof = judge_client_error(_status_error(503, {"Retry-After": "9"}), (row,))
    assert proof is not None
    assert (proof.kind, proof.retry_after) == (Means.WAIT, timedelta(seconds=9))
    assert "row of the app" in proof.row
    elsewhere = ErrorRow(status=503, host="api.other.example", means="wait")
    assert _kind(_status_error(503), elsewhere) is Means.UNCERTAIN
    request = httpx.Request("POST", "https://api.ship.example/orders")
    proof = judge_response(httpx.Response(503, request=request), (row,))
    assert proof is not None
    assert proof.kind is Means.WAIT


def test_a_function_may_judge() -> None:
    said = Proof(Means.REFUSED, "mine", "no")
    assert judge_client_error(Busy(), (lambda error: said,)) == said
    assert judge_client_error(Busy(), lambda error: said) == said
    assert judge_client_error(Busy(), (lambda error: None,)) is None

    def breaks(error: Any) -> Proof | None:
        raise KeyError(error)

    proof = judge_client_error(Busy(), (breaks,))
    assert proof is not None
    assert proof.kind is Means.UNCERTAIN
    assert "breaks raised KeyError" in proof.row


@pytest.mark.parametrize(
    "row",
    [
        lambda: ErrorRow(),
        lambda: ErrorRow(Busy, "perhaps"),
        lambda: ErrorRow("Busy", "refused"),
        lambda: error_rows([Busy]),  # type: ignore[list-item]
        lambda: error_rows(["refused"]),  # type: ignore[list-item]
    ],
)
def test_a_row_that_says_nothing_is_refused(row: Any) -> None:
    with pytest.raises(DefinitionError):
        row()


class Nasty(httpx.HTTPStatusError):
    """Raises whatever is read of it."""

    hidden: ClassVar[set[str]] = {"response", "request", "args", "status_code", "headers", "code"}

    def __init__(self) -> None:
        Exception.__init__(self)

    def __getattribute__(self, name: str) -> Any:
        if name in Nasty.hidden:
            raise SystemExit(name)
        return super().__getattribute__(name)

    def __str__(self) -> str:
        raise RuntimeError("not printed")


class Loop(Exception):
    @property
    def reason(self) -> Exception:
        return self

    def __str__(self) -> str:
        return str(self)


def test_no_exception_makes_the_table_raise() -> None:
    proof = judge_client_error(Nasty())
    assert proof is not None
    assert proof.kind is Means.UNCERTAIN
    assert proof.message == "(its message cannot be printed)"
    assert retry_after_of(Nasty()) is None
    one, two = Loop(), Loop()
    one.__cause__, two.__cause__ = two, one
    assert judge_client_error(one) is None
    two.__context__ = httpx.ReadTimeout("late")
    proof = judge_client_error(one)
    assert proof is not None
    assert proof.kind is Means.UNCERTAIN
    assert "httpx.ReadTimeout" in proof.row


def test_an_unknown_wrapper_proves_nothing_about_what_it_wraps() -> None:
    error = Busy()
    error.__cause__ = httpx.ConnectError("refused")
    proof = judge_client_error(error)
    assert proof is not None
    assert proof.kind is Means.UNCERTAIN
    assert "raised after httpx.ConnectError" in proof.row


def test_an_error_of_the_system_that_no_client_raised_is_uncertain() -> None:
    """A database's connection may be refused after the provider was called."""
    assert _kind(ConnectionRefusedError(111, "refused")) is Means.UNCERTAIN
    assert _kind(socket.gaierror(-2, "unknown")) is Means.UNCERTAIN


def test_each_client_has_a_setting_that_makes_it_call_once() -> None:
    assert {"stripe", "openai", "botocore", "slack_sdk", "github", "urllib3"} <= set(OWN_RETRIES)
    for client, row in OWN_RETRIES.items():
        assert row.client == client
        assert row.off or client == "httpx"


def test_the_guide_shows_each_client_s_own_tries() -> None:
    guide = (Path(__file__).parents[2] / "docs/guides/charge-once.md").read_text()
    for row in OWN_RETRIES.values():
        [line] = [each for each in guide.splitlines() if each.startswith(f"| {row.client} |")]
        assert line.replace("`", "").startswith(f"| {row.client} | {row.tries} | {row.off}")
