"""From paths to syntax trees. What is read is never imported or run, and links are not followed."""

from __future__ import annotations

import ast
import io
import os
import re
import stat
import sys
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

SIZE_MAX = 2 * 1024 * 1024

SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})
"""Directories not looked into, like those whose name begins with a dot."""

# A codec of another name may be anyone's code, registered under it.
_ENCODINGS = {
    "utf-8": "utf-8",
    "utf8": "utf-8",
    "utf-8-sig": "utf-8",
    "ascii": "ascii",
    "us-ascii": "ascii",
    "latin-1": "latin-1",
    "latin1": "latin-1",
    "iso-8859-1": "latin-1",
    "iso-8859-15": "iso-8859-15",
    "cp1252": "cp1252",
    "windows-1252": "cp1252",
}
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
_BLANK = re.compile(rb"^[ \t\f]*(?:#.*)?$")
_NEWLINE = re.compile("\r\n|\r|\n")
_ALLOW = re.compile(r"#\s*relevo:\s*allow\b([^#]*)", re.IGNORECASE)
_CODE = re.compile(r"\s+(RV\d{3})(?:\s*[-–—:]\s*|\s+)(\S.*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Allow:
    """A comment that silences one rule on one line, or, without a code, one that is malformed."""

    line: int  # of the comment
    col: int
    silences: int  # the line it speaks of
    code: str
    problem: str = ""


@dataclass(eq=False, slots=True)
class Source:
    """One file that could be read."""

    file: str  # as reports name it
    path: Path
    tree: ast.Module
    lines: list[str]
    allows: list[Allow]
    silenced: set[tuple[int, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.silenced = {(allow.silences, allow.code) for allow in self.allows}


@dataclass(frozen=True, slots=True)
class Unread:
    """One file, or directory, that could not be read."""

    file: str
    message: str
    line: int = 1
    col: int = 1


class _Unreadable(Exception):
    """Why a file is left out."""


# Finding files


def find(paths: Iterable[str | Path]) -> Iterator[tuple[str, Path] | Unread]:
    """The Python files under some paths, each once, in the order of their names.

    A path that was named may be a link; what lies under it is not followed out of it, nor inside
    it, where the file is found under its own name anyway.
    """
    seen: set[Path] = set()
    for given in paths:
        root = Path(given)
        real = root.resolve(strict=True)
        for found in _under(root, real) if real.is_dir() else [(root.as_posix(), real)]:
            if isinstance(found, Unread):
                yield found
            elif found[1] not in seen:
                seen.add(found[1])
                yield found


def _under(root: Path, real: Path) -> Iterator[tuple[str, Path] | Unread]:
    pending: list[tuple[Path, Path]] = [(root, real)]
    while pending:
        name, path = pending.pop()
        try:
            with os.scandir(path) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            yield Unread(name.as_posix(), f"the directory cannot be listed: {error.strerror}")
            continue
        for entry in listed:
            if entry.name.endswith(".py") and entry.is_file(follow_symlinks=False):
                yield (name / entry.name).as_posix(), path / entry.name
        for entry in reversed(listed):
            is_ours = not entry.name.startswith(".") and entry.name not in SKIPPED
            if is_ours and entry.is_dir(follow_symlinks=False):
                inside = path / entry.name
                if not (inside / "pyvenv.cfg").exists():
                    pending.append((name / entry.name, inside))


# Reading one


def read(file: str, path: Path) -> Source | Unread:
    """The tree of a file, or why there is none."""
    try:
        text = _text(_bytes(path))
        tree = _tree(text)
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        message = f"Python {version} cannot parse it: {error.msg}"
        return Unread(file, message, max(1, error.lineno or 1), max(1, error.offset or 1))
    except OSError as error:
        return Unread(file, f"the file cannot be read: {error.strerror}")
    except _Unreadable as error:
        return Unread(file, str(error))
    # The parser's own text is split at these three, and nowhere else.
    lines = _NEWLINE.split(text)
    return Source(file, path, tree, lines, _allows(text, lines, tree))


def _bytes(path: Path) -> bytes:
    # A pipe must not hang us, and a link put there meanwhile must not lead us away.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise _Unreadable("it is not a regular file")
        data = b"" if status.st_size > SIZE_MAX else file.read(SIZE_MAX + 1)
    if status.st_size > SIZE_MAX or len(data) > SIZE_MAX:
        raise _Unreadable(f"it is larger than {SIZE_MAX:,} bytes, and was not read")
    return data


def _text(data: bytes) -> str:
    data = data.removeprefix(b"\xef\xbb\xbf")
    first, second = (*data.split(b"\n", 2), b"")[:2]
    cookie = _COOKIE.match(first) or (_BLANK.match(first) and _COOKIE.match(second))
    declared = cookie[1].decode().lower().replace("_", "-") if cookie else "utf-8"
    if declared not in _ENCODINGS:
        raise _Unreadable(f"it declares the encoding {declared[:40]!r}; save it as UTF-8")
    try:
        text = data.decode(_ENCODINGS[declared])
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise SyntaxError(f"it is not {declared}", ("", line, 1, None)) from None
    if "\0" in text:
        raise SyntaxError(
            "it has a NUL character", ("", text[: text.index("\0")].count("\n") + 1, 1, None)
        )
    return text


def _tree(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an odd escape in their text is not our subject
        try:
            return ast.parse(text)
        except (RecursionError, MemoryError):
            raise _Unreadable("it is nested too deep for the parser") from None
        except ValueError as error:
            raise _Unreadable(f"it cannot be parsed: {error}") from None


# Comments


def _allows(text: str, lines: list[str], tree: ast.Module) -> list[Allow]:
    """The `# relevo: allow` comments; a tokenizer tells them from text that looks like one."""
    if not _ALLOW.search(text):
        return []
    allows: list[Allow] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
            if token.type == tokenize.COMMENT:
                line, col = token.start
                stands_alone = not lines[line - 1][:col].strip()
                silences = _below(line, lines) if stands_alone else line
                for match in _ALLOW.finditer(token.string):
                    allows.append(_allow(match, line, col + 1 + match.start(), silences))
    except (tokenize.TokenError, SyntaxError):
        pass  # the parser took it, so only what follows the last statement is odd
    return allows + _for_decorated(allows, tree)


def _allow(match: re.Match[str], line: int, col: int, silences: int) -> Allow:
    said = _CODE.match(match[1])
    if said and re.search(r"\w", said[2]):
        return Allow(line, col, silences, said[1])
    has_code = re.match(r"\s+RV\d{3}\b", match[1], re.ASCII)
    problem = "it gives no reason" if has_code else "it names no rule"
    return Allow(line, col, silences, "", problem)


def _below(line: int, lines: list[str]) -> int:
    """The first line under a comment that is none."""
    while line < len(lines) and lines[line].lstrip().startswith("#"):
        line += 1
    return line + 1


def _for_decorated(allows: list[Allow], tree: ast.Module) -> list[Allow]:
    """What is said above the first decorator is said of the function or class under it."""
    above: dict[int, list[Allow]] = {}
    for allow in allows:
        if allow.code and allow.silences != allow.line:
            above.setdefault(allow.silences, []).append(allow)
    made: list[Allow] = []
    for node in ast.walk(tree) if above else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min((each.lineno for each in node.decorator_list), default=0)
            for allow in above.get(first, ()):
                made.append(Allow(allow.line, allow.col, node.lineno, allow.code))
    return made
