"""What `relevo check` finds, what it leaves alone, and what it survives."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import relevo
from relevo.check import RULES, Report, check
from relevo.check.source import SIZE_MAX
from tests.unit.check_snippets import BAD, GOOD


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def codes(reports: list[Report]) -> list[str]:
    return [report.code for report in reports]


def of(reports: list[Report], code: str) -> list[Report]:
    return [report for report in reports if report.code == code]


# every rule, by example


def test_every_rule_has_examples_and_words() -> None:
    assert set(BAD) == set(GOOD) == set(RULES)
    for code, rule in RULES.items():
        assert len(BAD[code]) >= 2
        assert len(GOOD[code]) >= 2
        assert rule.title and rule.why.endswith(".") and rule.mending


@pytest.mark.parametrize(
    ("code", "source"), [(code, source) for code in BAD for source in BAD[code]]
)
def test_what_is_bad_is_reported_on_its_line(tmp_path: Path, code: str, source: str) -> None:
    write(tmp_path, {"shop.py": source})
    reports = of(check([tmp_path]), code)
    lines = source.splitlines()
    marks = " # <-" if code != "RV015" else "relevo: allow"
    expected = [number for number, line in enumerate(lines, 1) if marks in line]
    assert [report.line for report in reports] == expected
    mending = RULES[code].mending
    plain = mending.replace("`await ctx.", "`ctx.")  # what works in a plain `def`
    assert all(report.mending in (mending, plain) for report in reports)
    assert all(report.file == f"{tmp_path.as_posix()}/shop.py" for report in reports)


@pytest.mark.parametrize(
    ("code", "source"), [(code, source) for code in GOOD for source in GOOD[code]]
)
def test_what_is_good_is_left_alone(tmp_path: Path, code: str, source: str) -> None:
    write(tmp_path, {"shop.py": source})
    assert of(check([tmp_path]), code) == []


@pytest.mark.parametrize(("colour", "context"), [("async def", "Context"), ("def", "PlainContext")])
def test_what_is_advised_works_in_the_function_it_is_for(
    tmp_path: Path, colour: str, context: str
) -> None:
    source = f"""
import requests
from relevo import {context}

{colour} book(order: Book, ctx: {context}) -> None:
    requests.post("https://api.example.com/bookings").raise_for_status()
"""
    write(tmp_path, {"shop.py": source})
    [report] = of(check([tmp_path]), "RV010")

    is_await = "`await ctx.once(" in report.mending
    assert is_await == (colour == "async def")
    assert "ctx.once(" in report.mending


# through the project's own helpers


HANDLER = """
from shop.notify import notify
from . import helpers
import shop.far as distant

@app.post("/x")
async def handler():
    await notify()
    await helpers.tell()
    await distant.cry()
"""
NOTIFY = """
import httpx

async def notify():
    await httpx.post("x")
"""
HELPERS = """
from .deep.inside import *
from .other import Sender as Told

async def tell():
    await Told().send()
    return inner()
"""
OTHER = """
from shop.deep import inside

class Base:
    async def send(self):
        await inside.one()

class Sender(Base): ...
"""
INSIDE = """
def inner(): return 1
async def one(): return await two()
async def two(): return await three()
async def three(): return await four()
async def four(): return await five()
async def five(): return await six() or await one()
async def six():
    import smtplib as s
    return s.SMTP("x").sendmail("a", "b", "c")
"""
FAR = "from shop.again import cry\n"
AGAIN = "from shop.far import cry as cry\n"


@pytest.mark.parametrize("is_package", [True, False])
def test_helpers_are_followed_through_files_and_circles(tmp_path: Path, is_package: bool) -> None:
    files: dict[str, str | bytes] = {
        "src/shop/api.py": HANDLER,
        "src/shop/notify.py": NOTIFY,
        "src/shop/helpers.py": HELPERS,
        "src/shop/other.py": OTHER,
        "src/shop/deep/inside.py": INSIDE,
        "src/shop/far.py": FAR,
        "src/shop/again.py": AGAIN,
    }
    if is_package:
        files |= {"src/shop/__init__.py": "", "src/shop/deep/__init__.py": ""}
    reports = of(check([write(tmp_path, files)]), "RV001")
    assert [(report.line, report.message.partition(": ")[2]) for report in reports] == [
        (8, "handler → notify → httpx.post"),
        (9, "handler → tell → send → one → … → six → smtplib.SMTP.sendmail"),
    ]


def test_a_library_is_not_mistaken_for_a_file_of_its_name(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "shop/__init__.py": "",
        "shop/gateways/__init__.py": "",
        "shop/gateways/stripe.py": "import stripe\n\nasync def pay():\n"
        "    return await stripe.Charge.create_async()\n",
        "shop/api.py": "import stripe\nfrom shop.gateways import stripe as ours\n\n"
        '@app.get("/x")\nasync def handler():\n    stripe.Webhook.construct_event()\n'
        "    await ours.pay()\n",
    }
    [report] = of(check([write(tmp_path, files)]), "RV001")
    assert report.message.endswith("handler → pay → stripe.Charge.create_async")


def test_what_a_gateway_package_holds_is_a_gateway_under_any_name(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "shop/__init__.py": "",
        "shop/gateways/__init__.py": "from typing import Protocol\n\n"
        "class Supplier(Protocol):\n    async def book(self, order): ...\n\n"
        "def pick(id: int) -> Supplier: ...\n",
        "shop/workers.py": "from shop import gateways\n\n@app.worker\n"
        "async def work(order: Book, ctx):\n    rental = gateways.pick(28)\n"
        '    await rental.book(order)\n    await ctx.once("x", rental.book)\n',
    }
    [report] = check([write(tmp_path, files)])
    assert (report.code, report.line) == ("RV010", 6)


def test_of_two_modules_of_one_name_the_nearer_is_meant(tmp_path: Path) -> None:
    api = 'from app.mail import tell\n\n@app.get("/x")\ndef handler():\n    tell()\n'
    slow = "import time\n\ndef tell():\n    time.sleep(1)\n"
    files: dict[str, str | bytes] = {
        "a/app/__init__.py": "",
        "a/app/api.py": api,
        "a/app/mail.py": slow,
        "b/app/__init__.py": "",
        "b/app/api.py": api,
        "b/app/mail.py": "def tell(): ...\n",
    }
    [report] = check([write(tmp_path, files)])
    assert report.file.endswith("/a/app/api.py")


def test_wiring_in_lists_gives_functions_their_roles(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "shop/__init__.py": "from relevo import App, listener\n"
        "from shop import listeners, webhooks, workers\n\n"
        'app = App("shop", workers=[workers.book], webhooks=[webhooks.hook],\n'
        "          listeners=[listener(listeners.hear, attempts=5)])\n",
        "shop/workers.py": "async def book(order):\n    await gateway.book(order)\n",
        "shop/listeners.py": "import time\n\nasync def hear(fact):\n    time.sleep(1)\n",
        "shop/webhooks.py": "import requests\n\ndef hook(call):\n    return requests.get('x')\n",
    }
    reports = check([write(tmp_path, files)])
    assert [(Path(report.file).name, report.code) for report in reports] == [
        ("listeners.py", "RV002"),
        ("webhooks.py", "RV001"),
        ("workers.py", "RV010"),
    ]


# allow comments

WORKER = "import time\n\n@app.worker\nasync def work(order: X, ctx):\n"


@pytest.mark.parametrize(
    "body",
    [
        "    time.sleep(1)  # relevo: allow RV002 it is a test bench",
        "    # relevo: allow RV002 it is a test bench\n    time.sleep(1)",
        "    # relevo: allow RV002 it is a test bench\n    # and more is said\n    time.sleep(1)",
        "    # relevo: allow RV010 one\n    # relevo: allow RV002 — two\n    time.sleep(1)",
        "    time.sleep(1)  # relevo: allow RV010 one  # relevo: allow RV002 two",
    ],
)
def test_an_allow_comment_silences_one_rule_on_its_line(tmp_path: Path, body: str) -> None:
    write(tmp_path, {"a.py": f"{WORKER}{body}\n    time.sleep(2)\n"})
    [report] = check([tmp_path])
    assert (report.code, report.line) == ("RV002", len(f"{WORKER}{body}".splitlines()) + 1)


@pytest.mark.parametrize(
    "body",
    [
        "    time.sleep(1)  # relevo: allow RV001 another rule",
        "    x = 1  # relevo: allow RV002 the line above, but not alone on it\n    time.sleep(1)",
        "    # relevo: allow RV002 too far away\n\n    time.sleep(1)",
        "    '# relevo: allow RV002 only text'\n    time.sleep(1)",
    ],
)
def test_an_allow_comment_silences_nothing_else(tmp_path: Path, body: str) -> None:
    write(tmp_path, {"a.py": f"{WORKER}{body}\n"})
    assert codes(check([tmp_path])) == ["RV002"]


def test_an_allow_comment_above_decorators_speaks_of_what_they_decorate(tmp_path: Path) -> None:
    source = (
        "from relevo import Command\n\n# relevo: allow RV007 three is right\n@final\n@other\n"
        'class A(Command, queue="a:b:c", backoff=B, timeout="1s"):\n    id: str\n'
    )
    write(tmp_path, {"a.py": source})
    assert check([tmp_path]) == []


def test_a_comment_without_reason_does_not_silence(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": f"{WORKER}    time.sleep(1)  # relevo: allow RV002\n"})
    assert codes(check([tmp_path])) == ["RV002", "RV015"]


# which files, in which order


def test_reports_come_in_order_and_once(tmp_path: Path) -> None:
    bad = 'from relevo import Command\nclass A(Command, queue="x"): ...\nclass B(Command): ...\n'
    write(tmp_path, {"b.py": bad, "a/z.py": bad, "a.py": bad})
    reports = check([tmp_path, tmp_path / "a", tmp_path / "b.py"])
    assert reports == sorted(reports)
    assert reports == check([tmp_path / "b.py", tmp_path])
    names = [report.file.removeprefix(f"{tmp_path.as_posix()}/") for report in reports]
    assert sorted(set(names)) == ["a.py", "a/z.py", "b.py"]
    assert len(reports) == len(set(reports)) == 3 * 8


def test_columns_count_characters(tmp_path: Path) -> None:
    line = '    "éééé"; time.sleep(1)'
    write(tmp_path, {"a.py": f"{WORKER}{line}\n"})
    [report] = check([tmp_path])
    assert report.col == line.index("time") + 1


def test_rules_can_be_selected_and_ignored(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": 'from relevo import Command\n\nclass A(Command, queue="x"): ...\n'})
    assert sorted(codes(check([tmp_path]))) == ["RV003", "RV007", "RV008", "RV009"]
    assert codes(check([tmp_path], select=["RV003"])) == ["RV003"]
    assert sorted(codes(check([tmp_path], ignore=["RV003", "RV008"]))) == ["RV007", "RV009"]


def test_what_could_not_be_read_is_told_whatever_was_selected(tmp_path: Path) -> None:
    write(tmp_path, {"a.py": "def broken(:\n"})
    assert codes(check([tmp_path], select=["RV001"])) == ["RV000"]
    assert codes(check([tmp_path], ignore=["RV000"])) == []


def test_other_peoples_code_is_skipped(tmp_path: Path) -> None:
    bad = "def broken(:\n"
    skipped = [".venv", "node_modules", ".git", "__pycache__", "site-packages", ".hidden", "env"]
    write(tmp_path, {f"{name}/x.py": bad for name in skipped})
    write(tmp_path, {"env/pyvenv.cfg": "", "x.txt": bad, "fine.py": "x = 1\n"})
    assert check([tmp_path]) == []
    assert codes(check([tmp_path / ".venv"])) == ["RV000"]


def test_a_path_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check([tmp_path / "nowhere"])


def test_our_own_source_is_read_quickly() -> None:
    folder = Path(relevo.__file__).parent
    lines = sum(path.read_bytes().count(b"\n") for path in folder.rglob("*.py"))
    started = time.process_time()
    check([folder])
    assert time.process_time() - started < max(2, lines / 5_000)


# hostile source: C40


def test_nothing_that_is_read_is_run(tmp_path: Path) -> None:
    """C40"""
    canary = tmp_path / "canary"
    touch = f"__import__('pathlib').Path({str(canary)!r}).touch()"
    source = f"""
# coding: utf-8
import os, sys
{touch}
os.system("touch {canary}")
from relevo import Command, App

class Meta(type):
    def __init_subclass__(cls): {touch}

class A(Command, queue=({touch}, "bad")[1], attempts=3):
    x: "({touch}, bytes)[1]"
    y: "{touch}"

@(lambda f: {touch} or f)
@app.worker
async def work(order: A = {touch}, ctx: eval("{touch}") = None) -> exec("1"):
    await other.post(f"{{{touch}}}")

raise SystemExit({touch})
"""
    write(
        tmp_path / "project",
        {
            "a.py": source,
            "conftest.py": touch,
            "sitecustomize.py": touch,
            "relevo/__init__.py": touch,
            "relevo/check.py": touch,
            "encodings/evil.py": touch,
            "cookie.py": f"# coding: evil\n{touch}\n",
            "pyproject.toml": "[tool.relevo]\n",
        },
    )
    program = "from relevo.check import check; print(len(check(['.'])))"
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path / "project",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    assert not canary.exists()


DEEP = 50_000


@pytest.mark.parametrize(
    "source",
    [
        "(" * DEEP,
        "(" * 150 + ")" * 150,
        "x = " + "-" * 900_000 + "1",
        "x = " + "not " * DEEP + "1",
        "x = " + "+".join(["1"] * DEEP),
        "x = " + "+".join(["1"] * 2_000),
        "x = " + "lambda: " * DEEP + "1",
        "x = a" + ".b" * DEEP,
        "x = a" + ".b" * 2_000,
        "x = a" + "()" * 2_000,
        "x = a" + "[0]" * 2_000,
        "x = " + "[" * DEEP,
        "x = " + "a if b else " * 2_000 + "c",
        "if a: pass\n" + "elif a: pass\n" * 2_000,
        "if a: pass\n" + "elif a: pass\n" * 100_000,
        "@a\n" * DEEP + "def f(): pass",
        "from relevo import Command\nclass A(Command, queue='a:b:c'):\n    x: "
        + " | ".join(["int"] * 2_000),
        "from relevo import Command\nclass A(Command, queue='a:b:c'):\n    x: '"
        + "list[" * 5_000
        + "'",
        "x = " + "9" * 100_000,
        "x = '" + "\\N{BULLET}" * 1_000 + "'",
        "".join(" " * depth + "if a:\n" for depth in range(200)),
        f"async def f():\n    await {'_' * 900_000}()\n    await x.{'_' * 900_000}.post()\n",
        f"async def f(relevo):\n    {'_' * 900_000}.commit()\n    await relevo.enqueue(1)\n",
        f"from {'_' * 900_000} import y\nasync def f():\n    await y()\n",
        f"@{'a_' * 400_000}.get(x)\ndef f(): pass\n",
        f"x = 1  # relevo: allow RV001{' ' * 900_000}\n",
        f"#{' ' * 900_000}\n# relevo: allow RV001{' -' * 400_000}\n",
        "\0",
        "x = 1\n\0\n",
        "\ufeffx = 1",
        "x = 1\r\ry = 2\r",
        "\x0c\nx = '\x1c\u2028'\n",
    ],
    ids=lambda source: repr(source[:12]),
)
def test_a_bomb_is_reported_or_read(tmp_path: Path, source: str) -> None:
    """C40"""
    write(tmp_path, {"bomb.py": source, "bad.py": "def broken(:\n"})
    reports = check([tmp_path])
    assert {report.code for report in reports} <= {"RV000", "RV007", "RV008", "RV009", "RV015"}
    assert codes(of(reports, "RV000")).count("RV000") in (1, 2)


def test_names_that_lead_in_circles_end(tmp_path: Path) -> None:
    many = "\n".join(f"x{n} = x{n + 1} or x{n + 2} or x{n}" for n in range(3_000))
    source = f"""
from circle import *
from circle import a as b, b as a
import circle as self
x = x.y.x(x)
{many}
class A(A, B): pass
class B(A):
    def f(self) -> "B.f": return self.f.f
@app.get("/x")
async def handler(a: "handler" = Depends(handler)):
    await handler().a.b(x0.post())
    await A().f().g()
    await b.c()
"""
    write(tmp_path, {"circle.py": source})
    started = time.perf_counter()
    assert [report.line for report in check([tmp_path]) if report.code == "RV000"] == []
    assert time.perf_counter() - started < 30


def test_long_ways_are_followed_in_one_walk(tmp_path: Path) -> None:
    hops = "\n".join(f"def f{n}():\n    return f{n + 1}() or f{n // 2}()" for n in range(8_000))
    doors = "\n".join(f'@app.get("/{n}")\ndef h{n}():\n    f{n}()' for n in range(4_000))
    source = f"import requests\n{hops}\ndef f8000():\n    requests.get('x')\n{doors}\n"
    write(tmp_path, {"long.py": source})
    reports = of(check([tmp_path]), "RV001")
    assert len(reports) == 4_000
    assert reports[0].message.endswith("… → f8000 → requests.get")


def test_a_name_as_long_as_a_file_is_cut_short(tmp_path: Path) -> None:
    name = "x" * 100_000
    write(tmp_path, {"a.py": f"from relevo import Command\nclass {name}(Command): ...\n"})
    assert all(len(report.message) < 500 for report in check([tmp_path]))


def test_a_huge_file_is_reported_and_not_read(tmp_path: Path) -> None:
    """C40"""
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    write(tmp_path, {"fits.py": b"#" * SIZE_MAX, "over.py": b"#" * (SIZE_MAX + 1)})
    reports = check([tmp_path])
    assert [Path(report.file).name for report in reports] == ["huge.py", "over.py"]
    assert all(report.code == "RV000" and "larger" in report.message for report in reports)


def test_text_in_other_encodings(tmp_path: Path) -> None:
    """C40"""
    write(
        tmp_path,
        {
            "latin.py": "# coding: latin-1\nx = 'ñ'\n".encode("latin-1"),
            "second.py": "#!/usr/bin/python\n# coding: cp1252\nx = '€'\n".encode("cp1252"),
            "bom.py": b"\xef\xbb\xbfx = 1\n",
            "not_utf8.py": b"x = 1\ny = '\xff\xfe'\n",
            "rot13.py": b"# coding: rot13\ncevag(1)\n",
            "utf16.py": "x = 1\n".encode("utf-16"),
        },
    )
    reports = check([tmp_path])
    assert [(Path(report.file).name, report.line) for report in reports] == [
        ("not_utf8.py", 2),
        ("rot13.py", 1),
        ("utf16.py", 1),
    ]


def test_links_are_not_followed(tmp_path: Path) -> None:
    """C40"""
    outside = write(tmp_path / "outside", {"secret.py": "def broken(:\n"})
    inside = write(tmp_path / "inside", {"fine.py": "x = 1\n"})
    (inside / "folder").symlink_to(outside)
    (inside / "file.py").symlink_to(outside / "secret.py")
    (inside / "circle").symlink_to(inside)
    (inside / "nowhere.py").symlink_to(inside / "gone")
    (inside / "device.py").symlink_to("/dev/zero")
    assert check([inside]) == []
    # Whoever names a link means what it points to.
    assert codes(check([inside / "folder"])) == ["RV000"]


def test_what_is_no_file_does_not_hang_us(tmp_path: Path) -> None:
    """C40"""
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    assert check([tmp_path]) == []
    [report] = check([tmp_path / "pipe.py"])
    assert (report.code, "regular" in report.message) == ("RV000", True)


def test_folders_may_be_deep(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1_200):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.mkdir("broken.py", dir_fd=here)
    with os.fdopen(os.open("deep.py", os.O_CREAT | os.O_WRONLY, dir_fd=here), "w") as file:
        file.write("def broken(:")
    os.close(here)
    try:
        assert codes(check([tmp_path])) == ["RV000"]
    finally:
        subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)  # deeper than shutil can go


def test_the_guide_has_every_rule() -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "find-mistakes-before-they-run.md"
    text = guide.read_text()
    for rule in RULES.values():
        assert f"| `{rule.code}` | {rule.title} | {rule.why} | {rule.mending} |" in text
