"""Chromium: the system's, or Debian's package where we may install it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE = 120


def find() -> str | None:
    """Where a browser is, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def find_or_install() -> str | None:
    """The same, after asking Debian for one; once, however many processes ask."""
    if (path := find()) is not None:
        return path
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    tried = Path(tempfile.gettempdir()) / "relevo-chromium-tried"
    with tried.open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if find() is None and not lock.read():
            _install()
            lock.write("tried\n")
    return find()


def _install() -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for verb in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", NAMES[0]]):
        try:
            subprocess.run(
                ["apt-get", *verb],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=PATIENCE,
                check=True,
            )
        except (subprocess.SubprocessError, OSError):
            return
