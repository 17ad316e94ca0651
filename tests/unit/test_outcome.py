"""What a failure means for its job, and how it is kept."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relevo import (
    CircuitOpen,
    PayloadError,
    ProviderCredentials,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
    StoreUnavailable,
    constant,
)
from relevo.outcome import Dead, Held, Parked, Postponed, Retry, describe, judge, scrub

BACKOFF = constant("10s", jitter=0)


def verdict(error: BaseException, attempt: int = 1, attempts: int = 3) -> object:
    return judge(error, attempt, attempts, BACKOFF, account="shop:ship")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("x"), Retry),
        (ProviderUnavailable("503"), Retry),
        (ProviderRefused("no"), Dead),
        (ProviderCredentials("expired"), Parked),
        (PayloadError("bad"), Dead),
        (ProviderUncertain("?"), Held),
        (CircuitOpen("supplier:28"), Parked),
        (StoreUnavailable("away"), Postponed),
        (KeyboardInterrupt(), Retry),
    ],
)
def test_errors_are_told_apart(error: BaseException, expected: type) -> None:
    assert isinstance(verdict(error), expected)


def test_the_last_attempt_is_the_end() -> None:
    assert isinstance(verdict(ValueError("x"), attempt=3), Dead)
    assert isinstance(verdict(ProviderUnavailable("503"), attempt=3), Dead)


def test_what_is_not_the_job_s_fault_spends_nothing_even_at_the_end() -> None:
    assert isinstance(verdict(StoreUnavailable("away"), attempt=3), Postponed)
    assert isinstance(verdict(CircuitOpen("x"), attempt=3), Parked)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (timedelta(), timedelta(seconds=1)),
        (timedelta(seconds=-1), timedelta(seconds=1)),
        (timedelta(seconds=30), timedelta(seconds=30)),
        (timedelta(days=1_000), timedelta(hours=1)),
    ],
)
def test_a_provider_s_wait_is_honoured_within_reason(asked: timedelta, kept: timedelta) -> None:
    """B44: within [1 s, 1 h], and the attempt is not burned."""
    error = ProviderUnavailable("429", retry_after=asked, spends=False)

    outcome = verdict(error, attempt=3)

    assert isinstance(outcome, Postponed)
    assert outcome.delay == kept


def test_a_wait_that_spends_an_attempt_is_honoured_too() -> None:
    error = ProviderUnavailable("503", retry_after=timedelta(days=1))

    outcome = verdict(error, attempt=1)

    assert isinstance(outcome, Retry)
    assert outcome.delay == timedelta(hours=1)


def test_a_wrong_key_parks_the_job_behind_the_account_and_spends_nothing() -> None:
    outcome = verdict(ProviderCredentials("the key has expired"), attempt=3)

    assert isinstance(outcome, Parked)
    assert outcome.behind == "unaccepted:shop:ship"
    assert outcome.failure is not None and outcome.failure.message == "the key has expired"


def test_a_breaker_s_jobs_are_parked_behind_its_name() -> None:
    outcome = verdict(CircuitOpen("supplier:28"))

    assert isinstance(outcome, Parked)
    assert outcome.behind == "breaker:supplier:28"


def fail(message: str) -> BaseException:
    try:
        raise ValueError(message)
    except ValueError as error:
        return error


def test_equal_mistakes_have_equal_fingerprints() -> None:
    one = describe(fail("order 17 of 'Ana' at 0x7f3a: no such row"))
    two = describe(fail("order 42 of 'Eva' at 0x91bc: no such row"))
    other = describe(fail("the printer is on fire"))

    assert one.fingerprint == two.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Bearer CANARY123",
        "postgresql://ana:CANARY123@db/shop",
        "postgresql://ana:1234/CANARY123@db/shop",
        "postgresql://ana:1234:CANARY123@db/shop",
        "postgresql://ana:1234.CANARY123@db/shop",
        "password=CANARY123 rest",
        '{"api_key": "CANARY123"}',
        "contraseña: CANARY123",
        "token='CANARY123'",
        "sk_live_CANARY123",
        "whsec_CANARY123",
        "eyJhbGciOi.CANARY123.sig",
        "https://CANARY123@api.example/orders",
        '<Password Type="text">CANARY123</Password>',
        "<Password>correct CANARY123 horse</Password>",
        r'password="open\"CANARY123"',
        """{'password': 'o"CANARY123', 'x': 1}""",
        "POST https://api.telegram.org/bot1234567890:AACANARY123" + "x" * 24 + "/sendMessage",
    ],
)
def test_secrets_are_scrubbed_from_what_is_kept(text: str) -> None:
    """C20."""
    kept = describe(fail(text))

    assert "CANARY123" not in kept.message + kept.trace
    assert "CANARY123" not in scrub(text)


@pytest.mark.parametrize(
    "text",
    [
        "redis://127.0.0.1:6379/1",
        "redis://cache:6379",
        "POST 'http://supplier.example:8080/book?room=2' answered 503",
        "see http://127.0.0.1:8700/jobs, or http://[::1]:8700.",
        "nothing answers at http://127.0.0.1:8700: [Errno 111] Connection refused",
        "postgresql://relevo@db/shop",
        "https://social.example/@ana and mail ana@example.com",
    ],
)
def test_the_port_the_path_and_the_user_of_an_address_are_no_password(text: str) -> None:
    assert scrub(text) == text


@pytest.mark.parametrize(
    "text",
    ["<Error>bad password</Error>", "<Token/>", "<Password></Password> is missing"],
)
def test_an_element_that_tells_about_a_password_is_shown(text: str) -> None:
    assert scrub(text) == text


def test_control_characters_do_not_reach_a_log() -> None:
    """C22: no escape sequence, no second line forged with a carriage return."""
    assert "\x1b" not in scrub("\x1b[31mred\r\n")
    assert "\r" not in scrub("a\rb")


def test_what_is_kept_is_small() -> None:
    """F08: at most 8 KiB, whatever was raised."""
    failure = describe(fail("x" * 50_000_000))

    assert len(failure.message.encode()) + len(failure.trace.encode()) <= 8_192


def test_a_trace_holds_a_line_of_the_program_s_own() -> None:
    import httpx

    def of_mine() -> None:
        httpx.get("http://127.0.0.1:9/", timeout=1)

    with pytest.raises(httpx.ConnectError) as caught:
        of_mine()

    assert "in of_mine" in describe(caught.value).trace
