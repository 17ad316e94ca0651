"""What the source itself promises, and what is shipped around it."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from relevo.apps.outside import Outside
from relevo.errors import ProviderUnavailable
from relevo.simulators import World, running
from tests.servers.tls import certificate, vouching

HOME = Path(__file__).parents[2]
SOURCE = HOME / "src" / "relevo"
RUNS_DATA = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "yaml", "code"}
NEVER = "CERT_NONE"
# What they import is named by us, or on the command line by whoever starts the process.
IMPORTERS = {
    *("cli/expenses.py", "cli/loading.py", "cli/serve.py", "engine.py"),
    "simulators/server.py",
    "apps/cars/gateways/__init__.py",  # named in the suppliers' file by whoever runs it
    "child.py",  # what its worker process has imported, from the place where that was
    "plain_context.py",  # greenlet, where it is installed
}


_IMPORT = (ast.Import, ast.ImportFrom)


@cache
def trees() -> list[tuple[str, ast.Module]]:
    files = sorted(SOURCE.rglob("*.py"))
    return [(each.relative_to(SOURCE).as_posix(), ast.parse(each.read_text())) for each in files]


def calls(tree: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Every call, by the last word of what is called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            match node.func:
                case ast.Name(id=name) | ast.Attribute(attr=name):
                    yield name, node
                case _:
                    pass


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_c01_nothing_that_was_stored_can_be_executed() -> None:
    for name, tree in trees():
        assert not RUNS_DATA & set(imports(tree)), name
        called = {said for said, call in calls(tree) if isinstance(call.func, ast.Name)}
        assert not called & {"eval", "exec", "compile", "__import__"}, name
        is_importing = "import_module" in {said for said, _ in calls(tree)}
        assert not is_importing or name in IMPORTERS, name


def test_c33_no_call_leaves_without_a_limit_or_trusts_anybody() -> None:
    """C33: one client for all providers; whoever makes another says how long it waits."""
    clients: set[str] = set()
    for name, tree in trees():
        for said, call in calls(tree):
            given = {word.arg: word.value for word in call.keywords}
            verify = given.get("verify")
            assert not isinstance(verify, ast.Constant) or verify.value is not False, name
            assert said != "_create_unverified_context", name
            if said in ("AsyncClient", "Client") and "httpx" in ast.unparse(call.func):
                assert "timeout" in given, name
                clients.add(name)
        assert not [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == NEVER]
    ours = {one for one in clients if not one.startswith(("simulators/", "demo/"))}
    assert ours == {
        "apps/outside.py",
        "apps/qstash/client/__init__.py",
        "apps/expenses/gateways/gemini.py",  # handed to Google's SDK
    }


async def test_c33_who_vouches_for_himself_is_not_believed(tmp_path: Path) -> None:
    """C33: no byte of the request reaches him, and a call that acts has not happened."""
    heard: list[bytes] = []

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(hear, "127.0.0.1", 0, ssl=vouching(certificate(tmp_path)))
    async with server, Outside("Someone", seconds=5) as someone:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(ProviderUnavailable, match="cannot be reached"):
            await someone.call("POST", f"https://localhost:{port}/", acts=True, json={"a": 1})
    assert heard == []


def test_c39_every_package_is_pinned_with_its_hashes() -> None:
    lock = (HOME / "requirements.lock").read_text()
    pinned = re.findall(r"^[a-z0-9][^\s]*==\S+.*?(?=^\S|\Z)", lock, re.MULTILINE | re.DOTALL)
    assert len(pinned) > 20
    assert all("--hash=sha256:" in each for each in pinned)
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    names = {each.partition("==")[0].partition("[")[0] for each in pinned}
    for need in project["dependencies"]:
        assert re.split(r"[<>=\[;~! ]", need)[0].lower() in names, need


def test_c39_pretended_providers_stay_at_home() -> None:
    """C39: nothing that serves in earnest imports them; `--simulators` loads them by name."""
    for name, tree in trees():
        said = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, _IMPORT)}
        is_theirs = name.startswith(("simulators/", "demo/"))
        assert is_theirs or not any("relevo.simulators" in each for each in said), name


async def test_c39_pretended_providers_listen_to_this_machine_alone() -> None:
    async with running(World(seed=1, target="http://127.0.0.1:9")) as world:
        assert world.base.startswith("http://127.0.0.1:")


def test_c39_the_container_is_nobody() -> None:
    lines = (HOME / "deploy" / "Dockerfile").read_text().splitlines()
    [user] = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert int(user) > 0
    assert "requirements.lock" in "".join(line for line in lines if "uv pip install" in line)


@pytest.mark.soak
def test_c32_no_package_has_a_known_hole(unmade: Callable[[str], None]) -> None:
    audit = shutil.which("pip-audit")
    if audit is None:
        unmade("no pip-audit here, and no list of known holes")
        return
    subprocess.run([audit, "-r", "requirements.lock", "--disable-pip"], check=True, cwd=HOME)
