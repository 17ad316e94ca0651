"""What people deploy is whole: the wheel, the image's recipe, compose, systemd, Grafana."""

from __future__ import annotations

import configparser
import itertools
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from relevo.cli import _program  # pyright: ignore[reportPrivateUsage] - its own tree of verbs
from relevo.settings import describe

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSED = sorted(DEPLOY.glob("compose*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SETTINGS = {row.variable for row in describe()}


def verbs() -> set[str]:
    return set(_program().commands)


def test_the_wheel_holds_every_file_of_the_package(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    [wheel] = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "relevo"
    files = {
        f"relevo/{path.relative_to(package)}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files <= held, sorted(files - held)
    suffixes = {Path(name).suffix for name in held}
    assert {".py", ".html", ".css", ".js", ".lua", ".sql", ".typed"} <= suffixes


def test_the_image_is_made_of_files_and_extras_that_exist() -> None:
    recipe = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.*)$", recipe, re.M):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [extra] = re.findall(r'"\.\[(\w+)\]"', recipe)
    assert extra in project["optional-dependencies"]
    assert set(re.findall(r"\b(RELEVO_\w+)=", recipe)) <= SETTINGS
    assert re.search(r"^USER (?!0\b|root\b)", recipe, re.M)
    assert json.loads(re.findall(r"^ENTRYPOINT (.*)$", recipe, re.M)[0]) == ["relevo"]
    assert json.loads(re.findall(r"^CMD (.*)$", recipe, re.M)[0])[0] in verbs()


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.name)
def test_a_compose_file_names_what_exists(path: Path) -> None:
    made: dict[str, Any] = yaml.safe_load(path.read_text())
    services: dict[str, Any] = made["services"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in made["volumes"], volume
        for network in service.get("networks", []):
            assert network in made["networks"], network
        if "build" not in service:
            continue
        build = service["build"]
        assert (path.parent / build["context"] / build["dockerfile"]).exists()
        assert service["command"][0] in verbs()
        ours = {each for each in service["environment"] if each.startswith("RELEVO_")}
        assert ours <= SETTINGS
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    published = [port for each in services.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.name)
def test_a_compose_file_starts_nothing_without_its_passwords(path: Path) -> None:
    """C34: an empty --requirepass is a Redis that anybody may use."""
    text = "\n".join(line for line in path.read_text().splitlines() if line[:1] != "#")
    asked = re.findall(r"\$\{(\w*PASSWORD)(:\?[^}]+)?\}", text)
    assert asked and all(said for _, said in asked), asked
    assert not re.search(r"rediss?://(?!:\$\{REDIS_PASSWORD:\?)", text)
    made: dict[str, Any] = yaml.safe_load(text)
    for name, service in made["services"].items():
        if service.get("image", "").startswith("redis:"):
            command = service["command"]
            asked_for = command[command.index("--requirepass") + 1]
            assert asked_for.startswith("${REDIS_PASSWORD:?"), name
    for name, service in made["services"].items():
        if "build" in service:
            limit = service["ulimits"]["nofile"]
            assert (limit["soft"], limit["hard"]) == (65_536, 65_536), name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_verb_as_somebody_who_is_not_root(path: Path) -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - names have capitals
    unit.read_string(path.read_text())
    service = unit["Service"]
    program, verb, *_ = service["ExecStart"].split()
    assert program == "/opt/relevo/bin/relevo" and verb in verbs()
    assert "ExecStartPre" not in service, "no process migrates as it starts"
    assert service["User"] == "relevo"
    assert service["ProtectSystem"] == "strict"
    assert service["StateDirectoryMode"] == "0700"
    assert service["LimitNOFILE"] == "65536"
    # Each unit has a /tmp of its own; what tells that a neighbour died must be in a shared place.
    assert service["Environment"] == "TMPDIR=/run/relevo"
    assert (service["RuntimeDirectory"], service["RuntimeDirectoryPreserve"]) == ("relevo", "yes")


def test_the_grafana_dashboard_is_one() -> None:
    board = json.loads((DEPLOY / "grafana" / "relevo.json").read_text())
    assert board["title"] and board["schemaVersion"] >= 36
    variables = {each["name"] for each in board["templating"]["list"]}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries", "table") and panel["title"]
        place = panel["gridPos"]
        assert place["w"] > 0 and place["x"] + place["w"] <= 24
        cells = set(
            itertools.product(
                range(place["x"], place["x"] + place["w"]),
                range(place["y"], place["y"] + place["h"]),
            )
        )
        assert not cells & taken, f"{panel['title']} lies upon another"
        taken |= cells
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
        for target in [panel, *panel["targets"]]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${source}"}
        for target in panel["targets"]:
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
            assert used <= variables


def test_what_every_process_tells_alike_is_never_added_up() -> None:
    board = json.loads((DEPLOY / "grafana" / "relevo.json").read_text())
    rules = yaml.safe_load((DEPLOY / "grafana" / "alerts.yaml").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    for expression in asked:
        for found in re.finditer(r"\brelevo_\w+", expression):
            if not re.search(r"_commands_total$|_info$|_store_up$", found[0]):
                before = expression[: found.start()]
                assert re.search(r"max( by \([\w, ]+\))? ?\((\w+\()?$", before), expression


def test_prometheus_reads_every_panel_and_rings_for_what_it_should(
    tmp_path: Path, unmade: Callable[[str], None]
) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        unmade("no promtool here to try the rules and to read what the dashboard asks")
        return
    board = json.loads((DEPLOY / "grafana" / "relevo.json").read_text())
    asked = {
        f"panel_{panel['id']}_{target['refId']}": target["expr"]
        .replace("$__rate_interval", "1m")
        .replace("$queue", ".*")
        for panel in board["panels"]
        for target in panel["targets"]
    }
    assert not [each for each in asked.values() if "$" in each]
    rules = [{"record": name, "expr": expression} for name, expression in asked.items()]
    panels = tmp_path / "panels.yaml"
    panels.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for words in (
        ["check", "rules", "--lint-fatal", str(panels)],
        ["check", "rules", "--lint-fatal", "alerts.yaml"],
        ["test", "rules", "alerts.test.yaml"],
    ):
        made = subprocess.run(
            [promtool, *words],
            cwd=DEPLOY / "grafana",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert made.returncode == 0, made.stdout


def test_every_alert_has_been_heard() -> None:
    rules = yaml.safe_load((DEPLOY / "grafana" / "alerts.yaml").read_text())
    tried = yaml.safe_load((DEPLOY / "grafana" / "alerts.test.yaml").read_text())
    assert {rule["alert"] for group in rules["groups"] for rule in group["rules"]} == {
        each["alertname"]
        for test in tried["tests"]
        for each in test.get("alert_rule_test", [])
        if each.get("exp_alerts")
    }
