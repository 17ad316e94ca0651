"""Report, one mistake in one place, and Rule, what kind of mistake it is."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from relevo.check.application import Application
    from relevo.check.outline import Module


@dataclass(frozen=True, order=True, slots=True)
class Report:
    """Where something will hurt, why, and how to mend it."""

    file: str
    line: int
    col: int
    code: str
    message: str
    mending: str


@dataclass(frozen=True, slots=True)
class Finding:
    """What a rule found at a node of a file."""

    module: Module
    node: ast.AST
    message: str


Find: TypeAlias = "Callable[[Application], Iterator[Finding]]"


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of mistake: its title, why it hurts, how to mend it, and how it is found.

    `find` is None for what is found while a file is read: RV000 and RV015.
    """

    code: str
    title: str
    why: str
    mending: str
    find: Find | None = None
