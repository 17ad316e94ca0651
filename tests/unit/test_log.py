"""Lines of log, whatever is said in them."""

from __future__ import annotations

import json
import logging

import pytest

from relevo.telemetry import JsonLines, TextLines

HOSTILE = 'a\n{"level":"critical"}\r\x1b[31m\x9b31m\x07\u2028\u2029\x85\x0b\x0c\x00\u202e z'


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_c22_a_record_is_one_line_whatever_is_in_it(form: logging.Formatter) -> None:
    said = dict.fromkeys(("queue", "key", "worker", "error", "path"), HOSTILE)
    record = logging.makeLogRecord(
        {"msg": "%s came", "args": (HOSTILE,), "levelname": "INFO", **said}
    )

    line = form.format(record)

    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.count("critical") == 1 + len(said)
    if isinstance(form, JsonLines):
        assert json.loads(line)["level"] == "info"


@pytest.mark.parametrize("form", [JsonLines(), TextLines()])
def test_c22_a_field_is_cut_off(form: logging.Formatter) -> None:
    long = logging.makeLogRecord({"msg": "x" * 1_000_000, "queue": "y" * 1_000_000})
    assert len(form.format(long)) < 5_000
