"""`relevo new module` writes what our own tools would let pass, and what passes its own test."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relevo import cli

BIN = Path(sys.executable).parent
RULES = Path(__file__).parents[2] / "pyproject.toml"

SHAPE = ["__init__.py", "events.py", "listeners.py", "queues.py", "workers.py"]
LONGEST = "a23456789_123456789_123456789x"


def new(folder: Path, *args: str) -> int:
    with contextlib.chdir(folder):
        return cli.run(["new", "module", *args])


def run(folder: Path, program: str, *args: str) -> str:
    # Nothing of the pytest that runs us may leak into the one that is run.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [BIN / program, *args],
        cwd=folder,
        env=env | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module of each kind, under names short and as long as they may be."""
    folder = tmp_path_factory.mktemp("project")
    run(folder, "relevo", "new", "module", "welcome")
    assert new(folder, "billing", "--app", "shop") == 0
    assert new(folder, LONGEST) == 0
    assert new(folder, "z" + LONGEST[1:], "--app", LONGEST) == 0
    return folder


def test_a_module_has_the_canonical_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert new(tmp_path, "welcome_email") == 0
    expected = {f"welcome_email/{name}" for name in SHAPE}
    assert files(tmp_path) == expected | {"tests/__init__.py", "tests/test_welcome_email.py"}
    told = capsys.readouterr().out.splitlines()
    assert set(told) == {f"wrote {name}" for name in files(tmp_path)}
    queues = (tmp_path / "welcome_email" / "queues.py").read_text()
    assert 'queue="welcome_email:requests:carry-out"' in queues


def test_a_module_of_an_app_has_its_name_in_the_queue(tmp_path: Path) -> None:
    assert new(tmp_path, "welcome_email", "--app", "razworks") == 0
    queues = (tmp_path / "welcome_email" / "queues.py").read_text()
    assert 'queue="razworks:welcome-email:carry-out"' in queues
    wiring = (tmp_path / "welcome_email" / "__init__.py").read_text()
    assert "from relevo import App" not in wiring


def test_a_new_module_passes_its_own_test(project: Path) -> None:
    assert "4 passed" in run(project, "pytest", "-q", "-p", "no:cacheprovider")


def test_a_new_module_passes_relevo_check(project: Path) -> None:
    assert run(project, "relevo", "check", ".") == ""


def test_a_new_module_passes_our_ruff(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(project, tmp_path / "copy")
    ours = RULES.read_text().replace('src = ["src", "tests", "bench"]', 'src = ["."]')
    (copy / "pyproject.toml").write_text(ours)
    run(copy, "ruff", "check", "--no-cache", ".")
    run(copy, "ruff", "format", "--no-cache", "--check", ".")


def test_a_new_module_passes_ruff_as_it_comes(project: Path) -> None:
    run(project, "ruff", "check", "--no-cache", "--isolated", "--extend-select", "I,D100", ".")
    run(project, "ruff", "format", "--no-cache", "--isolated", "--check", ".")


def test_a_new_module_passes_strict_types(project: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(project, tmp_path / "copy")
    (copy / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict"}))
    run(copy, "basedpyright", "--pythonpath", sys.executable, ".")


NAMES = ["", "Bad", "1st", "a-b", "a b", "_x", "x_", "x__y", "é", "x" * 31]
PATHS = ["../x", "a/b", "a.b", "x\n", "/tmp/x", "..", "~"]


@pytest.mark.parametrize("name", [*NAMES, *PATHS])
def test_a_name_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert (new(tmp_path, "--", name), files(tmp_path)) == (2, set())
    assert "cannot name a module" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["email", "class", "tests", "relevo", "msgspec"])
def test_a_name_that_would_hide_another_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert (new(tmp_path, name), files(tmp_path)) == (2, set())
    assert "is taken" in capsys.readouterr().err


def test_an_app_name_that_is_none_is_refused(tmp_path: Path) -> None:
    assert (new(tmp_path, "billing", "--app", "My Shop"), files(tmp_path)) == (2, set())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new(tmp_path, "billing") == 0
    before = {path: path.read_text() for path in tmp_path.rglob("*.py")}
    assert new(tmp_path, "billing") == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert {path: path.read_text() for path in tmp_path.rglob("*.py")} == before


@pytest.mark.parametrize("there", ["billing/notes.txt", "billing", "tests/test_billing.py"])
def test_what_is_there_stays_alone(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("mine")
    assert (new(tmp_path, "billing"), files(tmp_path)) == (2, {there})


def test_a_dangling_link_is_not_written_through(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "test_billing.py").symlink_to(tmp_path / "elsewhere.py")
    assert new(folder, "billing") == 2
    assert not (tmp_path / "elsewhere.py").exists()


def test_tests_that_are_there_keep_their_layout(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    assert new(tmp_path, "billing") == 0
    assert not (tmp_path / "tests" / "__init__.py").exists()
