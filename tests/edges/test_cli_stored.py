"""F53: `relevo check --stored` and `relevo doctor` read what waits, by the code that is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from relevo.ids import new_id
from relevo.job import NewJob
from relevo.store import Store
from tests.edges.box import Answer, Box

APP = """
from relevo import App, Command
app = App("shop")
class Mail(Command, queue="shop:mail:send"):
    order: str{field}
@app.worker
async def mail(order: Mail) -> None: ...
"""
QUEUE = "shop:mail:send"


@pytest.fixture
def box(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Box:
    return Box(tmp_path, capsys)


async def test_f53_what_new_code_cannot_read_is_told_before_the_deploy(
    store: Store, tmp_path: Path, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"shop_{new_id()[:8]}"
    (tmp_path / f"{name}_old.py").write_text(APP.format(field=""))
    (tmp_path / f"{name}_new.py").write_text(APP.format(field="\n    language: str"))
    ids = [new_id() for _ in range(3)]
    await store.insert(
        [
            NewJob(id=id, queue=QUEUE, kind="Mail", payload=b'{"order":"A-1"}', delay=n * 60_000)
            for n, id in enumerate(ids)
        ]
    )

    async def ask(*args: str) -> Answer:
        return await asyncio.to_thread(box, *args, "--store", store.dsn)

    fine = await ask("check", "--stored", "--app", f"{name}_old", "--json")
    assert (fine.code, fine.json[0]["unreadable"], fine.json[0]["waiting"]) == (0, 0, 3)
    wrong = await ask("check", "--stored", "--app", f"{name}_new", "--json")
    assert wrong.code == 1
    [told] = wrong.json
    assert (told["queue"], told["kind"], told["field"]) == (QUEUE, "Mail", "language")
    assert (told["unreadable"], told["jobs"]) == (3, ids)
    assert told["error"] == "Mail.language: is missing"
    assert told["states"] == {"ready": 1, "scheduled": 2}
    shown = await ask("check", "--stored", "--app", f"{name}_new")
    assert "Mail.language: is missing" in shown.out
    assert ids[0] in shown.out

    doctor = await ask("doctor", "--app", f"{name}_new", "--json")
    assert doctor.code == 1
    [found] = [one for one in doctor.json if "--stored" in one["message"]]
    assert (found["level"], found["subject"]) == ("error", QUEUE)
    assert found["message"].startswith("3 of 3 jobs of Mail that wait cannot be read by the code")
    doctor = await ask("doctor", "--app", f"{name}_old", "--json")
    assert "the code here reads 3 jobs that wait" in [one["message"] for one in doctor.json]


def test_check_stored_reads_no_source(box: Box) -> None:
    assert box("check", "--stored", "src").code == 2
    assert "no app here" in box("check", "--stored").err
