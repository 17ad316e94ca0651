"""What people do: every change is a POST, signed by the desk, and leads back to a page."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from relevo.clock import duration, moment
from relevo.dashboard.board import (
    Board,
    back_to,
    filter_of,
    number,
    one,
    pace_of,
    part,
    query_of,
    room,
    verb_of,
)
from relevo.dashboard.jobs import job_page
from relevo.dashboard.sentences import counted
from relevo.desk import EDITABLE, Desk, Progress, Sweep, meant
from relevo.errors import DefinitionError, MisuseError, NotAllowed, PayloadError
from relevo.job import LIVE
from relevo.message import Priority
from relevo.web import Form, form, go
from relevo.web.room import pretty

IDS_MAX = 200


async def change_job(board: Board, request: Request) -> Response:
    """Retry, cancel, discard or edit one job."""
    desk, by = board.desk(request), board.person(request)
    id, verb = request.path_params["id"], request.path_params["verb"]
    filled = await form(request)
    note = one(filled, "note") or ""
    if verb == "edit":
        return await _edit(board, request, id, filled, note)
    if verb == "run-again":
        is_asked = one(filled, "effects") is not None
        new = await desk.run_again(id, by, note, repeats_effects=is_asked)
        board.changed()
        said = board.words(request)("This job runs its command again.")
        return go(request, f"/jobs/{new}", said=said)
    if verb == "undo":
        edited = await desk.undo_edit(id, by, note)
        board.changed()
        said = board.words(request)("The edit is taken back.")
        return go(request, f"/jobs/{edited.id}", said=said)
    job = await desk.job(id)
    match verb:
        case "retry":
            [changed] = await desk.retry([id], by, note)
        case "cancel":
            [changed] = await desk.cancel([id], by, note)
        case _:
            [changed] = await desk.discard([id], by, note)
    board.changed()
    _ = board.words(request)
    said = {
        "retry": _("The job is ready again."),
        "cancel": _("The job is cancelled."),
        "discard": _("The job is put aside."),
    }
    job = await desk.job(job.id)
    refused = _("Nothing was changed: the job is {state}.", state=_(str(job.state)))
    place = back_to(filled, f"/jobs/{job.id}")
    return go(request, place, said=said[verb] if changed else refused)


async def _edit(board: Board, request: Request, id: str, filled: Form, note: str) -> Response:
    desk, by = board.desk(request), board.person(request)
    payload, warning = filled["payload"], ""
    by.acts("edit", note)
    try:
        _only(filled, {*EDITABLE, "shown", "note", "again", "back", "unchecked"})
        job = await desk.job(id)
        now = _lines(pretty(board.shown(request, job).payload))
        shown = _lines(one(filled, "shown") or now)  # when the person began to write
        is_same = _lines(payload) in ("", shown)
        if not is_same and shown != now:
            raise MisuseError(
                f"the payload of job {job.id} was changed meanwhile: nothing was written; look at "
                "it as it is now"
            )
        when = one(filled, "run_at")
        changes: dict[str, Any] = {
            "payload": None if is_same else payload,
            "priority": cast("Priority | None", one(filled, "priority")),
            "run_at": None if when is None else await _moment(desk, when),
            "attempts": number(filled, "attempts"),
        }
        is_any = any(value is not None for value in changes.values())
        again = one(filled, "again") is not None
        if is_any or not again:
            is_checked = one(filled, "unchecked") is None
            bindings = board.relevo.bindings if is_checked else None
            edited = await desk.edit(
                job.id, by, **changes, whole=True, note=note, bindings=bindings, seen=job.payload
            )
            warning = room.retold(request, edited.warning)
        retried = (await desk.retry([job.id], by, note))[0] if again else True
    except NotAllowed:
        raise
    except (PayloadError, DefinitionError, MisuseError) as error:
        written = {"problem": room.retold(request, str(error)), "payload": payload, "note": note}
        return await job_page(board, request, id, status=422, **written)
    board.changed()
    _ = board.words(request)
    said = _("The job is changed and ready again.") if again else _("The job is changed.")
    if not retried:
        said = _("The job is changed, but cannot be retried as it is.")
    return go(request, f"/jobs/{job.id}", said=f"{said} {warning}".strip())


def _only(filled: Form, known: set[str]) -> None:
    wrong = set(filled) - known - {"csrf"}
    if wrong:
        raise DefinitionError(f"a job's {min(wrong)!r:.40} is not for people to write")


def _lines(text: str) -> str:
    # A browser sends line breaks as it likes.
    return text.replace("\r\n", "\n").strip()


async def _moment(desk: Desk, text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return moment(await desk.store.now()) + duration(text)


async def change_jobs(board: Board, request: Request) -> Response:
    """Retry, cancel or discard the jobs that were ticked."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    ids = [id for id in filled.all("id") if id]
    note, verb = one(filled, "note") or "", one(filled, "verb")
    _ = board.words(request)
    place = back_to(filled, "/jobs")
    if not ids:
        return go(request, place, said=_("No job was chosen."))
    if len(ids) > IDS_MAX:
        raise DefinitionError(f"{IDS_MAX} jobs at most at a time, not {len(ids)}")
    match verb:
        case "retry":
            changed = await desk.retry(ids, by, note)
        case "cancel":
            changed = await desk.cancel(ids, by, note)
        case "discard":
            changed = await desk.discard(ids, by, note)
        case _:
            raise DefinitionError("jobs are retried, cancelled or discarded")
    board.changed()
    said = _("Changed: {n:,} of {all:,}.", n=sum(changed), all=len(changed))
    return go(request, place, said=said)


async def cancel_group(board: Board, request: Request) -> Response:
    """End a group: its members, and the job that waits for them."""
    desk, by = board.desk(request), board.person(request)
    note = one(await form(request), "note") or ""
    group = await desk.job_group(request.path_params["id"])
    ended = await desk.cancel_group(group, by, note)
    board.changed()
    _ = board.words(request)
    return go(request, f"/groups/{group.id}", said=_("{n:,} jobs were cancelled.", n=ended))


async def change_many(board: Board, request: Request) -> Response:
    """Begin to change all that a filter means; the page shows how far it has come."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    where, note = filter_of(filled), one(filled, "note") or ""
    verb = verb_of(one(filled, "verb"))
    where, pace = meant(verb, where), pace_of(filled)
    # Whatever is wrong is said now, and not on a page that shows progress.
    by.acts(verb, note)
    if verb == "discard" and not note:
        raise DefinitionError("say why in a note: whoever finds these jobs later will ask")

    async def act(progress: Progress) -> Sweep:
        return await desk.change_where(verb, where, by, note, pace=pace, progress=progress)

    back = back_to(filled, f"/jobs?{query_of(where)}")
    sweep = board.sweeps.begin(act, verb=verb, who=by.name, apps=desk.apps, back=back)
    board.changed()
    return go(request, f"/sweeps/{sweep.id}")


async def stop_sweep(board: Board, request: Request) -> Response:
    by, desk = board.person(request).acts("cancel"), board.desk(request)
    found = board.sweeps.find(request.path_params["id"], desk.apps)
    await board.sweeps.stop(found, desk.store, by)
    return go(request, f"/sweeps/{found.id}")


async def change_queue(board: Board, request: Request) -> Response:
    """Pause, resume or drain a queue."""
    desk, by = board.desk(request), board.person(request)
    queue, verb = request.path_params["queue"], request.path_params["verb"]
    filled = await form(request)
    note = one(filled, "note") or ""
    _ = board.words(request)
    match verb:
        case "pause":
            [changed] = await desk.pause([queue], by, note)
            said = _("{queue} is paused: it takes jobs in and gives none out.", queue=queue)
        case "drain":
            [changed] = await desk.drain([queue], by, note)
            said = _("{queue} is draining: it takes no new jobs.", queue=queue)
        case _:
            [changed] = await desk.resume([queue], by, note)
            said = _("{queue} is open.", queue=queue)
    board.changed()
    place = back_to(filled, f"/queues/{queue}")
    return go(request, place, said=said if changed else _("It was so already."))


async def change_flow(board: Board, request: Request) -> Response:
    """Retry what ended badly in a flow, or end it."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    note, node = one(filled, "note") or "", one(filled, "node")
    flow = await desk.flow(request.path_params["id"])
    if request.path_params["verb"] == "retry":
        changed = await desk.retry_flow(flow, by, note, node=node)
    else:
        changed = await desk.cancel_flow(flow, by, note)
    board.changed()
    _ = board.words(request)
    said = _("Changed: {n:,} of {all:,}.", n=sum(changed.values()), all=len(changed))
    return go(request, f"/flows/{flow.id}", said=said)


async def change(board: Board, request: Request) -> Response:
    """Change a queue, a lane or a breaker while workers run, or take that back."""
    desk, by = board.desk(request), board.person(request)
    filled, verb = await form(request), request.path_params["verb"]
    what, name, note = one(filled, "what"), one(filled, "name") or "", one(filled, "note") or ""
    lane, length = one(filled, "lane"), one(filled, "lasting")
    _ = board.words(request)
    said = _("What the code says holds again.")
    match verb, what:
        case "unset", _any:
            await desk.unset(what or "", name, by, note, lane=lane)
        case "cancel", _any:
            count = await desk.cancel_lane(name, lane or "", by, note)
            said = _("{n:,} jobs are cancelled.", n=count)
        case _, "lane":
            most = number(filled, "limit") or 0
            made = await desk.set_lane(name, lane or "", most, by, note, lasting=length)
            said = f"{lane}: {made}"
        case _, "breaker":
            values: dict[str, Any] = {
                **{key: one(filled, key) for key in ("window", "cooldown", "cap", "slow")},
                **{key: number(filled, key) for key in ("failures", "release")},
            }
            made = await desk.set_breaker(name, by, note, lasting=length, **values)
            said = str(made)
        case _:
            values = {
                **{key: one(filled, key) for key in ("rate", "priority")},
                **{key: number(filled, key) for key in ("limit", "slots")},
            }
            made = await desk.set_queue(name, by, note, lasting=length, **values)
            said = str(made)
    board.changed()
    return go(request, back_to(filled, "/"), said=said)


async def turn_breaker(board: Board, request: Request) -> Response:
    """Open, close or probe."""
    filled = await form(request)
    verb = cast("Literal['open', 'close', 'probe']", request.path_params["verb"])
    name = filled["name"]
    desk, by = board.desk(request), board.person(request)
    turned = await desk.turn_breaker(name, verb, by, one(filled, "note") or "")
    board.changed()
    _ = board.words(request)
    said = {
        "open": _("The breaker is open: its jobs wait."),
        "close": _("The breaker is closed, and what it held back goes on."),
        "probe": _("One job tries now; the breaker is {state}.", state=_(turned.circuit.state)),
    }
    return go(request, back_to(filled, "/breakers"), said=said[verb])


async def change_recurring(board: Board, request: Request) -> Response:
    """Pause, resume or run a poller's key or a schedule."""
    filled = await form(request)
    what: Literal["poller", "schedule"] = (
        "schedule" if one(filled, "what") == "schedule" else "poller"
    )
    name, note = filled["name"], one(filled, "note") or ""
    desk, by = board.desk(request), board.person(request)
    _ = board.words(request)
    match request.path_params["verb"]:
        case "pause":
            changed = await desk.pause_recurring(what, name, by, note)
            said = _("{name} is paused.", name=name)
        case "resume":
            changed = await desk.resume_recurring(what, name, by, note)
            said = _("{name} is on again.", name=name)
        case _:
            changed = await desk.run_recurring(what, name, by, note)
            said = _("{name} takes its turn now.", name=name)
    board.changed()
    return go(request, "/recurring", said=said if changed else _("It was so already."))


async def forget_worker(board: Board, request: Request) -> Response:
    """Take a worker that is silent or gone off the list."""
    filled = await form(request)
    note = one(filled, "note") or ""
    await board.desk(request).forget_worker(filled["id"], board.person(request), note)
    board.changed()
    return go(request, "/workers", said=board.words(request)("The worker is forgotten."))


async def decide_effect(board: Board, request: Request) -> Response:
    """Write down whether an effect happened, and let its job go on."""
    filled = await form(request)
    job, name, note = filled["job"], filled["name"], one(filled, "note") or ""
    desk, by = board.desk(request), board.person(request)
    if request.path_params["verb"] == "confirm":
        anyway = one(filled, "anyway") is not None
        went_on = await desk.confirm_effect(job, name, _result(filled), by, note, anyway=anyway)
    else:
        fresh_key = one(filled, "fresh_key") is not None
        went_on = await desk.deny_effect(job, name, by, note, fresh_key=fresh_key)
    board.changed()
    _ = board.words(request)
    said = _("It is written down, and the job goes on.")
    if not went_on:
        said = _("It is written down, but the job cannot be retried as it is.")
    owners = await desk.askers(await desk.effect(job, name))
    if (owners or not went_on) and not any(owner.state in LIVE for owner in owners):
        said = _("It is written down.")
    return go(request, f"/jobs/{owners[0].id}" if owners else "/effects", said=said)


def _result(filled: Form) -> Any:
    # 12345 as JSON is a number, as a confirmation code it is text: the person must say which.
    code, text = one(filled, "code"), one(filled, "result")
    if (code is None) == (text is None):
        raise DefinitionError("give either a code or a result in JSON")
    if text is None:
        return code
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise DefinitionError("the result is not JSON; a plain text is a code") from error


async def forget_thread(board: Board, request: Request) -> Response:
    """Erase a thread in which everything has ended."""
    desk, by = board.desk(request), board.person(request)
    filled = await form(request)
    thread = filled["thread"]
    done = await desk.forget(by, thread=thread, note=one(filled, "note") or "")
    board.changed()
    _ = board.words(request)
    if done.is_empty:
        return go(request, "/", said=_("Nothing was found to be forgotten."))
    if done.left:
        said = _("Nothing was erased: something in it has not ended.")
        return go(request, f"/threads/{part(thread)}", said=said)
    said = _(
        "Forgotten: {jobs} and {deliveries}.",
        jobs=counted(_, sum(done.jobs.values()), "job"),
        deliveries=counted(_, done.deliveries, "delivery"),
    )
    return go(request, "/", said=said)
