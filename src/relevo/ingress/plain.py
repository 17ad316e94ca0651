"""Plain: a call that came whole and in the usual spelling, read in one step.

This is no second parser of HTTP. It knows one spelling, in which no two readers could see different
things; a call that differs from it in one byte is the parser's, which takes or refuses it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

USUAL_BYTES = 8_192
USUAL_LINES = 100

_CALL = re.compile(
    rb"(POST|PUT) (/[A-Za-z0-9._~/-]*+)(?:\?([!-\"$-~]*+))? HTTP/1\.1\r\n"
    rb"((?:[A-Za-z0-9-]++: [!-~][ -~]*+(?<! )\r\n)++)\r\n"
)
_UNUSUAL = frozenset(
    {
        "content-encoding",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Call(NamedTuple):
    """A call, whole."""

    method: str
    path: str
    query: str
    headers: list[tuple[str, str]]  # no name twice, and in lower case
    media: bytes | None  # the type of the body, as it was sent
    body: bytes


def read(data: bytes) -> Call | None:
    """The one call that `data` is; None if it is anything else."""
    found = _CALL.match(data)
    if found is None or (end := found.end()) > USUAL_BYTES:
        return None
    method, path, query, lines = found.groups()
    headers: list[tuple[str, str]] = []
    for line in str(lines, "ascii").split("\r\n"):
        name, _, value = line.partition(": ")
        headers.append((name.lower(), value))
    headers.pop()  # what follows the last line's end
    values = dict(headers)
    body = data[end:]
    if (
        values.get("content-length") != str(len(body))
        or values.get("connection", "keep-alive") != "keep-alive"
        or not len(headers) == len(values) <= USUAL_LINES
        or not _UNUSUAL.isdisjoint(values)
    ):
        return None
    media = values.get("content-type")
    return Call(
        str(method, "ascii"),
        str(path, "ascii"),
        "" if query is None else str(query, "ascii"),
        headers,
        None if media is None else media.encode(),
        body,
    )
