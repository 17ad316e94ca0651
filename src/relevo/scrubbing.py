"""Take what looks like a credential out of a text that is kept or shown."""

from __future__ import annotations

import re

_SECRET = re.compile(
    r"(?P<keep>\b(?:bearer|basic)\s+|://[^\s:/@]{0,128}:|"
    r"\b\w{0,40}(?:passw|secret|token|api_?key|authorization|contrase)\w{0,40}[\"']?\s*[=:]\s*[\"']?"
    r"(?:(?:bearer|basic)\s+)?)"
    r"(?P<value>[^\s\"'&,;@]{4,4096})|"
    r"\b(?:sk|rk|pk)_(?:live|test)_\w+|\bwhsec_\w+|\beyJ[\w-]+\.[\w-]+\.[\w-]+",
    re.I,
)


def scrub(text: str) -> str:
    """Text without what looks like a credential, and without control characters."""
    clean = _SECRET.sub(lambda match: (match["keep"] or "") + "***", text)
    return "".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in clean)
