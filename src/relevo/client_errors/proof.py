"""Proof: what an exception or an answer says about a call, and the rows that an app adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from relevo.client_errors.reading import (
    Sight,
    classes,
    header,
    read,
    status_of,
    text,
    wait_of,
)
from relevo.clock import Duration, duration
from relevo.errors import DefinitionError


class Means(StrEnum):
    """What an error proves about the call that raised it."""

    NOT_SENT = "not_sent"
    """The call did not leave this machine: it is made again."""
    OUR_CREDENTIALS = "our_credentials"
    """The provider does not know us, so nothing happened: a person has to mend the key."""
    REFUSED = "refused"
    """The provider said no, and would say so again."""
    WAIT = "wait"
    """The provider asks for patience, and nothing happened: again after `retry_after`."""
    UNCERTAIN = "uncertain"
    """The call may have had its effect."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What an error proves, and by which row of the table.

    `row` is for people: `stripe.CardError 402`, or the reason why a better-looking error proves
    nothing: `openai.BadRequestError 400, after 2 other tries (set max_retries=0)`.
    `message` is what the provider said; `status` the HTTP status (SMTP: the reply's code), if any.
    """

    kind: Means
    row: str
    message: str = ""
    retry_after: timedelta | None = None
    status: int | None = None


Judge: TypeAlias = Callable[[Any], Proof | None]
"""Anything that looks at an error (or an answer) and knows what it means, or says None."""


class ErrorRow:
    """One line that an app adds to the table of errors.

        ErrorRow(stripe.CardError, "refused")
        ErrorRow("mypkg.Busy", "wait", retry_after="30s")
        ErrorRow(status=503, host="api.ship.example", means="wait")
        ErrorRow("mypkg.ApiError", "refused", when=lambda error: error.code == "declined")

    All that is named must be true of the error. A row with `every_try` speaks for all tries of a
    client that repeats calls by itself: say so where the client sends one idempotency key with all
    of them, and the provider honours it.
    """

    __slots__ = ("every_try", "host", "match", "means", "retry_after", "status", "when")

    def __init__(
        self,
        match: type[BaseException] | str | None = None,
        means: Means | str = "",
        *,
        status: int | Iterable[int] | None = None,
        host: str | None = None,
        when: Callable[[Any], bool] | None = None,
        retry_after: Duration | None = None,
        every_try: bool = False,
    ) -> None:
        if match is None and status is None and host is None and when is None:
            raise DefinitionError(
                "an ErrorRow needs to know which errors it is about: name a class, a status, a "
                "host or a condition, as in ErrorRow(status=503, host='api.example.com', "
                "means='wait')"
            )
        if isinstance(match, str) and not re.fullmatch(r"[A-Za-z_][\w.]*\.\w+", match):
            raise DefinitionError(
                f"{match!r:.80} does not name a class: write the package, too, as in "
                "'stripe.CardError'"
            )
        try:
            self.means = Means(means)
        except ValueError:
            raise DefinitionError(
                f"an error cannot mean {means!r:.40}: write one of {', '.join(Means)}"
            ) from None
        self.match = match
        self.status = frozenset({status} if isinstance(status, int) else status or ())
        self.host = host
        self.when = when
        self.retry_after = None if retry_after is None else duration(retry_after)
        self.every_try = every_try

    def __repr__(self) -> str:
        said = [*([self.name] if self.match else []), self.means.value]
        said += [f"status={sorted(self.status)}"] if self.status else []
        said += [f"host={self.host!r}"] if self.host else []
        return f"ErrorRow({', '.join(said)})"

    @property
    def name(self) -> str:
        """The class that the row is about, as text."""
        if self.match is None or isinstance(self.match, str):
            return self.match or ""
        return f"{self.match.__module__.partition('.')[0]}.{self.match.__qualname__}"

    def fits(self, thing: object) -> bool:
        """Whether an error or an answer is one that this row is about."""
        if isinstance(self.match, str):
            if not any(_is_called(self.match, *each) for each in classes(thing)):
                return False
        elif self.match is not None and not isinstance(thing, self.match):
            return False
        if self.status and answer_status(thing) not in self.status:
            return False
        if self.host is not None and host_of(thing) != self.host.lower():
            return False
        return self.when is None or bool(self.when(thing))

    def judge(self, sight: Sight) -> Proof | None:
        """What the row says about an error; None where it is about other ones."""
        thing = sight.error
        if not self.fits(thing):
            return None
        status = answer_status(thing)
        said = [self.name or "errors=", *([str(status)] if status else [])]
        return Proof(
            self.means,
            f"{' '.join(said)} (a row of the app)",
            message_of(thing),
            (retry_after_of(thing) or self.retry_after) if self.means is Means.WAIT else None,
            status,
        )


Row: TypeAlias = ErrorRow | Judge
Rows: TypeAlias = Iterable[Row] | Mapping[type[BaseException] | str, Means | str]


def error_rows(given: Rows | None) -> tuple[Row, ...]:
    """What an app wrote as `errors=`, checked: rows and judges, or a mapping of classes."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        table = cast("Mapping[type[BaseException] | str, Means | str]", given)
        return tuple(ErrorRow(match, means) for match, means in table.items())
    rows = tuple(cast("Iterable[Any]", given))
    for row in rows:
        if not isinstance(row, ErrorRow) and (isinstance(row, type) or not callable(row)):
            raise DefinitionError(
                f"{row!r:.80} is no row of the table of errors: write ErrorRow(…), a function that "
                "returns a Proof or None, or give a mapping of classes to what they mean"
            )
    return rows


def _is_called(wanted: str, module: str, name: str) -> bool:
    """Whether a class answers to a name; libraries show classes under shorter ones than theirs."""
    *path, last = wanted.split(".")
    if last != name.rpartition(".")[2]:
        return False
    parts = iter([*module.split("."), *name.split(".")[:-1]])
    return path[:1] == module.split(".")[:1] and all(piece in parts for piece in path)


def answer_of(thing: object) -> Any:
    """The answer that an exception carries, or the exception itself where its fields are in it."""
    answer = read(thing, "response")
    return thing if answer is None else answer


def answer_status(thing: object) -> int | None:
    """The HTTP status of an answer, or of the answer in an exception."""
    found = status_of(answer_of(thing)) or status_of(thing)
    return found or status_of(
        {"status": read(thing, "response", "ResponseMetadata", "HTTPStatusCode")}
    )


def headers_of(thing: object) -> list[Any]:
    """All headers that an error or an answer carries; `hdrs` and metadata are headers, too."""
    answer = answer_of(thing)
    found = [
        read(answer, "headers"),
        read(thing, "headers"),
        read(answer, "ResponseMetadata", "HTTPHeaders"),
    ]
    return [each for each in found if each is not None]


def retry_after_of(thing: object) -> timedelta | None:
    """How long a client's error or answer asks to wait, 1 s to 1 h; None if it does not say."""
    for headers in headers_of(thing):
        wait = wait_of(header(headers, "Retry-After"))
        if wait is not None:
            return wait
    milliseconds = next(
        (found for each in headers_of(thing) if (found := header(each, "retry-after-ms"))), None
    )
    if milliseconds and re.fullmatch(r"\d{1,9}", milliseconds, re.ASCII):
        return wait_of(int(milliseconds) / 1000)
    return wait_of(read(thing, "retry_after"))


def host_of(thing: object) -> str | None:
    """The host that was called, in lower case; None if the error does not tell."""
    for path in (("request", "url"), ("response", "request", "url"), ("url",), ("response", "url"),
                 ("request_info", "real_url"), ("filename",)):  # fmt: skip
        url = read(thing, *path)
        host = read(url, "host")
        if not isinstance(host, str) or not host:
            try:
                host = urlsplit(url if isinstance(url, str) else text(url)).hostname
            except ValueError:
                host = None
        if host:
            return host.lower()
    return None


_WORDS = ("message", "error_description", "detail", "title", "error", "msg", "reason", "code")


def message_of(thing: object) -> str:
    """The provider's words: those of its answer's body before those of the client."""
    answer = answer_of(thing)
    for source, path in (
        (thing, "user_message"),  # stripe
        (thing, "body"),  # openai
        (thing, "data"),  # PyGithub
        (answer, "data"),  # slack
        (thing, "msg"),  # twilio
        (answer, "Error"),  # botocore
    ):
        words = _words(read(source, path))
        if words:
            return words
    content = read(answer, "_content")  # httpx, requests, aiohttp: read already, or not at all
    if content is None:
        content = read(answer, "_body")
    if isinstance(content, bytes | str) and content:
        return _in_json(content) or text(content)
    if isinstance(thing, BaseException | str):
        return text(thing)
    return _words(thing) or text(read(thing, "reason_phrase") or read(thing, "reason") or "")


def _in_json(content: bytes | str) -> str:
    import json

    try:
        return _words(json.loads(content[:100_000]))
    except (ValueError, RecursionError):
        return ""


def _words(value: Any, depth: int = 0) -> str:
    if isinstance(value, str):
        return text(value)
    if not isinstance(value, Mapping) or depth > 2:
        return ""
    for name in _WORDS:
        words = _words(read(cast("Any", value), name), depth + 1)
        if words:
            return words
    return ""
