"""Text that PostgreSQL cannot hold as it is, made such that it can, and back."""

from __future__ import annotations

import re
from typing import TypeVar, cast

# A private character that nobody uses announces six hex digits. NUL and lone surrogates are
# what PostgreSQL refuses; the mark itself is escaped too, so that every text comes back as it was.
_MARK = "\U0010fffd"
_REFUSED = re.compile(f"[\0\ud800-\udfff{_MARK}]")
_ESCAPED = re.compile(f"{_MARK}([0-9a-f]{{6}})")


Text = TypeVar("Text", bound=str | None)


def clean(text: Text) -> Text:
    """The text as PostgreSQL takes it."""
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return cast("Text", _REFUSED.sub(lambda found: f"{_MARK}{ord(found[0]):06x}", text))


def restore(text: Text) -> Text:
    """The text as it was before `clean`."""
    if text is None or text.isascii():
        return text
    return cast("Text", _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text))
