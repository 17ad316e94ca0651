"""C39: the container is built and run as `deploy/Dockerfile` says.

Docker does it where its daemon runs. Elsewhere podman does, as root, on a base made of Debian's own
packages under the name that the recipe asks for: no registry is needed, only the packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HOME = Path(__file__).parents[2]
RECIPE = HOME / "deploy" / "Dockerfile"
NEEDS = ("podman", "runc", "mmdebstrap")
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# What compose.yaml asks for, and the limits of whoever runs the test.
SHUT = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp"]
LIMITS = ["--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024"]
LOOK = """
import json, pathlib
said = pathlib.Path("/proc/self/status").read_text().splitlines()
told = dict(line.split(":\\t", 1) for line in said)
wrote = []
for place in ("/", "/opt/relevo", "/etc", "/usr", "/var/tmp", "/data", "/tmp"):
    try:
        pathlib.Path(place, "x").write_text("x")
        wrote.append(place)
    except OSError:
        pass
print(json.dumps({"wrote": wrote, **told}))
"""
CALL = """
import sys, urllib.request as u
body = sys.argv[2].encode() if len(sys.argv) > 2 else None
said = {"x-secret": "a-secret-for-the-box", "content-type": "application/json"}
call = u.Request("http://127.0.0.1:8700" + sys.argv[1], body, said)
print(u.urlopen(call, timeout=5).status)
"""


class Engine:
    """Docker or podman, whichever is here: the same words, the same answers."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.is_podman = "podman" in words[0]

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            [*self.words, *words], capture_output=True, text=True, input=stdin, timeout=600
        )
        assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def run(self, image: str, *words: str, options: tuple[str, ...] = ()) -> str:
        return self("run", "--network=none", *SHUT, *LIMITS, *options, image, *words)


def base(engine: Engine, folder: Path) -> None:
    """The image that the recipe starts from, made of this machine's Debian."""
    [suite] = re.findall(r"VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text())
    made = folder / "base.tar"
    words = ["mmdebstrap", "--quiet", "--variant=apt", suite, str(made)]
    words += ["--include=python3,python3-venv,ca-certificates"]
    words += [f"--customize-hook=copy-in {BUNDLE} {BUNDLE.parent}"]  # whom this machine trusts
    words += ["--customize-hook=ln -s python3 $1/usr/bin/python"]
    subprocess.run(words, check=True, timeout=300)
    [name] = set(re.findall(r"^FROM (\S+)", RECIPE.read_text(), re.M))
    trust = [f"--change=ENV {each}={BUNDLE}" for each in ("SSL_CERT_FILE", "PIP_CERT")]
    engine("import", "--quiet", *trust, str(made), f"docker.io/library/{name}")


@pytest.fixture
def engine(unmade: Callable[[str], None]) -> Iterator[Engine | None]:
    docker = shutil.which("docker")
    if docker and not subprocess.run([docker, "info"], capture_output=True).returncode:
        yield Engine(docker)
        return
    if os.geteuid() or not all(shutil.which(each) for each in NEEDS):
        unmade("no Docker here, nor root with podman, runc and mmdebstrap, to build the container")
        yield None
        return
    # Its own store, in a short path: podman refuses long ones. Nothing of it is left.
    with tempfile.TemporaryDirectory(prefix="box-", ignore_cleanup_errors=True) as folder:
        podman = Engine(
            *("podman", f"--root={folder}/store", f"--runroot={folder}/run", "--runtime=runc"),
            *("--cgroup-manager=cgroupfs", "--events-backend=file", "--storage-driver=overlay"),
        )
        try:
            base(podman, Path(folder))
            yield podman
        finally:
            podman("rm", "--all", "--force")
            podman("volume", "prune", "--force")
            subprocess.run(["umount", f"{folder}/store/overlay"], capture_output=True)


def wait(what: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_c39_the_container_is_built_and_works_shut(engine: Engine | None) -> None:
    """C39: not root, no capabilities, nothing to write to but /data; and it does its job there."""
    if engine is None:
        return
    ours = ("--network=host", "--pull=never", "--format=docker", "--layers=false")
    podman = ours if engine.is_podman else ()
    build = ("build", "--quiet", *podman, f"--file={RECIPE}", "--tag=relevo-test", str(HOME))
    image = engine(*build).splitlines()[-1]
    plain = ("--read-only-tmpfs=false",) if engine.is_podman else ()

    seen = json.loads(
        engine.run(image, "-c", LOOK, options=("--rm", "--entrypoint=python", *plain))
    )
    assert seen["wrote"] == ["/data", "/tmp"]
    assert seen["Uid"].split() == seen["Gid"].split() == ["10001"] * 4
    assert {seen[each] for each in seen if each.startswith("Cap")} == {"0" * 16}
    assert seen["NoNewPrivs"] == "1"

    volume = engine("volume", "create")
    options = ("--detach", f"--volume={volume}:/data", "--env=PYTHONPATH=/app", *plain)
    options += (f"--volume={HOME / 'tests' / 'edges' / 'boxed.py'}:/app/boxed.py:ro",)
    options += ("--env=RELEVO_ADMIN_PASSWORD=a-password-for-the-box",)

    def asked(box: str, *words: str) -> bool:
        told = subprocess.run(
            [*engine.words, "exec", box, "python", "-c", CALL, *words], capture_output=True
        )
        return told.stdout.strip() == b"200"

    def effects(box: str) -> list[str]:
        return engine("exec", box, "sh", "-c", "cat /data/effects || true").split()

    def stopped(box: str) -> None:
        engine("stop", "--time=20", box)
        assert engine("inspect", "--format={{.State.ExitCode}}", box) == "0"

    try:
        up = engine.run(image, "up", "boxed:app", options=options)
        wait(lambda: asked(up, "/health"))
        [check] = json.loads(engine("inspect", "--format=[{{json .Config.Healthcheck.Test}}]", up))
        assert check[0] == "CMD"
        engine("exec", up, *check[1:])
        assert asked(up, "/hooks/boxed", '{"id": "first"}')
        wait(lambda: effects(up) == ["first"])
        stopped(up)

        # Another container on the same volume: what was done is known, and not done again.
        serve = engine.run(image, "serve", "--app", "boxed:app", options=options)
        wait(lambda: asked(serve, "/health"))
        assert asked(serve, "/hooks/boxed", '{"id": "first"}')
        assert asked(serve, "/hooks/boxed", '{"id": "second"}')
        work = engine.run(image, "work", "--app", "boxed:app", options=options)
        wait(lambda: effects(work) == ["first", "second"])
        stopped(work)
        stopped(serve)
    finally:
        left = engine("ps", "--all", "--quiet", f"--filter=volume={volume}").split()
        if left:
            engine("rm", "--force", *left)
        engine("volume", "rm", volume)
