"""Prometheus' promtool: Debian's own package, found or fetched."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path


@functools.cache
def promtool() -> Path:
    """The program; RuntimeError saying what to install where it cannot be fetched."""
    if found := shutil.which("promtool"):
        return Path(found)
    home = Path(tempfile.gettempdir()) / f"relevo-prometheus-{os.getuid()}"
    program = home / "usr/bin/promtool"
    if not program.exists():
        made = Path(tempfile.mkdtemp(prefix="relevo-prometheus-"))
        try:
            subprocess.run(["apt-get", "download", "prometheus"], cwd=made, check=True, stdout=2)
            for package in made.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
                package.unlink()
            if home.exists():
                shutil.rmtree(made)
            else:
                made.rename(home)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"no promtool: install Debian's 'prometheus' ({error})") from error
    return program
