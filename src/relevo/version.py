"""The version of this build: that of a release, or before one its commit's date and hash.

Hatchling runs this file to name a build. What is installed, and a source distribution, know their
name from then on; only a checkout is named anew each time, so that it needs no installation after
each commit.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

RELEASE = "0.1.0"
"""The next release, until the commit with the tag v0.1.0: then this one."""

_DATE_AND_HASH = ("--date=format-local:%Y%m%d%H%M%S", "--format=%cd+g%h", "--abbrev=9")
_FILE = Path(__file__).resolve()
_CHECKOUT = _FILE.parents[2]


@cache
def version() -> str:
    """The version of the code that runs here; two builds never share one."""
    if _FILE.parts[-3:-1] == ("src", "relevo") and not (_CHECKOUT / "PKG-INFO").exists():
        return made()
    try:
        return metadata.version("relevo")
    except metadata.PackageNotFoundError:
        return made()


def mixed(others: Iterable[str]) -> list[str]:
    """The versions at work, where this process and others are not of one; else none."""
    versions = sorted({version(), *filter(None, others)})
    return versions if len(versions) > 1 else []


def made() -> str:
    """The version of what this source makes: its commit, or where git is not there its content.

    A commit that was changed since has both.
    """
    if not (_CHECKOUT / ".git").exists() or not (commit := _git("log", "-1", *_DATE_AND_HASH)):
        return f"{RELEASE}.dev0+{_content()}"
    changed = f".{_content()}" if _git("status", "--porcelain", "--", "src") else ""
    if not changed and f"v{RELEASE}" in _git("tag", "--points-at", "HEAD").split():
        return RELEASE
    return f"{RELEASE}.dev{commit}{changed}"


def _git(*words: str) -> str:
    """What git says of this checkout; '' where it says nothing, or is not there."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        said = subprocess.run(  # noqa: S603 - words of this file alone
            ["git", "-C", str(_CHECKOUT), *words],  # noqa: S607 - the one on PATH
            # Without the lock, which a person's own git would meet.
            env=environ | {"TZ": "UTC", "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return said.stdout.strip() if said.returncode == 0 else ""


def _content() -> str:
    """A hash of every file of the package."""
    every = hashlib.blake2b(digest_size=5)
    for file in sorted(_FILE.parent.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            every.update(f"{file.relative_to(_FILE.parent)}\0{file.stat().st_size}\0".encode())
            every.update(file.read_bytes())
    return f"d{every.hexdigest()}"
