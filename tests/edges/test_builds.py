"""The version of a build: where it comes from, and where people see it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.store import WorkerInfo
from relevo.version import RELEASE, mixed, version
from tests.conformance.steps import WORK
from tests.edges.box import Box
from tests.edges.test_deploy import ROOT

COMMIT = re.compile(rf"{re.escape(RELEASE)}\.dev20\d{{12}}\+g[0-9a-f]{{9,}}")
CHANGED = re.compile(rf"{COMMIT.pattern}\.d[0-9a-f]{{10}}")
CONTENT = re.compile(rf"{re.escape(RELEASE)}\.dev0\+d[0-9a-f]{{10}}")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The repository's source, on its own, under no version control."""
    folder = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", folder / "src", ignore=ignored)
    for name in (".gitignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def git(folder: Path, *words: str) -> None:
    assert shutil.which("git"), "install git"
    person = ["-c", "user.name=ann", "-c", "user.email=ann@example.com"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", *person, *words]
    subprocess.run(command, cwd=folder, env=environ, check=True, capture_output=True, timeout=30)


def commit(folder: Path) -> None:
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")


def told(folder: Path, *, path: str = os.environ["PATH"]) -> str:
    """What the package in a folder says that it is; it does not find git without a path."""
    words = ["-c", "from relevo.version import version; print(version())"]
    environ = {"PYTHONPATH": str(folder), "PATH": path}
    run = [sys.executable, "-S", *words]  # without the packages that are installed here
    site = str(Path(sys.prefix) / "lib" / f"python3.{sys.version_info.minor}" / "site-packages")
    environ["PYTHONPATH"] += f"{os.pathsep}{site}"
    made = subprocess.run(
        run, env=environ, check=True, capture_output=True, text=True, cwd=folder, timeout=30
    )
    return made.stdout.strip()


def built(folder: Path, target: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", "dist"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    [made] = (folder / "dist").glob("*.whl" if target == "wheel" else "*.tar.gz")
    return made


def test_sdist_and_wheel_have_the_commit_and_need_no_git(source: Path, tmp_path: Path) -> None:
    commit(source)
    name = told(source / "src")
    assert COMMIT.fullmatch(name)

    wheel = built(source, "wheel")
    assert wheel.name.split("-")[1] == name
    shutil.unpack_archive(built(source, "sdist"), tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    again = built(unpacked, "wheel")
    assert again.name == wheel.name
    shutil.unpack_archive(again, tmp_path / "installed", "zip")
    assert told(tmp_path / "installed", path="") == name


def test_a_changed_checkout_is_another_build(source: Path) -> None:
    commit(source)
    file = source / "src" / "relevo" / "ids.py"
    seen = {told(source / "src")}
    for change in ("# one\n", "# two\n"):
        file.write_text(file.read_text() + change)
        seen.add(told(source / "src"))
        assert CHANGED.fullmatch(told(source / "src"))
    assert len(seen) == 3
    assert told(source / "src") in built(source, "wheel").name


def test_the_tagged_commit_is_the_release(source: Path) -> None:
    commit(source)
    git(source, "tag", f"v{RELEASE}")
    assert told(source / "src") == RELEASE
    git(source, "commit", "--quiet", "--allow-empty", "--message", "more")
    assert COMMIT.fullmatch(told(source / "src"))


def test_where_git_is_not_there_a_build_is_named_by_its_content(source: Path) -> None:
    """Such as in the image, whose context has no commits; inside of another repository, too."""
    git(source.parent, "init", "--quiet")
    first = built(source, "wheel")
    assert CONTENT.fullmatch(first.name.split("-")[1])
    assert CONTENT.fullmatch(told(source / "src", path=""))
    file = source / "src" / "relevo" / "ids.py"
    file.write_text(file.read_text() + "# one\n")
    first.unlink()
    assert built(source, "wheel").name != first.name


def test_versions_are_mixed_where_another_is_at_work() -> None:
    assert mixed([]) == mixed([version(), ""]) == []
    assert mixed([version(), "0.0.9"]) == ["0.0.9", version()]


def test_the_program_tells_versions_and_warns_of_several(box: Box) -> None:
    assert box("--version").out == f"relevo {version()}\n"
    for id, name in (("w1", version()), ("w2", "0.0.9")):
        assert not [row for row in box("doctor", "--json").json if row["subject"] == "versions"]
        worker = WorkerInfo(id=id, host="h", pid=1, queues=[WORK], concurrency=5, version=name)
        box.do(lambda store, info=worker: store.beat(info, 60_000))
    assert [row["version"] for row in box("workers", "ls", "--json").json] == [version(), "0.0.9"]
    assert "0.0.9" in box("workers", "ls").out
    [row] = [row for row in box("doctor", "--json").json if row["subject"] == "versions"]
    assert row["level"] == "warning" and f"0.0.9, {version()}" in row["message"]


def test_the_program_tells_how_far_the_store_is(box: Box) -> None:
    """F45: a store of SQLite that is for newer code only was "up to date"."""
    known = box.do(lambda store: store.schema()).known
    assert box("migrate").out == "everything is up to date\n"
    assert schema_row(box)["level"] == "ok"

    with contextlib.closing(sqlite3.connect(box.path)) as hand, hand:
        hand.execute("insert into relevo_schema values (9001, 'later', ?)", (known,))
    newer = box("migrate")
    assert newer.code == 0 and "version 9001, newer than" in newer.out
    assert schema_row(box)["level"] == "warning" and "9001" in schema_row(box)["message"]

    with contextlib.closing(sqlite3.connect(box.path)) as hand, hand:
        hand.execute("update relevo_schema set readable_from = 9001 where version = 9001")
    for verb in (("migrate",), ("jobs", "ls")):
        refused = box(*verb)
        assert refused.code and "upgrade relevo" in refused.err and "up to date" not in refused.out


def schema_row(box: Box) -> dict[str, str]:
    [row] = [row for row in box("doctor", "--json").json if row["subject"] == "schema"]
    return row
