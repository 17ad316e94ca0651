"""relevo doctor: what is wrong, or could become so."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from relevo.budget import BILLED, DAY, JOB, TURN, idle_cost, pace_within
from relevo.cli.database import copied
from relevo.cli.deliveries import spooled
from relevo.cli.loading import queues_of, recurring
from relevo.cli.sealing import sealing_findings, used_keys
from relevo.cli.tables import at, counted, span, table
from relevo.cli.terminal import OK, PROBLEM, UNAVAILABLE, AppOption, Terminal, Verbs, discreet
from relevo.client_errors import OWN_RETRIES
from relevo.clock import moment
from relevo.desk import COUNTED, LATE, Desk, saturations
from relevo.engine import Relevo
from relevo.errors import RelevoError, SettingsError, StoreError
from relevo.ingress.crowd import room
from relevo.ingress.spool import spool_path
from relevo.intake.receiver import MASKED
from relevo.job import LIVE, MOVING, State
from relevo.joining import FLOW
from relevo.message import EVENTS, narrow
from relevo.settings import spool_file
from relevo.signatures.keys import Keys
from relevo.store import DeliveryState, Finding, QueueMode, Schema, Tally, WorkerState
from relevo.stored import read_stored
from relevo.stores.places import Places
from relevo.stores.sqlite.doctor import LOW_SPACE
from relevo.unrouted import Unrouted
from relevo.version import mixed

if TYPE_CHECKING:
    from relevo.app import App
    from relevo.intake import Door
    from relevo.settings import Settings
    from relevo.stored import Bindings

READ = 100_000
"""Waiting jobs of a queue whose payloads are read; `relevo check --stored` reads all."""

DESCRIPTORS = 4_096

_DAY = 86_400_000
_SIGNED_AT = re.compile(r"it was signed \S+ s (?:ago|in the future)")

SKEW = 2.0
"""Seconds by which this machine's clock may differ from the store's before it is worth a word."""


def add_to(root: Verbs) -> None:
    """Hang the verb under the program."""
    root.verb("doctor")(doctor)


def _age(tally: Tally) -> str:
    """When the oldest job of a queue was ordered, as the end of a sentence."""
    return (
        "" if tally.oldest is None else f"; the oldest was ordered {span(tally.oldest / 1000)} ago"
    )


async def doctor(terminal: Terminal, app: AppOption = None) -> int:
    """Check settings, store, apps and queues; exit 1 if something is wrong."""
    findings: list[Finding] = []
    code = OK
    apps: list[App] = []
    try:
        terminal.settings  # noqa: B018 - reading it is the check
        findings.append(_ok("settings", "every setting can be read"))
    except SettingsError as error:
        findings.append(_error("settings", error))
    if not any(finding.level == "error" for finding in findings):
        try:
            apps = terminal.apps(app)
            names = ", ".join(each.name for each in apps) or "none are named"
            findings.append(_ok("apps", names))
        except RelevoError as error:
            findings.append(_error("apps", error))
        findings += _clients()
        findings += _serving(terminal, apps)
        findings += _machine(terminal)
        try:
            findings += _windows(apps)
            async with terminal.desk() as desk:
                _set_connections(desk, terminal.settings)
                findings += await _look(desk, apps)
                findings += await _connections(desk)
                if apps:
                    findings += await _stored(desk, terminal.engine(apps).bindings)
                findings += await _spend(desk, apps, terminal.settings)
            findings += await _seals(terminal)
            findings += await _spool(terminal)
        except StoreError as error:
            findings.append(_error("store", error))
            code = UNAVAILABLE
        except RelevoError as error:
            findings.append(_error("store", error))
    if code == OK and any(finding.level == "error" for finding in findings):
        code = PROBLEM
    columns = ("level", "subject", "message")
    rows = [(each.level, each.subject, each.message) for each in findings]
    terminal.show(findings, lambda: table(columns, rows))
    return code


def _clients() -> list[Finding]:
    """The clients that the apps have imported: how often each calls by itself."""
    found: list[Finding] = []
    for each in OWN_RETRIES.values():
        package = each.client.partition(".")[0]
        if package not in sys.modules:
            continue
        if each.tries.startswith("1 try"):
            said = f"makes {each.tries}"
            said += f"; to make sure of one: {each.off}" if each.off else ""
        else:
            said = (
                f"repeats a call by itself ({each.tries}), so that its last error does not prove "
                f"what became of the first try; to make each call one try: {each.off}"
            )
        found.append(_ok(each.client, said))
    return found


def _windows(apps: list[App]) -> list[Finding]:
    """Commands whose failures come too seldom to open their breaker within its window."""
    found: list[Finding] = []
    for app in apps:
        for spec in (each.spec for each in (*app.workers, *app.listeners)):
            rule = spec.breaker
            if rule is not None and (told := narrow(rule, spec.backoff, spec.attempts)):
                found.append(_warning(spec.queue, f"{spec.kind}: {told}; set Breaker(window=…)"))
    return found


def _places(desk: Desk) -> Places | None:
    return getattr(getattr(desk.store, "ledger", desk.store), "places", None)


def _set_connections(desk: Desk, settings: Settings) -> None:
    if places := _places(desk):
        places.most = settings.connections


async def _connections(desk: Desk) -> list[Finding]:
    """What the live workers may open at most, beside what the server takes."""
    places = _places(desk)
    if places is None or not places.server:
        return []
    workers = sum(worker.is_alive for worker in await desk.workers())
    most = workers * places.most
    told = (
        f"{counted(workers, 'live worker')} may open {most} of {places.server} connections "
        f"({places.most} each; every process that serves HTTP or streams: {places.most} more)"
    )
    if most < places.server:
        return [_ok("processes", told)]
    return [
        _warning(
            "processes",
            f"{told}: lower RELEVO_CONNECTIONS, raise max_connections, or use PgBouncer",
        )
    ]


def _serving(terminal: Terminal, apps: list[App]) -> list[Finding]:
    """What `relevo serve` would refuse, and what leaves its doors open."""
    settings = terminal.settings
    found: list[Finding] = []
    try:
        from relevo.ingress.sockets import listen
        from relevo.web.auth import check_binding
    except ImportError as error:
        return [_warning("serve", f"`relevo serve` would not start: {error}")]
    try:
        check_binding(settings.host, settings)
        listen(settings.host, 0).close()
        if apps:
            found += _secrets(terminal.engine(apps).receiver.doors.values())
    except RelevoError as error:
        found.append(_error("serve", error))
    if not apps:
        found.append(
            _warning("serve", "no app is named: `relevo serve` needs RELEVO_APPS or --app")
        )
    if settings.admin_password is None:
        said = "there is no RELEVO_ADMIN_PASSWORD: any process and person of this machine is admin"
        found.append(_warning("password", said))
    elif not settings.allowed_hosts:
        said = "RELEVO_ALLOWED_HOSTS names none: browsers reach relevo by address alone"
        found.append(_warning("hosts", said))
    return found


def _secrets(doors: Iterable[Door]) -> list[Finding]:
    """The secrets of endpoints that have several, by place and fingerprint."""
    found: list[Finding] = []
    for door in doors:
        keys = getattr(door.scheme, "keys", None)
        if isinstance(keys, Keys) and len(keys.names) > 1:
            said = (
                f"its secrets are {'; '.join(keys.names)}. `relevo deliveries show` and "
                "relevo_endpoint_verified_total tell which of them verifies calls"
            )
            found.append(_ok(door.endpoint, said))
    return found


def _machine(terminal: Terminal) -> list[Finding]:
    """Descriptors, and the disk and the folder of the spool."""
    found: list[Finding] = []
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < DESCRIPTORS:
        said = (
            f"a process started here may have {soft:,} open, which makes room for {room(soft):,} "
            f"connections; set ulimit -n, or LimitNOFILE, to {DESCRIPTORS:,} or more"
        )
        found.append(_warning("descriptors", said))
    path = spool_path(Relevo(terminal.store()), terminal.settings.spool)
    if path is None:
        return found
    folder = path.parent
    if not os.access(path if path.exists() else folder, os.W_OK):
        said = f"{path} cannot be written: while the store is away every webhook hears 503"
        return [*found, _warning("spool", said)]
    free = shutil.disk_usage(folder).free
    if free < LOW_SPACE:
        said = f"{free >> 20} MiB are free at {folder}: a full disk takes no delivery"
        found.append(_warning("spool", said))
    return found


async def _seals(terminal: Terminal) -> list[Finding]:
    """What is sealed with which key, as it is stored."""
    keys = terminal.settings.seal_keys
    store, ledger = terminal.bare(), terminal.bare_ledger()
    spool = spool_file(store.dsn, terminal.settings.spool)
    try:
        await store.open()
        if ledger is not None:
            await ledger.open()
        return sealing_findings(await used_keys(store, ledger=ledger, spool=spool), keys)
    finally:
        await store.close()
        if ledger is not None:
            await ledger.close()


async def _times(desk: Desk) -> list[Finding]:
    """Calls that were refused for the time of their signature: a clock is wrong."""
    seen = await desk.delivery_groups((DeliveryState.REFUSED,), since=await desk.store.now() - _DAY)
    count = sum(each.count for each in seen.groups if _SIGNED_AT.search(each.error))
    said = (
        f"{counted(count, 'call')} of the last day came with a signature too old or of the "
        "future: compare this machine's clock with the world's (`timedatectl`); or it is a replay"
    )
    return [_warning("clock", said)] if count else []


async def _spool(terminal: Terminal) -> list[Finding]:
    waiting = await spooled(terminal)
    said = f"{waiting:,} deliveries wait in the spool; whoever serves HTTP here carries them over"
    return [_warning("spool", said)] if waiting else []


async def _look(desk: Desk, apps: list[App]) -> list[Finding]:
    # Once: a store and its outbox may have the same to say.
    findings = [_ok("store", desk.store.url), *dict.fromkeys(await desk.store.check())]
    findings.append(_schema(await desk.store.schema()))
    skew = await desk.store.now() / 1000 - time.time()
    if abs(skew) > SKEW:
        findings.append(
            _warning("clock", f"this machine and the store differ by {span(abs(skew))}; run NTP")
        )
    findings += await _restored(desk)
    findings += [
        _warning(
            note.name,
            "secrets in its deliveries were masked before their jobs were stored: "
            f"{', '.join(msgspec.json.decode(note.value, type=list[str]))}. Set RELEVO_SEAL_KEYS, "
            "and they are sealed instead, or let a field pass with allow=",
        )
        for note in await desk.store.notes(MASKED)
    ]
    workers = [worker for worker in await desk.workers() if worker.is_alive]
    findings += [
        _warning(
            worker.id,
            "its event loop is blocked: a worker of it calls something that waits. Its log has "
            "the stack; await it, or make the worker a plain def, to run in a thread",
        )
        for worker in workers
        if worker.state is WorkerState.BLOCKED
    ]
    if not workers:
        findings.append(_warning("workers", "none is alive: jobs wait until `relevo work` runs"))
    if versions := mixed(worker.version for worker in workers):
        told = f"processes of several versions of relevo work here: {', '.join(versions)}. "
        told += "See `relevo workers ls` and restart the older ones"
        findings.append(_warning("versions", told))
    findings += await _times(desk)
    findings += [
        _warning(
            each.slowest or "slots",
            f"{each}. More workers, or more slots (RELEVO_CONCURRENCY), or fewer of them for this "
            f"queue: `relevo work --slots {each.slowest or 'QUEUE'}=N`",
        )
        for each in saturations(await desk.queues(), workers)
    ]
    served = {queue for worker in workers for queue in worker.queues}
    known = {EVENTS, *(queue for app in apps for queue in queues_of(app))}
    owners = {each.queue: each for each in await desk.subscribers()}
    for tally in await desk.queues():
        moving = sum(tally.counts.get(state, 0) for state in MOVING)
        held = tally.counts.get(State.HELD, 0)
        if moving and tally.queue not in served:
            told = f"{counted(moving, 'job')} to do and no worker: start `relevo work`"
            if (owner := owners.get(tally.queue)) is not None:
                told = (
                    f"{counted(moving, 'job')} of {owner.name}, which subscribes to "
                    f"{owner.event}, and no running worker serves it: start its program, or take "
                    f"it off with `relevo events unsubscribe {owner.event} {owner.name}`"
                )
            elif apps and tally.queue not in known:
                told = f"{counted(moving, 'job')}, but no app here knows the queue"
                told += " and no running worker serves it" if workers else ""
            elif workers:
                told = f"{counted(moving, 'job')} and none of the running workers serves it"
            findings.append(_warning(tally.queue, told + _age(tally)))
        elif tally.late is not None and tally.late >= LATE:
            told = f"is {span(tally.late / 1000)} late with {counted(moving, 'job')}"
            findings.append(_warning(tally.queue, told + _age(tally)))
        if tally.mode is not QueueMode.OPEN:
            findings.append(
                _warning(tally.queue, f"is {tally.mode}: `relevo queues resume` opens it")
            )
        if held:
            findings.append(
                _warning(
                    tally.queue,
                    f"{counted(held, 'job')} held for a person to decide: `relevo effects ls`"
                    + _age(tally),
                )
            )
    joins = [*await _joins(desk), *await _changed_keys(desk, apps)]
    told = [*await _deliveries(desk), *await _waits(desk), *joins, *await _unrouted(desk)]
    told += await _groups(desk)
    return [*findings, *await _open_breakers(desk), *told]


def _schema(schema: Schema) -> Finding:
    """How far the store is, beside this code."""
    told = f"the store is of version {schema.number}, for code of {schema.readable_from} or later"
    if schema.number == schema.known:
        return _ok("schema", told)
    told += f"; the code here is of {schema.known}: end the upgrade, or what undoes it"
    return _warning("schema", told)


async def _restored(desk: Desk) -> list[Finding]:
    """That the store is a copy, until what it has lost has come again."""
    if (back := await desk.went_back()) is not None:
        said = (
            f"the store has less than a process on {back.host} saw in it at "
            f"{moment(back.seen_at):%Y-%m-%d %H:%M:%S} UTC: it was restored from a copy, or a "
            "server without the last writes took over. Effects made since may be made again: stop "
            "every process, and `relevo database mark-restored`"
        )
        return [_warning("restored", said)]
    mark = await desk.mark()
    if mark is None or mark.over_at:
        return []
    said = f"{copied(mark)}: effects that it does not know are looked up, or held. See `relevo "
    return [_warning("restored", f"{said}database after-restore`; when it is over, add --over")]


async def _open_breakers(desk: Desk) -> list[Finding]:
    """Providers that are not called now, and what waits for them."""
    return [
        _warning(
            each.name,
            f"its {'implied ' * each.circuit.is_implied}breaker is "
            f"{each.circuit.state.replace('_', ' ')}, {counted(each.parked, 'job')} parked: "
            f"{each.circuit.history[-1].why}. See `relevo breakers show {each.name}`",
        )
        for each in await desk.breakers()
        if each.circuit.state != "closed" and each.circuit.history
    ]


async def _stored(desk: Desk, bindings: Bindings) -> list[Finding]:
    """Jobs that wait and that the code here could not read."""
    found = await read_stored(desk.store, bindings, most=READ)
    wrong = [
        Finding(
            level="error",
            subject=each.queue,
            message=f"{each.unreadable:,} of {counted(each.waiting, 'job')} of {each.kind} that "
            f"wait cannot be read by the code here and are parked, or will be: {each.error}. The "
            f"oldest is {each.jobs[0]}; see `relevo check --stored`",
        )
        for each in found
        if each.unreadable
    ]
    many = sum(each.waiting for each in found)
    said = f"the code here reads {counted(many, 'job')} that wait"
    said += "" if many < READ else f"; of each queue the newest {READ:,} were read"
    return wrong or [_ok("stored", said)]


async def _deliveries(desk: Desk) -> list[Finding]:
    """Deliveries of providers of which nothing has come, by endpoint; its errors are counted."""
    now = await desk.store.now()
    found: list[Finding] = []
    for state in (DeliveryState.FAILED, DeliveryState.DIFFERS, DeliveryState.REFUSED):
        seen = await desk.delivery_groups((state,), signed=True)
        for endpoint in dict.fromkeys(each.endpoint for each in seen.groups):
            groups = [each for each in seen.groups if each.endpoint == endpoint]
            count = sum(each.count for each in groups)
            first, last = min(each.first_at for each in groups), max(e.last_at for e in groups)
            ages = f"the oldest {span((now - first) / 1000)} ago"
            ages += f", the newest {span((now - last) / 1000)} ago"
            which, error = f"--group {groups[0].fingerprint}", groups[0].error
            if len(groups) > 1:
                which = f"--endpoint {endpoint}"
                error = f"{len(groups)} errors, the most frequent ({groups[0].count:,}): {error}"
            said = _ADVICE[state].format(endpoint=endpoint, ages=ages, which=which, error=error)
            found.append(_warning(endpoint, f"{counted(count, 'delivery', 'deliveries')} {said}"))
        if seen.is_cut:
            told = f"more deliveries are {state}: only the newest {COUNTED:,} are counted"
            found.append(_warning("deliveries", told))
    return found or [_ok("deliveries", "none has failed, differs or was refused though signed")]


_ADVICE = {
    DeliveryState.FAILED: "failed, {ages}: {error}. Mend the function and a job handles them by "
    "itself, or `relevo deliveries replay --state failed {which}` does at once",
    DeliveryState.DIFFERS: "came under a known key with another body, {ages}; nothing came of "
    "them. Choose a key that tells them apart, or on_differing='handle'; to handle those that are "
    "kept: `relevo deliveries replay --state differs --endpoint {endpoint}`",
    DeliveryState.REFUSED: "signed well and refused, {ages}: {error}. See `relevo deliveries ls "
    "--state refused --endpoint {endpoint}`",
}


async def _waits(desk: Desk) -> list[Finding]:
    """Jobs that wait long, or for a person, without spending an attempt."""
    now = await desk.store.now()
    found: list[Finding] = []
    for each in await desk.waiting():
        age = span((now - each.since) / 1000)
        if each.parked:
            said = (
                f"{counted(each.parked, 'job')} parked for {age}, since the provider does not "
                f"accept our key: {each.why}. Mend the key, then `relevo jobs unpark {each.name}`"
            )
        else:
            said = f"job {each.job} has waited for {age} without spending an attempt: {each.why}"
        found.append(_warning(each.queue, said))
    return found


async def _joins(desk: Desk) -> list[Finding]:
    """Commands whose payload was dropped because their key joined them to another job."""
    joins = await desk.joins()
    flows = [
        _warning(
            each.queue,
            f"since {at(each.since_at)}, {counted(each.count, 'start')} joined an unfinished flow "
            "of this name by key, and their different nodes or payloads were not used; the last "
            f"joined is `relevo flows show {each.job}`. If each should run: another key",
        )
        for each in joins
        if each.queue.startswith(FLOW)
    ]
    return flows + [
        _warning(
            each.queue,
            f"since {at(each.since_at)}, {counted(each.count, 'command')} joined a job by "
            f"key (unique='{each.unique}') and their different payload was not used; the last is "
            f"{each.kind}, see `relevo jobs show {each.job}`. If the newest payload should win: "
            "unique='latest'; if each should run: another key",
        )
        for each in joins
        if not each.queue.startswith(FLOW)
    ]


async def _groups(desk: Desk) -> list[Finding]:
    """Groups that were never closed: the job that waits for their members waits for ever."""
    return [
        _warning(
            group.queue,
            f"the group '{group.name}' is open since {at(group.opened_at)} and has no member that "
            "runs or waits: what fills it may have died before it called close(). Call it again, "
            f"or `relevo groups cancel {group.id}`",
        )
        for group in await desk.forgotten_groups()
    ]


async def _unrouted(desk: Desk) -> list[Finding]:
    """Calls at an endpoint, or nearly at one, that were not taken."""
    places: dict[tuple[str, str], list[Unrouted]] = {}
    for each in await desk.unrouted():
        places.setdefault((each.endpoint, each.cause), []).append(each)
    return [
        _warning(
            endpoint,
            f"{counted(sum(each.count for each in some), 'call')} not taken since "
            f"{at(min(each.first_at for each in some))}, the last at {at(some[0].last_at)} from "
            f"{some[0].address or 'further addresses'} ({some[0].method} {some[0].path}): "
            f"{some[0].status or 'no answer'} {cause}; {some[0].advice}. See `relevo deliveries ls "
            f"--unrouted`",
        )
        for (endpoint, cause), some in places.items()
    ]


async def _changed_keys(desk: Desk, apps: list[App]) -> list[Finding]:
    """Jobs that wait under another `unique` than their commands say now."""
    specs = [each.spec for app in apps for each in (*app.workers, *app.listeners)]
    return [_warning(each.queue, str(each)) for each in await desk.changed_uniques(specs)]


async def _spend(desk: Desk, apps: list[App], settings: Settings) -> list[Finding]:
    """What workers cost on a store that bills by the command, and whether the budget allows it."""
    budget = settings.budget
    if desk.store.name not in BILLED:
        told = f"a {desk.store.name} store does not count commands; RELEVO_BUDGET changes nothing"
        return [] if budget is None else [_ok("budget", told)]
    queues = len({queue for app in apps for queue in queues_of(app)}) or 1
    has_recurring = any(recurring(app) for app in apps)
    slots = queues if desk.store.name == "cluster" else 1
    try:
        pace = pace_within(
            budget,
            store=desk.store.name,
            lease=settings.lease,
            queues=queues,
            has_recurring=has_recurring,
        )
    except SettingsError as error:
        return [_error("budget", error)]
    idle = idle_cost(pace, slots=slots, has_recurring=has_recurring)
    if budget is None:
        told = f"an idle worker asks {idle:,.0f} commands a day"
        return [_ok("budget", f"{told}; if they are billed, set RELEVO_BUDGET")]
    workers = sum(worker.is_alive for worker in await desk.workers()) or 1
    polls = await _polls(desk, apps)
    asked = idle * workers + polls
    jobs = max(0, budget.a_day - asked) / JOB
    told = (
        f"of {budget.a_day:,.0f} commands a day, {idle * workers:,.0f} go to {workers} idle "
        f"worker{'s' * (workers > 1)} (which look every {span(pace.claim)} when no bell rings, and "
        f"after a lost machine's jobs every {span(pace.sweep)}) and {polls:,.0f} to pollers: "
    )
    if asked <= budget.a_day:
        return [_ok("budget", f"{told}{jobs:,.0f} jobs a day are left")]
    rest = f"that is too much. Raise RELEVO_BUDGET to {asked:,.0f}/day"
    if workers > 1:
        rest += ", run fewer workers"
    if polls:
        slower = 2 * polls / max(1.0, budget.a_day - idle * workers)
        rest += f", or make pollers {slower:,.0f} times slower with every="
    return [Finding(level="error", subject="budget", message=told + rest)]


async def _polls(desk: Desk, apps: list[App]) -> float:
    """Commands a day of the pollers, by the keys that are polled now."""
    turns = 0.0
    for app in apps:
        for poller in app.pollers:
            counts = (await desk.queue(poller.command.__relevo__.queue)).counts
            keys = sum(counts.get(state, 0) for state in LIVE)
            turns += keys * DAY / poller.every.total_seconds()
    return turns * TURN


def _ok(subject: str, message: str) -> Finding:
    return Finding(level="ok", subject=subject, message=message)


def _warning(subject: str, message: str) -> Finding:
    return Finding(level="warning", subject=subject, message=message)


def _error(subject: str, error: Exception) -> Finding:
    return Finding(level="error", subject=subject, message=discreet(str(error)))
