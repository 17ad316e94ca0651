"""What the functions and classes of an application are: handlers, workers, commands and so on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from relevo.check.names import Project
from relevo.check.outline import Class, Function, Instance, Outside, Scope, dotted, words
from relevo.check.outside import CONTEXTS

_ROUTES = words("get post put patch delete head options route api_route")
_VERBS = words("get post put patch delete head options")
_ROUTERS = re.compile(r"(?:\w+_)?(?:app|api|router|bp|blueprint|server|web)")
_ADDS_ROUTE = words("Route APIRoute add_route add_api_route add_url_rule")


@dataclass(frozen=True, slots=True)
class Declared:
    """A Command or an Event, and the options in its class line."""

    cls: Class
    options: dict[str, ast.expr]
    is_open: bool  # **options: what is not there may be there

    def lacks(self, option: str) -> bool:
        return option not in self.options and not self.is_open


class Roles:
    """The roles in a project, each function's told by decorator, by list or by annotation."""

    def __init__(self, project: Project) -> None:
        self.project = project

    # messages

    @cached_property
    def commands(self) -> dict[Class, Declared]:
        return {
            cls: self._declared(cls) for cls in self.project.classes if self._is(cls, "Command")
        }

    @cached_property
    def events(self) -> dict[Class, Declared]:
        return {cls: self._declared(cls) for cls in self.project.classes if self._is(cls, "Event")}

    def _declared(self, cls: Class) -> Declared:
        options = {each.arg: each.value for each in cls.node.keywords if each.arg}
        return Declared(cls, options, any(each.arg is None for each in cls.node.keywords))

    def _is(self, cls: Class, name: str) -> bool:
        """Whether a class is a Command or an Event, itself or through its bases."""
        option = {"Command": "queue", "Event": "name"}[name]
        if self.project.is_relevo(cls, name):
            return False  # it is the base itself
        pending, seen = [cls], {cls}
        while pending:
            current = pending.pop()
            for base in current.node.bases:
                value = self.project.value(base, current.scope)
                if self.project.is_relevo(value, name):
                    return True
                if isinstance(value, Class):
                    if value not in seen:
                        seen.add(value)
                        pending.append(value)
                    continue
                # Someone's own base, or an import that was not read: the option gives it away.
                has_option = any(each.arg == option for each in cls.node.keywords)
                if has_option and dotted(base)[-1:] == [name]:
                    return True
        return False

    def message_of(self, function: Function) -> Class | None:
        """The class that a worker's or listener's first parameter is annotated with."""
        first = function.parameters[:1]
        if not first or first[0].annotation is None:
            return None
        value = self.project.typed(first[0].annotation, function)
        return value.cls if isinstance(value, Instance) else None

    # functions

    @cached_property
    def handlers(self) -> dict[Function, None]:
        """Those that answer HTTP: webhooks and routes. A dict, because a set has no order."""
        found = {each: None for each in self.project.functions if self._is_handler(each)}
        found |= self.webhooks
        for module in self.project.modules:
            for call, scope in module.calls:
                if (dotted(call.func) or [""])[-1] in _ADDS_ROUTE:
                    given = [*call.args[1:2], *(k.value for k in call.keywords)]
                    found |= dict.fromkeys(self._functions(given, scope))
        return found

    @cached_property
    def webhooks(self) -> dict[Function, None]:
        """Those of relevo's own among the handlers."""
        found = {
            each: None for each in self.project.functions if self._is_decorated(each, "webhook")
        }
        for call, scope in self.project_calls("webhooks"):
            found |= dict.fromkeys(self._listed(call, "webhooks", scope))
        return found

    @cached_property
    def workers(self) -> dict[Function, Class | None]:
        """Those that carry out a command, with its class where it was read."""
        found = [each for each in self.project.functions if self._is_decorated(each, "worker")]
        for call, scope in self.project_calls("workers"):
            found += self._listed(call, "workers", scope)
        found += [each for each in self._with_context if self.message_of(each) in self.commands]
        return {each: self.message_of(each) for each in found}

    @cached_property
    def listeners(self) -> dict[Function, None]:
        """Those that react to an event."""
        found = [each for each in self.project.functions if self._is_decorated(each, "listener")]
        for call, scope in self.project_calls("listeners"):
            found += self._listed(call, "listeners", scope)
        found += [each for each in self._with_context if each not in self.workers]
        return dict.fromkeys(found)

    @cached_property
    def pollers(self) -> dict[Function, None]:
        """Those that run again and again."""
        found = [each for each in self.project.functions if self._is_decorated(each, "poller")]
        return dict.fromkeys(found)

    @cached_property
    def _with_context(self) -> list[Function]:
        """Functions of (order: SomeMessage, ctx: Context), whose app may not have been read."""
        found: list[Function] = []
        for function in self.project.functions:
            if len(function.parameters) == 2 and function.parameters[0].annotation:
                second = function.parameters[1].annotation
                value = self.project.typed(second, function) if second else None
                is_context = any(self.project.is_relevo(value, name) for name in CONTEXTS)
                if function.owner is None and is_context:
                    found.append(function)
        return found

    def project_calls(self, option: str) -> Iterator[tuple[ast.Call, Scope]]:
        """The App(…) that have an option such as workers=[…]."""
        for module in self.project.modules:
            for call, scope in module.calls:
                is_app = dotted(call.func)[-1:] == ["App"]
                if is_app and any(keyword.arg == option for keyword in call.keywords):
                    yield call, scope

    def _listed(self, call: ast.Call, option: str, scope: Scope) -> list[Function]:
        for keyword in call.keywords:
            if keyword.arg == option and isinstance(keyword.value, ast.List | ast.Tuple):
                given = keyword.value.elts
                # listener(send_welcome, attempts=5) stands for send_welcome
                plain = [
                    argument
                    for each in given
                    for argument in (each.args if isinstance(each, ast.Call) else [each])
                ]
                return self._functions(plain, scope)
        return []

    def _functions(self, given: list[ast.expr], scope: Scope) -> list[Function]:
        values = [self.project.value(each, scope) for each in given]
        return [value for value in values if isinstance(value, Function)]

    def _is_decorated(self, function: Function, word: str) -> bool:
        scope = function.outer or function.module
        return any(self.is_ours(each, word, scope) for each in function.node.decorator_list)

    def is_ours(self, node: ast.expr, word: str, scope: Scope) -> bool:
        """Whether something is called by a word of relevo's, and is not known to be another's."""
        if dotted(node)[-1:] != [word]:
            return False
        value = self.project.value(node, scope)
        return not isinstance(value, Outside) or value.dotted.startswith("relevo.")

    def _is_handler(self, function: Function) -> bool:
        if any(self._is_route(each) for each in function.node.decorator_list):
            return True
        if function.owner is None or function.name not in _VERBS:
            return False
        for base in function.owner.node.bases:
            value = self.project.value(base, function.owner.scope)
            name = value.dotted if isinstance(value, Outside) else ".".join(dotted(base))
            if name.endswith(("HTTPEndpoint", "MethodView")):
                return True
        return False

    def _is_route(self, decorator: ast.expr) -> bool:
        steps = dotted(decorator)
        if not isinstance(decorator, ast.Call) or not steps:
            return False
        if steps[-1] == "webhook":
            return True
        if len(steps) < 2 or steps[-1] not in _ROUTES:
            return False
        given = [*decorator.args[:1], *(k.value for k in decorator.keywords if k.arg == "path")]
        path = given[0].value if given and isinstance(given[0], ast.Constant) else None
        if isinstance(path, str) and path.startswith("/"):
            return True
        # @mock.patch("shop.mail.send") has the look of a route, but not its path.
        is_plain = path == "" or (bool(given) and not isinstance(given[0], ast.Constant))
        return is_plain and _ROUTERS.fullmatch(steps[-2]) is not None
