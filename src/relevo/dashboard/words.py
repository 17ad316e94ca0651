"""The Spanish of the dashboard; the English text is the key."""

from __future__ import annotations

from typing import Final

SPANISH: Final[dict[str, str]] = {}
