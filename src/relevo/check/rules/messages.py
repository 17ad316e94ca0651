"""Rules for commands and events: their names, their fields, their options."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from relevo.backoff import Backoff, constant, exponential
from relevo.check.application import Application
from relevo.check.names import module_of, quoted
from relevo.check.outline import Class, Outside, Scope, dotted, words
from relevo.check.report import Finding
from relevo.check.roles import Declared
from relevo.errors import DefinitionError
from relevo.job import queue_name
from relevo.message import ATTEMPTS, DEFAULT_BACKOFF, Breaker, narrow
from relevo.sensitive import Holds, holds

# Names


def queue_names(app: Application) -> Iterator[Finding]:
    """RV003: a queue's name is not `app:module:action`, or there is none."""
    for command in app.roles.commands.values():
        module, name = command.cls.module, command.cls.name
        if command.lacks("queue"):
            yield Finding(module, command.cls.node, f"{name} names no queue")
        elif "queue" in command.options:
            yield from _queue(app, command.options["queue"], command.cls.scope)
    for module in app.project.modules:
        for call, scope in module.calls:
            if app.roles.is_ours(call.func, "listener", scope):
                for keyword in call.keywords:
                    if keyword.arg == "queue":
                        yield from _queue(app, keyword.value, scope)


def _queue(app: Application, node: ast.expr, scope: Scope) -> Iterator[Finding]:
    name = app.project.text(node, scope)
    if name is not None:
        try:
            queue_name(name)
        except DefinitionError:
            yield Finding(module_of(scope), node, f"{name!r:.60} is not a queue name")


def keys(app: Application) -> Iterator[Finding]:
    """RV020: a key without unique=."""
    for declared in (*app.roles.commands.values(), *app.roles.events.values()):
        if "key" in declared.options and declared.lacks("unique"):
            cls = declared.cls
            told = f"{cls.name} has a key and no unique="
            yield Finding(cls.module, declared.options["key"], told)


_EVENT = re.compile(r"[a-z][a-z0-9_-]*(?:\.[a-z][a-z0-9_-]*)+", re.ASCII)
_PAST = words(
    "arisen awoken beaten become been begun bent bet bitten blown born bought bound bred broken "
    "brought built burnt burst cast caught chosen come cost cut dealt done drawn driven due eaten "
    "fallen felt fled flown forbidden forgotten fought found frozen given gone ground grown heard "
    "held hidden hit hung hurt kept known laid lain learnt left lent let lit lost made meant met "
    "overdue overwritten paid put quit read ready rebuilt redone reset resent rewritten ridden "
    "risen rung run said seen sent set sewn shaken shot shown shut slept sold sought spent split "
    "spread spun stolen stood struck stuck sung sunk sworn swept swum taken taught thought thrown "
    "told torn understood undone unpaid unsent upset withdrawn withheld woken won worn wound "
    "written"
)
_NOT_PAST = words("bed breed embed exceed feed heed indeed need proceed seed speed weed")


def event_names(app: Application) -> Iterator[Finding]:
    """RV004: an event's name is not a fact with dots, such as `user.registered`."""
    for event in app.roles.events.values():
        module, name = (
            event.cls.module,
            app.project.text(event.options.get("name"), event.cls.scope),
        )
        if event.lacks("name"):
            yield Finding(module, event.cls.node, f"{event.cls.name} has no name")
        elif name is not None and not (len(name) <= 128 and _EVENT.fullmatch(name)):
            wrong = f"{name!r:.60} is not an event name: lower case, with dots"
            yield Finding(module, event.options["name"], wrong)
        elif name is not None and not any(map(_is_past, re.split("[._-]", name.partition(".")[2]))):
            wrong = f"{name!r:.60} does not say what has happened"
            yield Finding(module, event.options["name"], wrong)


def _is_past(word: str) -> bool:
    return word in _PAST or (word.endswith("ed") and word not in _NOT_PAST)


# Fields


@dataclass(frozen=True, slots=True)
class _Field:
    path: str  # order.lines.picture
    name: str
    annotation: ast.expr
    node: ast.AST  # in the command, where the report belongs
    scope: Scope


def _fields(app: Application, declared: Declared) -> Iterator[_Field]:
    """The fields of a message, and those of the classes they are made of."""
    seen: set[Class] = set()
    pending: list[tuple[Class, str, ast.AST | None]] = [(declared.cls, "", None)]
    while pending:
        cls, path, node = pending.pop()
        if cls in seen or len(seen) > 200:
            continue
        seen.add(cls)
        for each in cls.node.body:
            if not isinstance(each, ast.AnnAssign) or not isinstance(each.target, ast.Name):
                continue
            if dotted(each.annotation)[-1:] == ["ClassVar"]:
                continue
            name = each.target.id
            place = node or each
            yield _Field(f"{path}{name}", name, each.annotation, place, cls.scope)
            for leaf in _leaves(each.annotation):
                inner = app.project.value(leaf, cls.scope)
                if isinstance(inner, Class):
                    pending.append((inner, f"{path}{name}.", place))
        for base in cls.node.bases:
            inner = app.project.value(base, cls.scope)
            if isinstance(inner, Class) and inner.module.name.partition(".")[0] != "relevo":
                pending.append((inner, path, node or cls.node))


def _leaves(annotation: ast.expr) -> Iterator[ast.expr]:
    """The plain types in an annotation: int and bytes of `dict[str, list[bytes]] | int`."""
    pending = [annotation]
    for _ in range(500):
        if not pending:
            return
        node = pending.pop()
        match node:
            case ast.BinOp():
                pending += [node.right, node.left]
            case ast.Tuple() | ast.List():
                pending += node.elts[::-1]
            case ast.Subscript() if dotted(node.value)[-1:] == ["Literal"]:
                pass
            case ast.Subscript() if dotted(node.value)[-1:] == ["Annotated"]:
                pending += node.slice.elts[:1] if isinstance(node.slice, ast.Tuple) else []
            case ast.Subscript():
                pending += [node.slice, node.value]
            case ast.Constant(value=str(text)):
                if written := quoted(text):
                    pending.append(written)
            case _:
                yield node


def secret_fields(app: Application) -> Iterator[Finding]:
    """RV005: a field that by its name holds a secret."""
    for declared in (*app.roles.commands.values(), *app.roles.events.values()):
        for field in _fields(app, declared):
            told = {_plain(leaf) for leaf in _leaves(field.annotation)}
            if holds(field.name) not in (None, Holds.MAYBE) and not told <= {"bool", "None"}:
                wrong = f"{declared.cls.name}.{field.path} is a secret by its name"
                yield Finding(declared.cls.module, field.node, wrong)


def _plain(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else (dotted(node) or [""])[-1]


_BYTES = "bytes cannot travel: store them and send a signed storage URL"
_FILE = "a file cannot travel: store it and send a signed storage URL"
_SET = "a set has no order in JSON: declare a list"
_PATH = "a path is not JSON, and its file may not be there: declare a signed storage URL as str"
_ID = "it is not JSON: send an id and look it up when the job runs"
_CANNOT = {
    word: reason
    for reason, kinds in (
        (_BYTES, "bytes bytearray memoryview ByteString Buffer"),
        (_FILE, "BinaryIO IO TextIO BytesIO StringIO BufferedReader IOBase UploadFile FileStorage"),
        (_SET, "set frozenset Set FrozenSet MutableSet AbstractSet"),
        (_PATH, "Path PurePath PosixPath"),
        (_ID, "AsyncSession AsyncConnection Request DataFrame ndarray Callable complex"),
    )
    for word in kinds.split()
}


def field_types(app: Application) -> Iterator[Finding]:
    """RV006: a field whose type cannot travel as JSON."""
    for declared in (*app.roles.commands.values(), *app.roles.events.values()):
        for field in _fields(app, declared):
            if reason := _cannot(app, field):
                wrong = f"{declared.cls.name}.{field.path}: {reason}"
                yield Finding(declared.cls.module, field.node, wrong)


def _cannot(app: Application, field: _Field) -> str | None:
    for leaf in _leaves(field.annotation):
        value = app.project.value(leaf, field.scope)
        word = value.dotted.rpartition(".")[2] if isinstance(value, Outside) else _plain(leaf)
        if word in _CANNOT and (value is None or isinstance(value, Outside)):
            return _CANNOT[word]
    for node in ast.walk(field.annotation):
        if isinstance(node, ast.Subscript) and _plain(node.value) in ("dict", "Dict", "Mapping"):
            key = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
            if isinstance(key, ast.Name) and key.id in ("int", "float", "bool", "tuple", "bytes"):
                return "JSON's keys are text: declare dict[str, …]"
    return None


# Options


def attempts(app: Application) -> Iterator[Finding]:
    """RV007: a command that does not say how often it is tried."""
    return _lacking(app, "attempts", "how often it is tried")


def backoff(app: Application) -> Iterator[Finding]:
    """RV008: a command that does not say how long it waits between attempts."""
    return _lacking(app, "backoff", "how long it waits between attempts")


def timeout(app: Application) -> Iterator[Finding]:
    """RV009: a command that does not say how long an attempt may take."""
    return _lacking(app, "timeout", "how long an attempt may take")


def _lacking(app: Application, option: str, what: str) -> Iterator[Finding]:
    for command in app.roles.commands.values():
        if command.lacks(option):
            wrong = f"{command.cls.name} does not say {what}"
            yield Finding(command.cls.module, command.cls.node, wrong)


def windows(app: Application) -> Iterator[Finding]:
    """RV024: a breaker's window is shorter than a wait of its command's backoff."""
    for command in app.roles.commands.values():
        scope, options = command.cls.scope, command.options
        given = options.get("breaker")
        if given is None or _is_none(given):
            continue
        rule = _made(given, scope)
        backoff = _made(options["backoff"], scope) if "backoff" in options else DEFAULT_BACKOFF
        attempts = _literal(options["attempts"], scope) if "attempts" in options else ATTEMPTS
        if app.project.text(given, scope) is not None:
            rule = Breaker("")
        if (
            isinstance(rule, Breaker)
            and isinstance(backoff, Backoff)
            and type(attempts) is int
            and (told := narrow(rule, backoff, attempts))
        ):
            yield Finding(command.cls.module, given, f"{command.cls.name}: {told}")


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


_MAKERS: dict[str, Callable[..., object]] = {
    "Breaker": Breaker,
    "exponential": exponential,
    "constant": constant,
}


def _made(node: ast.expr, scope: Scope) -> object:
    """The breaker or backoff that a call with literals makes; None where it is not known."""
    node = _bound(node, scope)
    if not isinstance(node, ast.Call):
        return None
    make = _MAKERS.get((dotted(node.func) or [""])[-1])
    names = [each.arg for each in node.keywords]
    if make is None or None in names:
        return None
    given = [_literal(each, scope) for each in node.args]
    options = {str(each.arg): _literal(each.value, scope) for each in node.keywords}
    if make is Breaker:
        given = ["", *given[1:]]  # its template changes nothing here, and may be made of anything
        options = {name: each for name, each in options.items() if name != "template"}
    if None in (*given, *options.values()):
        return None
    try:
        return make(*given, **options)
    except (DefinitionError, TypeError):
        return None


def _bound(node: ast.expr, scope: Scope) -> ast.expr:
    """The expression that a name stands for, where there is one."""
    for _ in range(4):
        if not isinstance(node, ast.Name):
            break
        place = scope if node.id in scope.bindings else module_of(scope)
        bound = [each for each in place.bindings.get(node.id, []) if isinstance(each, ast.expr)]
        if len(bound) != 1:
            break
        node = bound[0]
    return node


def _literal(node: ast.expr, scope: Scope) -> str | int | float | None:
    """A text or a number; None where it is not known."""
    match _bound(node, scope):
        case ast.Constant(value=str() | int() | float() as value):
            return value
        case _:
            return None
