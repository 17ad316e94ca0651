"""Did the application itself call more than once? What the code that an error came through tells.

A loop around a client, a function that calls itself, or an earlier answer still at hand: then the
last error speaks for the last call alone. Only the application's own code is looked at, which lies
between relevo and the client.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import islice, pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

from relevo.client_errors.proof import answer_of, headers_of
from relevo.client_errors.reading import Sight, names, read, steps_of, text

_MOST = 100
_CODE_MAX = 20_000  # bytes; to walk through more would hold the event loop up

RETRIERS = frozenset(
    {"tenacity", "backoff", "stamina", "retrying", "retry", "aiohttp_retry", "httpx_retries"}
)
"""Libraries that repeat calls; they keep a count of their own."""

_NEUTRAL = RETRIERS | frozenset(
    {"asyncio", "anyio", "concurrent", "contextlib", "functools", "threading", "trio"}
)
_CLIENTS = frozenset({
    "aiohttp", "anthropic", "botocore", "aiobotocore", "boto3", "github", "google", "grpc", "h11",
    "h2", "http", "httpcore", "httpcore2", "httpx", "httpx2", "openai", "requests", "slack_sdk",
    "smtplib", "socket", "ssl", "stripe", "twilio", "urllib", "urllib3",
})  # fmt: skip


class _Step(NamedTuple):
    frame: FrameType
    code: CodeType
    at: int


def called_before(sight: Sight) -> str:
    """Why the application may have called before; "" where nothing shows that."""
    seen: set[int] = set()
    for step in _own_steps(sight):
        if _may_come_back(step.code, step.at):
            return f"in a loop of {step.code.co_name}()"
        if id(step.code) in seen and id(step.frame) not in seen:
            return f"repeated by {step.code.co_name}()"
        seen |= {id(step.code), id(step.frame)}
        if name := _answer_at_hand(step, sight.error):
            return f"after the call that gave '{name}' in {step.code.co_name}()"
    return ""


def _own_steps(sight: Sight) -> Iterator[_Step]:
    """The steps of the application's code, from the outermost one to the client."""
    steps = list(islice(steps_of(sight.error), _MOST))
    ours = [n for n, (module, *_) in enumerate(steps) if module == "relevo.calling"]
    # Without us, the first one caught the error: a loop around that is known to its author.
    for module, frame, at in steps[ours[-1] + 1 if ours else 1 :]:
        package = module.partition(".")[0]
        if package in _CLIENTS:
            return
        if package not in _NEUTRAL:
            yield _Step(frame, frame.f_code, at)


# Loops


_NEVER_GOES_ON = frozenset({
    "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "RETURN_VALUE", "RETURN_CONST",
    "RAISE_VARARGS", "RERAISE",
})  # fmt: skip


def _may_come_back(code: CodeType, at: int) -> bool:
    """Whether code may run an instruction again after that has raised or gone on.

    An `await` is a loop of its own in the bytecode, and none of the application's.
    """
    if len(code.co_code) > _CODE_MAX:
        return False
    bytecode: Any = dis.Bytecode(code)
    listed: list[dis.Instruction] = list(bytecode)
    following = {a.offset: b.offset for a, b in pairwise(listed)}
    by_offset = {each.offset: each for each in listed}
    start = max((offset for offset in by_offset if offset <= at), default=0)
    pending, seen = [start], set[int]()
    while pending:
        offset = pending.pop()
        each = by_offset[offset]
        after: list[int] = [
            entry.target
            for entry in bytecode.exception_entries
            if entry.start <= offset < entry.end
        ]
        if each.opname not in _NEVER_GOES_ON and offset in following:
            after.append(following[offset])
        is_jump = each.opcode in dis.hasjrel or each.opcode in dis.hasjabs
        if is_jump and each.opname != "JUMP_BACKWARD_NO_INTERRUPT":
            after.append(each.argval)
        if start in after:
            return True
        pending += [one for one in after if one in by_offset and one not in seen]
        seen.update(after)
    return False


# Answers


_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_RESULTS = frozenset({
    "stripe.StripeObject", "slack_sdk.SlackResponse", "slack_sdk.AsyncSlackResponse",
    "twilio.InstanceResource", "github.GithubObject", "openai.BaseModel", "anthropic.BaseModel",
})  # fmt: skip
_RESPONSES = frozenset({
    "httpx.Response", "httpx2.Response", "requests.Response", "aiohttp.ClientResponse",
})  # fmt: skip


def _answer_at_hand(step: _Step, error: object) -> str:
    """The name that a function has given to the answer of another call than the one that failed."""
    code = step.code
    given = code.co_argcount + code.co_kwonlyargcount
    given += bool(code.co_flags & 4) + bool(code.co_flags & 8)
    taken = set(code.co_varnames[:given])
    own = [name for name in (*code.co_varnames, *code.co_cellvars) if name not in taken]
    for name in own:
        value = read(step.frame.f_locals, name)
        kinds = set(names(value))
        if kinds & _RESPONSES and not _is_of(value, error):
            method = read(value, "request", "method") or read(value, "method")
            if text(method).upper() not in _READS:
                return name
        if kinds & _RESULTS:
            return name
        if type(value) is dict and "ResponseMetadata" in value:
            return name
    return ""


def _is_of(answer: object, error: object) -> bool:
    """Whether an answer is the one that an error was raised for."""
    headers = read(answer, "headers")
    return answer is answer_of(error) or any(headers is each for each in headers_of(error))
