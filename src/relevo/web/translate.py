"""English in the templates, Spanish from tables: one dict per room, the English text is the key."""

from __future__ import annotations

from collections.abc import Mapping
from string import Formatter
from typing import Any, Final, Literal, TypeAlias

Language: TypeAlias = Literal["en", "es"]
LANGUAGES: Final[dict[Language, str]] = {"en": "English", "es": "Español"}


class _Spanish(Formatter):
    """Format that writes 1.234,5 where Python writes 1,234.5."""

    def format_field(self, value: Any, format_spec: str) -> str:
        made: str = super().format_field(value, format_spec)
        return made.translate(_SWAPPED) if "," in format_spec else made


_SWAPPED: Final = str.maketrans(",.", ".,")
_SPANISH: Final = _Spanish()


class Words:
    """A room's words in one language; called as `_("Retried {n} jobs", n=3)`."""

    def __init__(self, language: Language, *tables: Mapping[str, str]) -> None:
        self.language: Language = language
        self._tables = tables

    def __call__(self, text: str, /, **values: object) -> str:
        if self.language == "en":
            return text.format(**values) if values else text
        said = next((table[text] for table in self._tables if text in table), text)
        return _SPANISH.vformat(said, (), values) if values else said

    def number(self, value: float, spec: str = ",") -> str:
        """A number with its thousands apart, as they are written in the language."""
        return f"{value:{spec}}" if self.language == "en" else _SPANISH.format_field(value, spec)


def language_of(chosen: str | None, accepted: str) -> Language:
    """What a person chose, or else what their browser likes best."""
    if chosen in LANGUAGES:
        return chosen
    for part in accepted[:500].lower().split(","):
        tag = part.strip()[:2]
        if tag in LANGUAGES:
            return tag
    return "en"
