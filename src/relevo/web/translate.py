"""English in the templates, Spanish from tables: one dict per room, the English text is the key."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Formatter
from typing import Any, Final, Literal, TypeAlias

from jinja2 import Environment, nodes

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


def untranslated(folder: Path, *tables: Mapping[str, str]) -> list[str]:
    """What is said in a folder's templates and Python files without a word of Spanish for it."""
    known = {text for table in tables for text in table}
    said = {text for path in sorted(folder.rglob("*.*")) for text in _said(path)}
    return sorted(said - known)


def _said(path: Path) -> Iterator[str]:
    if path.suffix == ".html":
        tree = Environment(autoescape=True).parse(path.read_text())
        for call in tree.find_all(nodes.Call):
            name = getattr(call.node, "name", getattr(call.node, "attr", ""))
            if name == "_" and call.args and isinstance(call.args[0], nodes.Const):
                yield str(call.args[0].value)
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                first = node.args[0]
                if name == "_" and isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield first.value
