"""A small disk that fills up, and is freed again."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BALLAST = 40 << 20


class Disk:
    """A file system of so many bytes, of which `free()` gives some back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def weigh_down(self) -> None:
        self._ballast.write_bytes(b"\1" * BALLAST)

    def free(self) -> None:
        self._ballast.unlink()

    def left(self) -> int:
        return shutil.disk_usage(self.path).free


@contextmanager
def small_disk(path: Path, size: int) -> Iterator[Disk | None]:
    """A disk mounted at `path`; None where only root could make one."""
    path.mkdir()
    options = f"size={size},mode=0777"
    made = os.geteuid() == 0 and not subprocess.call(
        ["mount", "-t", "tmpfs", "-o", options, "relevo-test", str(path)],
        stderr=subprocess.DEVNULL,
    )
    if not made:
        yield None
        return
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
