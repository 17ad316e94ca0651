"""The outline of one file: its functions, classes and calls, and what each name is bound to."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, cast

from relevo.check.source import Source

DEPTH = 40
"""How many steps a value is followed before we give up: source may be written to be endless."""


WORD_MAX = 100


@dataclass(frozen=True, slots=True)
class Outside:
    """Something of a library, or what came of it: `httpx.AsyncClient` or an instance of it."""

    dotted: str


@dataclass(frozen=True, slots=True)
class Import:
    """from `module` import `name`; a level counts the leading dots."""

    level: int
    module: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Typed:
    """A parameter or variable that says its type."""

    annotation: ast.expr


@dataclass(eq=False, slots=True)
class Function:
    """A function or method of the files read."""

    name: str
    node: ast.FunctionDef | ast.AsyncFunctionDef
    module: Module
    owner: Class | None = None
    outer: Function | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict[str, "list[Binding]"])

    @property
    def is_async(self) -> bool:
        return isinstance(self.node, ast.AsyncFunctionDef)

    @property
    def parameters(self) -> list[ast.arg]:
        spec = self.node.args
        return [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]


@dataclass(eq=False, slots=True)
class Class:
    """A class of the files read."""

    name: str
    node: ast.ClassDef
    module: Module
    scope: Scope
    methods: dict[str, Function] = field(default_factory=dict[str, Function])
    attributes: dict[str, list[tuple[Binding, Scope]]] = field(
        default_factory=dict[str, "list[tuple[Binding, Scope]]"]
    )


@dataclass(frozen=True, slots=True)
class Instance:
    """An object of a class of the files read."""

    cls: Class


@dataclass(eq=False, slots=True)
class Module:
    """One file, and what its names are bound to."""

    source: Source
    name: str  # shop.workers
    folder: Path  # where `name` begins: the directory that holds the top package
    is_package: bool
    bindings: dict[str, list[Binding]] = field(default_factory=dict[str, "list[Binding]"])
    stars: list[Import] = field(default_factory=list[Import])
    functions: list[Function] = field(default_factory=list[Function])
    classes: list[Class] = field(default_factory=list[Class])
    calls: list[tuple[ast.Call, Scope]] = field(default_factory=list["tuple[ast.Call, Scope]"])


Scope: TypeAlias = "Function | Module"
Value: TypeAlias = "Function | Class | Instance | Module | Outside | None"
Binding: TypeAlias = "ast.expr | Typed | Import | Function | Class | None"
"""What a name was once bound to; None where the text does not tell, such as a loop's variable."""


def words(text: str) -> frozenset[str]:
    """A set of words, written as a line of them."""
    return frozenset(text.split())


# Fields that hold no expression or statement; names and constants are leaves altogether.
_LEAVES = (ast.Name, ast.Constant)
_PLAIN = words("ctx op ops id attr arg name names kind type_comment module level conversion")
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}


def branches(node: ast.AST) -> list[ast.AST]:
    """The nodes inside one, in their order, without names and constants, of which most are."""
    kind = type(node)
    if kind not in _FIELDS:
        _FIELDS[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
    found: list[ast.AST] = []
    for name in _FIELDS[kind]:
        value: object = getattr(node, name, None)
        if isinstance(value, list):
            items = cast("list[object]", value)
            found += [
                each
                for each in items
                if isinstance(each, ast.AST) and not isinstance(each, _LEAVES)
            ]
        elif isinstance(value, ast.AST) and not isinstance(value, _LEAVES):
            found.append(value)
    return found


def dotted(node: ast.AST) -> list[str]:
    """The words of `self.gateway().book`: ["self", "gateway", "book"]; empty if it has none.

    Long ones are cut: patterns are tried on them, and a name may be as long as a file.
    """
    found: list[str] = []
    for _ in range(DEPTH):
        match node:
            case ast.Attribute():
                found.append(node.attr[:WORD_MAX])
                node = node.value
            case ast.Call():
                node = node.func
            case ast.Await() | ast.Subscript():
                node = node.value
            case ast.Name():
                return [*found, node.id[:WORD_MAX]][::-1]
            case _:
                break
    return ["", *found[::-1]] if found else []


def outline(source: Source, name: str, folder: Path) -> Module:
    """A module with everything its names are bound to. A loop, not a visit: trees may be deep."""
    is_package = source.path.name == "__init__.py"
    module = Module(source, name, folder, is_package)
    pending: list[tuple[ast.AST, Scope, Class | None]] = [(source.tree, module, None)]
    while pending:
        node, scope, owner = pending.pop()
        inside = branches(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                outer = scope if isinstance(scope, Function) else None
                function = Function(node.name, node, module, owner, outer)
                module.functions.append(function)
                if owner is None:
                    _bind(scope, node.name, function)
                else:
                    owner.methods.setdefault(node.name, function)
                _bind_parameters(function)
                around = [*node.decorator_list, node.args]
                pending.extend((each, scope, owner) for each in reversed(around))
                inside, scope, owner = list[ast.AST](node.body), function, None
            case ast.ClassDef():
                cls = Class(node.name, node, module, scope)
                module.classes.append(cls)
                if owner is None:
                    _bind(scope, node.name, cls)
                else:
                    owner.attributes.setdefault(node.name, []).append((cls, scope))
                owner = cls
            case ast.Lambda():
                for arg in ast.walk(node.args):
                    if isinstance(arg, ast.arg):
                        _bind(scope, arg.arg, None)
            case ast.Call():
                module.calls.append((node, scope))
            case _:
                _bind_statement(node, module, scope, owner)
        inside.reverse()
        pending += [(each, scope, owner) for each in inside]
    return module


def _bind(scope: Scope, name: str, binding: Binding) -> None:
    bound = scope.bindings.setdefault(name, [])
    if len(bound) < 8:
        bound.append(binding)


def _bind_parameters(function: Function) -> None:
    spec = function.node.args
    for arg in function.parameters:
        _bind(function, arg.arg, Typed(arg.annotation) if arg.annotation else None)
    for arg in (spec.vararg, spec.kwarg):
        if arg:
            _bind(function, arg.arg, None)


def _bind_statement(node: ast.AST, module: Module, scope: Scope, owner: Class | None) -> None:
    match node:
        case ast.Import():
            for alias in node.names:
                top = alias.name if alias.asname else alias.name.partition(".")[0]
                _bind(scope, alias.asname or top, Import(0, top))
        case ast.ImportFrom():
            for alias in node.names:
                origin = Import(node.level, node.module or "", alias.name)
                if alias.name == "*":
                    module.stars.append(origin)
                else:
                    _bind(scope, alias.asname or alias.name, origin)
        case ast.Assign():
            for target in node.targets:
                _bind_target(target, node.value, scope, owner)
        case ast.AnnAssign():
            _bind_target(node.target, Typed(node.annotation), scope, owner)
            if node.value:
                _bind_target(node.target, node.value, scope, owner)
        case ast.NamedExpr():
            _bind_target(node.target, node.value, scope, owner)
        case ast.With() | ast.AsyncWith():
            for item in node.items:
                if item.optional_vars:
                    _bind_target(item.optional_vars, item.context_expr, scope, owner)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            _bind_target(node.target, None, scope, owner)
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
            if node.name:
                _bind(scope, node.name, None)
        case _:
            pass


def _bind_target(
    target: ast.expr, binding: ast.expr | Typed | None, scope: Scope, owner: Class | None
) -> None:
    pending: list[tuple[ast.expr, ast.expr | Typed | None]] = [(target, binding)]
    while pending:
        target, binding = pending.pop()
        match target:
            case ast.Name():
                if owner is None:
                    _bind(scope, target.id, binding)
                else:
                    owner.attributes.setdefault(target.id, []).append((binding, scope))
            case ast.Attribute(value=ast.Name(id="self")) if isinstance(scope, Function):
                if scope.owner and len(scope.owner.attributes.setdefault(target.attr, [])) < 8:
                    scope.owner.attributes[target.attr].append((binding, scope))
            case ast.Tuple() | ast.List():
                pending.extend((each, None) for each in target.elts)
            case ast.Starred():
                pending.append((target.value, None))
            case _:
                pass
