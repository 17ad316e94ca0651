"""docker-compose of Debian, which reads a compose file as Docker does: found, or fetched."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = (
    *("docker-compose", "python3-docker", "python3-dockerpty", "python3-docopt", "python3-dotenv"),
    *("python3-texttable", "python3-websocket", "python3-yaml", "python3-jsonschema"),
    *(
        "python3-distro",
        "python3-requests",
        "python3-attr",
        "python3-pyrsistent",
        "python3-urllib3",
    ),
    *("python3-certifi", "python3-chardet", "python3-charset-normalizer", "python3-idna"),
    "python3-six",
)


@functools.cache
def _program() -> tuple[list[str], dict[str, str]]:
    """The command, and the environment that it needs."""
    if found := shutil.which("docker-compose"):
        return [found], {}
    home = Path(tempfile.gettempdir()) / f"relevo-compose-{os.getuid()}"
    if not home.exists():
        made = Path(tempfile.mkdtemp(prefix="relevo-compose-"))
        try:
            subprocess.run(["apt-get", "download", *PACKAGES], cwd=made, check=True, stdout=2)
            for package in made.glob("*.deb"):
                subprocess.run(["dpkg-deb", "-x", package, made], check=True)
            if not home.exists():
                made.rename(home)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RuntimeError(f"install Debian's 'docker-compose' ({error})") from error
    words = "from compose.cli.main import main; main()"
    path = str(home / "usr/lib/python3/dist-packages")
    return [sys.executable, "-W", "ignore", "-c", words], {"PYTHONPATH": path}


def config(path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Read a compose file, hold it against the schema, and print what it means."""
    command, needed = _program()
    return subprocess.run(
        [*command, "--file", str(path), "config"],
        env=os.environ | needed | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
