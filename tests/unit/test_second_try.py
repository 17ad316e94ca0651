"""`make test` tells which tests passed only at the second try."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.second_try import LIST, known

ROOT = Path(__file__).parents[2]
TEST = """
from pathlib import Path

def test_it():
    here = Path(__file__).with_name("was-here")
    was = here.exists()
    here.touch()
    assert was
"""


@pytest.mark.parametrize(
    ("listed", "code"),
    [("", 1), ("test_sample.py::test_it", 1), ("test_sample.py::test_it  it is slow", 0)],
)
def test_what_passes_only_at_the_second_try_needs_a_reason(
    tmp_path: Path, listed: str, code: int
) -> None:
    (tmp_path / "test_sample.py").write_text(TEST)
    (tmp_path / "flaky.txt").write_text(f"# a comment\n{listed}\n")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        words = ["-m", "pytest", "-q", "-p", "tests.second_try", "--rootdir", str(tmp_path), *more]
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )

    assert run().returncode == 1
    second = run("--last-failed", "--second-try", "flaky.txt")

    assert "passed only at the second try" in second.stdout
    assert second.returncode == code, second.stdout


def test_the_list_names_tests_that_exist_each_with_a_reason() -> None:
    for test, reason in known(LIST).items():
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text()
        assert reason
