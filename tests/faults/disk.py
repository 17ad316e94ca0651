"""A small disk that fills up, and is freed again."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Disk:
    """A file system of its own, with ballast that can be thrown out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def weigh_down(self, size: int) -> None:
        self._ballast.write_bytes(b"\1" * size)

    def free(self) -> None:
        self._ballast.unlink()

    def left(self) -> int:
        return shutil.disk_usage(self.path).free


@contextmanager
def small_disk(size: int) -> Iterator[Disk | None]:
    """A disk of so many bytes that every user may reach; None where only root could make one."""
    path = tempfile.mkdtemp(prefix="relevo-disk-")
    words = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "relevo-test", path]
    Path(path).chmod(0o755)
    made = os.geteuid() == 0 and not subprocess.call(words, stderr=subprocess.DEVNULL)
    try:
        yield Disk(Path(path)) if made else None
    finally:
        if made:
            subprocess.run(["umount", "--lazy", path], check=True)
        Path(path).rmdir()
