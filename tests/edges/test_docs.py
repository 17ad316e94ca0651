"""The documents are true: samples run, links lead somewhere, figures are those that were kept."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from bench import pages as bench_pages
from bench import plots
from bench.report import kept

import relevo
from relevo import App, Breaker, Command, Context, Event, Flow, Intake, Poll, Relevo
from relevo.apps.cars.gateways import KINDS
from relevo.once import OnceOptions
from tests.edges.reference import pages

ROOT = Path(__file__).parents[2]
DOCS = [
    *(ROOT / name for name in ("README.md", "README.es.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SAMPLES = [
    page for page in DOCS if "```console\n$ " in page.read_text() and page.name != "README.es.md"
]

SYSTEMS = ("cars", "hotel", "expenses", "subscriptions", "razworks", "qstash")

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
_FILE = re.compile(r"\{?# ([\w./-]+\.\w+)(?: #\})?\n")
_LOOK = re.compile(r"curl -s '?\S+$|relevo \w+ (ls|show|bots|dead|month)\b")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


class Shell:
    """What a person types, in a folder of their own; what ends in & runs on beside the rest.

    Variables set by one command are there for the next.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beside: list[subprocess.Popen[str]] = []
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        clean = {name: each for name, each in os.environ.items() if not name.startswith("RELEVO_")}
        self.env = clean | {"PATH": tools, "COLUMNS": "200", "PYTHONPATH": str(folder)}

    def run(self, command: str, port: int) -> str:
        if command.endswith(" &"):
            return self._start(command.removesuffix(" &"), port)
        kept = self.folder / ".variables"
        done = subprocess.run(  # noqa: S602 - the page shows what a person types
            f"set -a\n{command}\nended=$?\nenv -0 > {kept}\nexit $ended",
            shell=True,
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        self.env = dict(each.split("=", 1) for each in kept.read_text().split("\0") if "=" in each)
        return done.stdout + done.stderr

    def look(self, command: str, port: int, shown: list[str]) -> str:
        """The same; a look that changes nothing is taken again until it shows what is awaited."""
        deadline = time.monotonic() + 30
        while True:
            printed = self.run(command, port)
            is_there = all(line in printed for line in shown)
            if is_there or time.monotonic() > deadline or not _LOOK.match(command):
                return printed
            time.sleep(0.2)

    def _start(self, command: str, port: int) -> str:
        with (self.folder / "beside.log").open("ab") as log:
            running = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.env, text=True, stdout=log, stderr=log
            )
        self.beside.append(running)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and running.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", port), timeout=1):
                    return ""
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"{command}\n{(self.folder / 'beside.log').read_text()}")

    def close(self) -> None:
        for running in self.beside:
            running.terminate()
            running.wait(20)


def parted(step: str) -> tuple[str, list[str]]:
    """A command, which goes on while a quote is open or a line ends in \\, and what it shows."""
    lines = step.splitlines()
    command = lines.pop(0)
    while lines and (command.endswith("\\") or command.count("'") % 2):
        command += "\n" + lines.pop(0)
    return command, [line.strip() for line in lines if line.strip()]


@pytest.fixture
def shell(tmp_path: Path):
    made = Shell(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("page", SAMPLES, ids=named)
def test_a_page_s_samples_run_and_print_what_it_shows(page: Path, shell: Shell) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        port, pretended = one.getsockname()[1], two.getsockname()[1]
    # The ports that a page names may be taken here.
    text = re.sub(r"\b(?:8700|8080)\b", str(port), page.read_text()).replace("8701", str(pretended))
    text = re.sub(r"(relevo simulators|--simulators)\b", rf"\1 --simulators-port {pretended}", text)
    shell.env["RELEVO_PORT"] = str(port)
    for kind, body in _FENCE.findall(text):
        if kind in ("python", "html") and (name := _FILE.match(body)):
            file = shell.folder / name[1]
            file.parent.mkdir(exist_ok=True)
            file.write_text(body)
        elif kind == "console" and body.startswith("$ "):
            for step in re.split(r"^\$ ", body, flags=re.M)[1:]:
                command, shown = parted(step)
                printed = shell.look(command, port, shown)
                for line in shown:
                    assert line in printed, f"{command} printed:\n{printed}"


@pytest.mark.parametrize("page", DOCS, ids=named)
def test_a_sample_is_run_or_is_a_fragment_of_what_exists(page: Path) -> None:
    fences: list[tuple[str, str]] = _FENCE.findall(page.read_text())
    for kind, body in fences:
        if kind != "python":
            continue
        tree = ast.parse(body.replace("…", "..."))
        if (name := _FILE.match(body)) is not None:
            stem = Path(name[1]).stem
            others = "\n".join(text for kind, text in fences if kind != "sh" and text != body)
            assert re.search(rf"\b{stem}\b", others), f"nobody runs {name[1]}"
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("relevo"):
                module = importlib.import_module(node.module or "")
                missing = [each.name for each in node.names if not hasattr(module, each.name)]
                assert not missing


def test_both_front_pages_show_the_same_samples() -> None:
    english, spanish = (
        [
            (kind, re.sub(r" *# .*$", "", body, flags=re.M))
            for kind, body in _FENCE.findall((ROOT / name).read_text())
            if kind != "text"
        ]
        for name in ("README.md", "README.es.md")
    )
    assert english == spanish


def test_both_front_pages_lead_to_the_same_pages_and_show_the_same_figures() -> None:
    english, spanish = ((ROOT / name).read_text() for name in ("README.md", "README.es.md"))
    ours = {"README.md", "README.es.md"}
    assert set(_LINK.findall(english)) - ours == set(_LINK.findall(spanish)) - ours
    rows = [
        [re.findall(r"\d[\d.,]*", line) for line in text.splitlines() if line.startswith("| ")]
        for text in (english, spanish)
    ]
    figures = [[each for each in found if len(each) > 3] for found in rows]
    assert figures[0] == figures[1]


def test_the_quickstart_is_short() -> None:
    fences = _FENCE.findall((ROOT / "README.md").read_text())
    quickstart = next(body for kind, body in fences if kind == "python")
    code = [line for line in quickstart.splitlines() if line.strip()]
    assert len(code) <= 20


@pytest.mark.parametrize("page", DOCS, ids=named)
def test_every_link_leads_to_something_here(page: Path) -> None:
    for target in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.S)):
        if "://" in target or target.startswith("mailto:"):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", there.read_text(), re.M)
            slugs = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, target


@pytest.mark.parametrize("path", sorted(pages()), ids=named)
def test_a_page_written_from_the_source_is_up_to_date(path: Path) -> None:
    assert path.read_text() == pages()[path], "run `python -m tests.edges.reference`"


def test_figures_and_pictures_are_those_of_the_kept_results() -> None:
    results = kept()
    for path, text in bench_pages.written(results).items():
        assert path.read_text() == text, f"run `python -m bench.plots` ({path.name})"
    for name, text in plots.pictures(results).items():
        assert (plots.IMAGES / name).read_text() == text, f"run `python -m bench.plots` ({name})"


def test_each_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(each for part in project["project"]["optional-dependencies"].values() for each in part),
        *project["dependency-groups"]["dev"],
    ]
    told = (ROOT / "docs/decisions/0002-dependencies.md").read_text()
    names = {re.split(r"[\[><=;~ ]", each)[0] for each in wanted} - {"relevo"}
    assert not [name for name in sorted(names) if not re.search(rf"\b{re.escape(name)}\b", told)]


def test_each_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in folder.glob("0*.md"))


def test_the_walk_names_files_that_are_there_and_leaves_none_out() -> None:
    source = ROOT / "src" / "relevo"
    walk = (ROOT / "docs" / "walk.md").read_text()
    for name in set(re.findall(r"[\w/]+\.py\b|\b[a-z]+/(?=[`\s,;:)]|$)", walk)):
        assert list(source.rglob(name)) or list(source.rglob(name.rstrip("/"))), name
    rooms = {path.name for path in source.iterdir() if path.suffix == ".py" and path.stem[0] != "_"}
    rooms |= {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    assert [room for room in sorted(rooms) if room not in walk] == []


def test_every_keyword_has_its_line() -> None:
    told = (ROOT / "docs" / "reference" / "keywords.md").read_text()
    functions = [
        *(Command.__init_subclass__, Event.__init_subclass__, Breaker.__init__, App.__init__),
        *(App.poller, App.schedule, Relevo.__init__, Relevo.enqueue, Relevo.start, Relevo.work),
        *(Context.once, Context.enqueue, Flow.add, Intake.enqueue, relevo.listener, relevo.webhook),
        *(relevo.site, relevo.exponential, relevo.constant, Poll.__init__),
    ]
    left_out = {"self", "cls", "kwargs", "options", "pending"}
    left_out |= {"function", "put_aside", "values", "amount"}
    names = {name for each in functions for name in inspect.signature(each).parameters}
    names = (names | set(OnceOptions.__annotations__)) - left_out
    assert not [name for name in sorted(names) if not re.search(rf"\b{name}\b", told)]


def test_what_a_function_has_at_hand_exists() -> None:
    pages = (ROOT / "docs" / "reference" / "keywords.md", *(ROOT / "docs" / "guides").glob("*.md"))
    told = {name for page in pages for name in re.findall(r"\bctx\.(\w+)", page.read_text())}
    at_hand = {*dir(Context), *dir(Intake)}
    assert told
    assert not [name for name in sorted(told) if name not in at_hand]


def test_what_each_supplier_of_cars_wants_is_told() -> None:
    told = (ROOT / "docs" / "systems" / "cars.md").read_text()
    names = {name for kind in KINDS.values() for name in (*kind.fields, *kind.optional)}
    assert not [name for name in sorted(names) if f"`{name}`" not in told]


@pytest.mark.parametrize("app", SYSTEMS)
def test_every_setting_of_a_system_is_on_its_page(app: str) -> None:
    source = (ROOT / "src" / "relevo" / "apps" / app / "settings.py").read_text()
    told = (ROOT / "docs" / "systems" / f"{app}.md").read_text()
    names = set(re.findall(r'"([A-Z][A-Z0-9]*_[A-Z0-9_]*[A-Z0-9])"', source))
    assert names
    assert not [name for name in sorted(names) if name not in told]
