"""Rules for what a run does outside and what it starts: awaited, named, and the same every time."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard, cast

from relevo.check.application import Application
from relevo.check.calls import walk
from relevo.check.outline import Function, Module, Outside, dotted, words
from relevo.check.outside import Kind, is_context, is_enqueue, named
from relevo.check.report import Finding

_LOOPS = (
    *(ast.For, ast.AsyncFor, ast.While),
    *(ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp),
)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def not_awaited(app: Application) -> Iterator[Finding]:
    """RV016: an order that nothing awaits; a plain `def` worker's ctx needs no await."""
    for function in app.project.functions:
        is_order = _is_order if function.is_async else _is_engines
        idle = _idle_names(function)
        for node, _ in walk(app.project, function):
            match node:
                case ast.Expr(value=ast.Call() as call) | ast.Attribute(value=ast.Call() as call):
                    pass
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as call)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as call)
                ) if name in idle:
                    pass
                case _:
                    continue
            if is_order(app, call, function):
                told = ".".join(dotted(call.func)[-2:])
                yield Finding(function.module, call, f"{told}(…) is not awaited: nothing happens")


def _idle_names(function: Function) -> set[str]:
    """The local names that are never read, or only for an attribute: nothing awaits them."""
    stored, read = set[str](), set[str]()
    of_attributes: set[ast.expr] = set()
    for node in ast.walk(function.node):
        if isinstance(node, ast.Attribute):
            of_attributes.add(node.value)
        elif isinstance(node, ast.Global | ast.Nonlocal):
            read.update(node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stored.add(node.id)
        elif isinstance(node, ast.Name) and node not in of_attributes:
            read.add(node.id)
    return stored - read


def _is_order(app: Application, call: ast.Call, scope: Function) -> bool:
    if is_enqueue(app.project, call, scope):
        return True
    word = (dotted(call.func) or [""])[-1]
    return word in ("once", "start") and is_context(app.project, call.func, scope)


def _is_engines(app: Application, call: ast.Call, scope: Function) -> bool:
    """Whether it is an async method of the engine, which a plain function cannot await."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr not in _ENGINES:
        return False
    value = app.project.value(func.value, scope)
    return app.project.is_relevo(value, "Relevo")


_ENGINES = words("enqueue enqueue_many publish start once")


# What differs from run to run


_VARYING = words(
    "datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today datetime.date.today "
    "time.time time.time_ns time.monotonic time.perf_counter uuid.uuid1 uuid.uuid4 os.urandom "
    "secrets.token_hex secrets.token_urlsafe secrets.token_bytes secrets.randbelow secrets.choice "
    "random.random random.randint random.randrange random.choice random.choices random.sample "
    "random.uniform random.getrandbits random.randbytes relevo.ids.new_id relevo.new_id"
)


def varying_follow_up(app: Application) -> Iterator[Finding]:
    """RV017: a run starts a command or event whose fields differ from run to run."""
    roles = app.roles
    for function in {**roles.workers, **roles.listeners, **roles.pollers}:
        bound = _assigned(function)
        for call in app.calls.of(function):
            if not is_enqueue(app.project, call.node, function) or not call.node.args:
                continue
            if name := _varies(app, call.node.args[0], function, bound):
                told = f"a repeated run starts another one: {name}() gives another value each time"
                yield Finding(function.module, call.node, told)


def _assigned(function: Function) -> dict[str, ast.expr]:
    """What each local name was last given, where that is a plain assignment."""
    found: dict[str, ast.expr] = {}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = node.value
    return found


def _varies(
    app: Application, given: ast.expr, scope: Function, bound: dict[str, ast.expr]
) -> str | None:
    """The name of the first call in an expression that gives another value in each run."""
    pending, seen = [given], set[str]()
    while pending:
        root = pending.pop()
        for node in ast.walk(root):
            if isinstance(node, ast.Name) and node.id in bound and node.id not in seen:
                seen.add(node.id)
                pending.append(bound[node.id])
            elif isinstance(node, ast.Call):
                value = app.project.value(node.func, scope)
                if isinstance(value, Outside) and value.dotted in _VARYING:
                    return value.dotted.removeprefix("datetime.")
    return None


# One name, one effect


def repeated_name(app: Application) -> Iterator[Finding]:
    """RV018: ctx.once() in a loop under a name that is the same in every round."""
    fixed = {each: name for each in app.project.functions if (name := _fixed_name(app, each))}
    for function in app.project.functions:
        bound = _assigned(function)
        for call, names in _in_loops(function.node):
            if _is_once(app, call, function):
                if not _of_one(call, bound) & names and _is_text(call.args[0], bound):
                    told = "every round asks for the same effect: put what differs into its name"
                    yield Finding(function.module, call, told)
            elif (target := _target(app, call, function)) and (name := fixed.get(target)):
                told = f"every round asks for the same effect, {name}: its name must differ"
                yield Finding(function.module, call, told)


def _is_once(app: Application, call: ast.Call, scope: Function) -> bool:
    is_once = dotted(call.func)[-1:] == ["once"] and bool(call.args)
    return is_once and is_context(app.project, call.func, scope)


def _fixed_name(app: Application, function: Function) -> str | None:
    """The name of an effect that a function asks for whatever it is called with."""
    bound = _assigned(function)
    stored = _stored(function.node) | {each.arg for each in function.parameters}
    for call in app.calls.of(function):
        if _is_once(app, call.node, function):
            given = call.node.args[0]
            if not _of_one(call.node, bound) & stored and _is_text(given, bound):
                return ast.unparse(given)[:60]
    return None


def _target(app: Application, call: ast.Call, scope: Function) -> Function | None:
    return app.project.called(app.project.value(call.func, scope))


def _of_one(call: ast.Call, bound: dict[str, ast.expr]) -> set[str]:
    """The names that tell one effect from another: those in its name and in `of`."""
    given = [call.args[0], *(each.value for each in call.keywords if each.arg == "of")]
    return {each.id for part in given for each in ast.walk(part) if isinstance(each, ast.Name)} - {
        name for name, value in bound.items() if _is_constant(value)
    }


def _is_text(node: ast.expr, bound: dict[str, ast.expr]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in bound and _is_constant(bound[node.id])
    return isinstance(node, ast.JoinedStr) or _is_constant(node)


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _in_loops(function: ast.AST) -> Iterator[tuple[ast.Call, set[str]]]:
    """The calls that a loop makes again, each with the names that change from round to round."""
    pending: list[tuple[ast.AST, tuple[set[str], ...]]] = [
        (each, ()) for each in ast.iter_child_nodes(function)
    ]
    while pending:
        node, loops = pending.pop()
        if isinstance(node, _DEFINITIONS):
            continue
        if loops and isinstance(node, ast.Call):
            yield node, set[str]().union(*loops)
        if isinstance(node, _LOOPS):
            loops = (*loops, _stored(node))
        blocks = [each for each in map(_block, ast.iter_fields(node)) if each]
        inside = {id(each) for block in blocks for each in block}
        for block in blocks:
            pending.extend((each, _left(block, each, loops)) for each in block)
        pending.extend((e, loops) for e in ast.iter_child_nodes(node) if id(e) not in inside)


def _block(field: tuple[str, object]) -> list[ast.stmt]:
    """The statements of a field that is a block."""
    given = cast("list[object]", field[1]) if isinstance(field[1], list) else []
    return [each for each in given if isinstance(each, ast.stmt)]


def _left(
    block: list[ast.stmt], statement: ast.stmt, loops: tuple[set[str], ...]
) -> tuple[set[str], ...]:
    """The loops that may run a statement again: not those that its block leaves after it."""
    for each in block[block.index(statement) :]:
        match each:
            case ast.Return() | ast.Raise():
                return ()
            case ast.Break():
                return loops[:-1]
            case _:
                pass
    return loops


def _stored(node: ast.AST) -> set[str]:
    """The names that are given a value somewhere in a loop, its own variable included."""
    return {
        each.id
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


# Answers of providers


_LOOKS = words(
    "raise_for_status status_code status ok is_success is_error is_client_error is_server_error "
    "reason reason_phrase"
)
_CLIENTS = ("httpx.", "httpx2.", "requests.", "aiohttp.", "niquests.")


def unchecked_response(app: Application) -> Iterator[Finding]:
    """RV019: the answer of an HTTP call is used, or dropped, without a look at its status."""
    for function in app.project.functions:
        looked = _looked_at(function)
        raises = _raises_by_itself(function)
        parents = {
            child: parent
            for parent in ast.walk(function.node)
            for child in ast.iter_child_nodes(parent)
        }
        for call in app.calls.of(function):
            touched = call.touch
            if touched is None or touched.kind is not Kind.HTTP or not touched.is_sure or raises:
                continue
            if not touched.label.startswith(_CLIENTS):
                continue
            if told := _unchecked(call.node, parents, looked):
                yield Finding(function.module, call.node, f"{touched.label}(…): {told}")


def _raises_by_itself(function: Function) -> bool:
    """aiohttp.ClientSession(raise_for_status=True), or a hook of httpx."""
    return any(
        isinstance(node, ast.keyword) and node.arg in ("raise_for_status", "event_hooks")
        for node in ast.walk(function.node)
    )


def _looked_at(function: Function) -> set[str]:
    """The names whose status is looked at, or which are handed on to something that may look."""
    found: set[str] = set()
    for node in ast.walk(function.node):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if attr in _LOOKS:
                found.add(name)
            case ast.Attribute(value=ast.NamedExpr(target=ast.Name(id=name)), attr=attr) if (
                attr in _LOOKS
            ):
                found.add(name)
            case ast.Call():
                given = [*node.args, *(keyword.value for keyword in node.keywords)]
                found |= {each.id for each in given if isinstance(each, ast.Name)}
            case ast.Return(value=ast.Name(id=name)) | ast.Yield(value=ast.Name(id=name)):
                found.add(name)
            case _:
                pass
    return found


def _unchecked(call: ast.Call, parents: dict[ast.AST, ast.AST], looked: set[str]) -> str | None:
    """What is wrong with the use of an answer; None if its status is, or may be, looked at."""
    node: ast.AST = call
    above = parents.get(node)
    place = -1  # among those that are gathered
    while isinstance(above, ast.Await) or _gathers(above):
        if isinstance(above, ast.Call):
            place = next((n for n, each in enumerate(above.args) if each is node), -1)
        node, above = above, parents.get(above)
    match above:
        case ast.Assign(targets=[ast.Tuple(elts=elements)]) if 0 <= place < len(elements):
            given = elements[place]
            if isinstance(given, ast.Name) and given.id not in looked:
                return f"the status of '{given.id}' is never looked at"
            return None
        case _ if place >= 0:
            return None
        case ast.Expr():
            return "its answer is dropped, and a 404 or a 500 would be taken for success"
        case ast.Attribute(attr=attr) if attr not in _LOOKS:
            return f".{attr} is read although the answer may be a 404 or a 500"
        case (
            ast.Assign(targets=[ast.Name(id=name)])
            | ast.AnnAssign(target=ast.Name(id=name))
            | ast.NamedExpr(target=ast.Name(id=name))
        ) if name not in looked:
            return f"the status of '{name}' is never looked at"
        case ast.withitem(optional_vars=ast.Name(id=name)) if name not in looked:
            return f"the status of '{name}' is never looked at"
        case _:
            return None


def _gathers(node: ast.AST | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and dotted(node.func)[-1:] == ["gather"]


_AWS_RETRIES = 'config=Config(retries={"total_max_attempts": 1})'
_REPEATS = {
    "openai.OpenAI": "max_retries=0",
    "openai.AsyncOpenAI": "max_retries=0",
    "openai.AzureOpenAI": "max_retries=0",
    "openai.AsyncAzureOpenAI": "max_retries=0",
    "anthropic.Anthropic": "max_retries=0",
    "anthropic.AsyncAnthropic": "max_retries=0",
    "slack_sdk.WebClient": "retry_handlers=[]",
    "slack_sdk.web.WebClient": "retry_handlers=[]",
    "slack_sdk.web.client.WebClient": "retry_handlers=[]",
    "slack_sdk.web.async_client.AsyncWebClient": "retry_handlers=[]",
    "github.Github": "retry=None",
    **{
        f"{package}.{place}{verb}": _AWS_RETRIES
        for package in ("boto3", "aioboto3")
        for place in ("", "Session.", "session.Session.")
        for verb in ("client", "resource")
    },
    **{
        f"{package}.session.{session}.create_client": _AWS_RETRIES
        for package in ("botocore", "aiobotocore")
        for session in ("get_session", "Session", "AioSession")
    },
}


def own_retries(app: Application) -> Iterator[Finding]:
    """RV021: a client that repeats calls by itself, where effects are made once."""
    calls = [(module, *each) for module in app.project.modules for each in module.calls]
    if not any(dotted(call.func)[-1:] == ["once"] for _, call, _ in calls):
        return
    is_stripe_told = any(map(_tells_stripe, app.project.modules))
    for module, call, scope in calls:
        value = app.project.value(call.func, scope)
        if not isinstance(value, Outside):
            continue
        told = ".".join(dotted(call.func)[-2:])
        if _is_stripe_s_own(value.dotted) and not is_stripe_told:
            is_stripe_told = True  # one line mends them all
            off = "stripe.max_network_retries = 0"
            yield Finding(module, call, f"{told}(…) repeats calls by itself: write {off}")
        off = _REPEATS.get(value.dotted)
        word = off.partition("=")[0] if off else ""
        if off and not any(keyword.arg in (word, None) for keyword in call.keywords):
            yield Finding(module, call, f"{told}(…) repeats calls by itself: write {off}")


def _is_stripe_s_own(name: str) -> bool:
    """stripe.PaymentIntent.create() and the like, which the module's own settings govern."""
    package, *steps = name.split(".")
    if package != "stripe" or not steps or steps[0] == "StripeClient":
        return False
    touched = named(name, (), False)
    is_class = any(each[:1].isupper() for each in steps[:-1])
    return is_class and touched is not None and touched.is_effect


def _tells_stripe(module: Module) -> bool:
    """Whether a module writes `stripe.max_network_retries = …`."""
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and dotted(node) == ["stripe", "max_network_retries"]
        for node in ast.walk(module.source.tree)
    )
