"""`relevo check` as a person, a script and a build server use it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from relevo import cli
from relevo.check import RULES

RELEVO = Path(sys.executable).parent / "relevo"
BAD = 'import time\n\n\n@app.get("/x")\nasync def handler() -> None:\n    time.sleep(1)\n'


def relevo(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    command = [RELEVO, *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "api.py").write_text(BAD)
    (tmp_path / "src" / "fine.py").write_text("x = 1\n")
    return tmp_path


def test_findings_are_lines_with_their_mending_below(project: Path) -> None:
    done = relevo(project, "check", "src")
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "src/api.py:6:5 RV001 the answer waits for slow work: handler → time.sleep",
        f"    {RULES['RV001'].mending}",
        "src/api.py:6:5 RV002 the event loop is blocked: handler → time.sleep",
        f"    {RULES['RV002'].mending}",
    ]
    assert done.stderr == "2 found in 1 file\n"


def test_clean_source_is_silent(project: Path) -> None:
    done = relevo(project, "check", "src/fine.py")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_a_path_it_reads_the_current_directory(project: Path) -> None:
    assert "src/api.py:6:5" in relevo(project, "check").stdout


def test_rules_are_selected_and_ignored(project: Path) -> None:
    assert "RV001" not in relevo(project, "check", "--select", "RV002", "src").stdout
    assert relevo(project, "check", "--ignore", "rv001, RV002", "src").returncode == 0
    many = relevo(project, "check", "--select", "RV001", "--select", "RV002,RV003", "src")
    assert many.stderr == "2 found in 1 file\n"


@pytest.mark.parametrize("args", [["check", "--json", "src"], ["--json", "check", "src"]])
def test_json_is_one_array(project: Path, args: list[str]) -> None:
    done = relevo(project, *args)
    assert done.returncode == 1
    first, _ = json.loads(done.stdout)
    assert first == {
        "file": "src/api.py",
        "line": 6,
        "col": 5,
        "code": "RV001",
        "message": "the answer waits for slow work: handler → time.sleep",
        "mending": RULES["RV001"].mending,
    }
    assert json.loads(relevo(project, "check", "--json", "src/fine.py").stdout) == []


@pytest.mark.parametrize("code", RULES)
def test_every_rule_is_explained(capsys: pytest.CaptureFixture[str], code: str) -> None:
    assert cli.run(["check", "--explain", code.lower()]) == 0
    told = capsys.readouterr().out
    assert all(words in told for words in (RULES[code].title, RULES[code].mending))


@pytest.mark.parametrize(
    "args",
    [
        ["nowhere"],
        ["--select", "RV999"],
        ["--ignore", "everything"],
        ["--explain", "RV1"],
        ["--no-such-option"],
    ],
)
def test_a_wrong_call_exits_2_with_a_line(
    capsys: pytest.CaptureFixture[str], args: list[str]
) -> None:
    assert cli.run(["check", *args]) == 2
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)


def test_colours_are_for_terminals(project: Path) -> None:
    assert "\x1b" not in relevo(project, "check", "src").stdout
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    with subprocess.Popen([RELEVO, "check", "src"], cwd=project, env=env, stdout=follower) as shown:
        os.close(follower)
        text = b""
        while True:
            try:
                part = os.read(leader, 65_536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            text += part
        assert shown.wait(60) == 1
    os.close(leader)
    assert b"\x1b[" in text
    assert b"src/api.py" in text


def test_a_files_name_cannot_drive_the_terminal_or_forge_a_line(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[31m\nb.py:1:1 RV001 [red]forged.py").write_text("def broken(:\n")
    done = relevo(tmp_path, "check", ".")
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2
    assert "\x1b" not in done.stdout
    assert r"a\x1b[31m\nb.py:1:1 RV001 [red]forged.py:1:12 RV000" in done.stdout
    [report] = json.loads(relevo(tmp_path, "check", "--json", ".").stdout)
    assert report["file"] == "a\x1b[31m\nb.py:1:1 RV001 [red]forged.py"
