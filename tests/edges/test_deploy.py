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
from pathlib import Path
from typing import Any

import pytest
import yaml

from relevo.cli import _program  # pyright: ignore[reportPrivateUsage] - its own tree of verbs
from relevo.settings import describe
from tests.servers import composed
from tests.servers.prometheus import promtool

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSED = sorted(DEPLOY.glob("compose*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
SOCKETS = sorted((DEPLOY / "systemd").glob("*.socket"))
CTL = DEPLOY / "systemd" / "relevo-ctl"
PAGE = ROOT / "docs" / "guides" / "deploy-without-a-gap.md"
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
        assert service["image"] == "${IMAGE:-relevo}"
        ours = {each for each in service["environment"] if each.startswith("RELEVO_")}
        assert ours <= SETTINGS
        assert service["read_only"] and service["cap_drop"] == ["ALL"]
    published = [port for each in services.values() for port in each.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.name)
def test_a_compose_file_fits_the_schema_and_bounds_what_runs(path: Path, tmp_path: Path) -> None:
    """By Debian's docker-compose, which also says what is wrong with a wrong one."""
    copy = tmp_path / path.name
    copy.write_text(path.read_text())
    (tmp_path / ".env").touch()
    passwords = {"POSTGRES_PASSWORD": "a", "REDIS_PASSWORD": "b"}
    read = composed.config(copy, **passwords)
    assert read.returncode == 0, read.stderr
    for name, service in yaml.safe_load(read.stdout)["services"].items():
        assert "mem_limit" in service, name
        assert {"max-size", "max-file"} <= set(service["logging"]["options"]), name
        if service.get("command") not in (["migrate"], "migrate"):
            assert "stop_grace_period" in service, name
    copy.write_text(path.read_text().replace("mem_limit: 1g", "mem_limits: 1g"))
    wrong = composed.config(copy, **passwords)
    assert wrong.returncode != 0 and "mem_limits" in wrong.stderr


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


def read(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] - names have capitals
    unit.read_string(path.read_text())
    return unit


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_verb_as_somebody_who_is_not_root(path: Path) -> None:
    service = read(path)["Service"]
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


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_bounds_its_process_and_is_never_given_up(path: Path) -> None:
    service, unit = read(path)["Service"], read(path)["Unit"]
    assert {"MemoryMax", "TimeoutStopSec", "EnvironmentFile"} <= set(service)
    assert (service["Restart"], unit["StartLimitIntervalSec"]) == ("always", "0")
    assert "Environment=PYTHONPATH=/opt/relevo/app" in path.read_text()
    speaks = service["ExecStart"].split()[1] in ("serve", "work")
    assert (service["Type"], "WatchdogSec" in service) == ("notify" if speaks else "exec", speaks)
    if "web" in path.name:
        socket = path.with_suffix(".socket")
        assert socket in SOCKETS
        named = socket.name.replace("@", "@%i")
        assert unit["Requires"] == named and named in unit["After"]


def test_systemd_takes_every_unit_without_a_word(tmp_path: Path) -> None:
    """As `systemd-analyze verify` reads them, with a program that is there."""
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None, "install Debian's 'systemd'"
    program = Path(sys.executable).with_name("relevo")
    names: list[str] = []
    for path in (*UNITS, *SOCKETS):
        text = path.read_text().replace("/opt/relevo/bin/relevo", str(program))
        (tmp_path / path.name).write_text(text)
        names.append(str(tmp_path / path.name.replace("@.", "@8701.")))
    done = verified(analyze, *names)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
    web = tmp_path / "relevo-web.service"
    web.write_text(web.read_text().replace("MemoryMax=1G", "MemoryMaximum=1G"))
    assert "MemoryMaximum" in verified(analyze, str(web)).stdout


def verified(analyze: str, *names: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", "--man=no", *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_line_of_the_units_has_what_they_have(tmp_path: Path) -> None:
    """relevo-ctl asks systemd for the user, settings, folders and code of a worker."""
    given = tmp_path / "systemd-run"
    given.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "id").write_text("#!/bin/sh\necho 0\n")
    for each in (given, tmp_path / "id"):
        each.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    done = subprocess.run(
        ["sh", str(CTL), "jobs", "ls", "--key", "two words"],
        env={"PATH": path, "SUDO_USER": "ann"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    said = done.stdout.splitlines()
    split = said.index("--")
    assert said[split + 1 :] == ["/opt/relevo/bin/relevo", "jobs", "ls", "--key", "two words"]
    asked = {each.removeprefix("--property=") for each in said[:split] if "--property=" in each}
    unit = (DEPLOY / "systemd" / "relevo-worker@.service").read_text().splitlines()
    assert asked and asked <= set(unit), asked - set(unit)
    set_here = {each.removeprefix("--setenv=") for each in said[:split] if "--setenv=" in each}
    assert {
        each.removeprefix("Environment=") for each in unit if "Environment=" in each
    } <= set_here
    assert "SUDO_USER=ann" in set_here and "--pipe" in said
    helped = subprocess.run(
        ["systemd-run", "--help"], capture_output=True, text=True, timeout=30, check=False
    ).stdout
    options = {each.partition("=")[0] for each in said[:split]}
    assert [each for each in sorted(options) if each not in helped] == []


def test_the_page_s_kubernetes_objects_are_what_they_say() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    web, worker = (yaml.safe_load(block) for block in blocks)
    assert (web["kind"], worker["kind"]) == ("StatefulSet", "Deployment")
    for made in (web, worker):
        spec = made["spec"]["template"]["spec"]
        labels = made["spec"]["template"]["metadata"]["labels"]
        assert made["spec"]["selector"]["matchLabels"] == labels
        [container] = spec["containers"]
        assert container["args"][0] in verbs()
        assert container["resources"]["limits"]["memory"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        names = {each["name"] for each in spec["volumes"]}
        names |= {e["metadata"]["name"] for e in made["spec"].get("volumeClaimTemplates", [])}
        assert {each["name"] for each in container["volumeMounts"]} == names
        assert {each["name"] for each in container.get("env", [])} <= SETTINGS
    [container] = web["spec"]["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    waits = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert web["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > waits + 2 * 10
    assert worker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 300


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
    tmp_path: Path,
) -> None:
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
            [promtool(), *words],
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
