"""The little language of `Upstash-Retry-Delay`: numbers, + - * /, parentheses, a few functions.

delay("min(60000, 1000 * pow(2, retried))", retried=3)   →  8000.0 ms
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

LONGEST = 512
_DEEPEST = 32
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?|\.\d+)|([a-z]+)|([-+*/(),]))", re.ASCII)

_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "pow": (2, math.pow),
    "sqrt": (1, math.sqrt),
    "abs": (1, abs),
    "exp": (1, math.exp),
    "floor": (1, math.floor),
    "ceil": (1, math.ceil),
    "round": (1, round),
    "min": (-1, lambda *values: min(values)),
    "max": (-1, lambda *values: max(values)),
}


class WrongExpression(ValueError):
    """The text is no expression of this language."""


def check(text: str) -> None:
    """WrongExpression unless it gives a number for the first retry."""
    delay(text, 0)


def delay(text: str, retried: int) -> float:
    """The milliseconds that an expression gives; 0 at least."""
    try:
        value = _Reader(text, retried).read()
    except (ArithmeticError, ValueError) as error:
        raise WrongExpression(str(error)[:200] or "no number comes out of it") from error
    if not math.isfinite(value):
        raise WrongExpression("no number comes out of it")
    return max(0.0, value)


class _Reader:
    """Reads an expression and counts as it goes."""

    def __init__(self, text: str, retried: int) -> None:
        if len(text) > LONGEST:
            raise WrongExpression(f"more than {LONGEST} characters")
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._retried = float(retried)

    def read(self) -> float:
        value = self._sum()
        if self._at < len(self._tokens):
            raise WrongExpression(f"'{self._tokens[self._at]}' was not expected")
        return value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, wanted: str) -> None:
        if self._next() != wanted:
            raise WrongExpression(f"'{wanted}' is missing")
        self._at += 1

    def _sum(self) -> float:
        value = self._product()
        while self._next() in ("+", "-"):
            sign = self._next()
            self._at += 1
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _product(self) -> float:
        value = self._factor()
        while self._next() in ("*", "/"):
            sign = self._next()
            self._at += 1
            other = self._factor()
            value = value * other if sign == "*" else value / other
        return value

    def _factor(self) -> float:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise WrongExpression("nested too deep")
        try:
            return self._value()
        finally:
            self._depth -= 1

    def _value(self) -> float:
        word = self._next()
        self._at += 1
        if word in ("-", "+"):
            value = self._factor()
            return -value if word == "-" else value
        if word == "(":
            value = self._sum()
            self._take(")")
            return value
        if word == "retried":
            return self._retried
        if word in _FUNCTIONS:
            return self._call(word)
        if word[:1].isdigit() or word[:1] == ".":
            return float(word)
        raise WrongExpression(f"'{word}' is not known" if word else "it ends too early")

    def _call(self, name: str) -> float:
        count, function = _FUNCTIONS[name]
        self._take("(")
        values = [self._sum()]
        while self._next() == ",":
            self._at += 1
            values.append(self._sum())
        self._take(")")
        if count > 0 and len(values) != count:
            raise WrongExpression(f"{name}() takes {count}")
        return float(function(*values))


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    at = 0
    plain = text.rstrip()
    while at < len(plain):
        match = _TOKEN.match(plain, at)
        if match is None:
            raise WrongExpression(f"'{plain[at]}' is not known")
        found.append(match[0].strip())
        at = match.end()
    return found
