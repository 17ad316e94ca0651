"""What a name stands for: the functions, classes and modules of the files read, or the outside.

Nothing is imported. A name is followed through imports, assignments, annotations and attributes as
far as the text itself tells; where it does not tell, the answer is None and no rule speaks.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from relevo.check.outline import (
    DEPTH,
    WORD_MAX,
    Binding,
    Class,
    Function,
    Import,
    Instance,
    Module,
    Outside,
    Scope,
    Typed,
    Value,
    dotted,
    outline,
    words,
)
from relevo.check.source import Source

# Of a type such as AsyncIterator[Session] the part in brackets is what a caller gets to hold.
_WRAPPERS = words(
    "Annotated Optional Final ClassVar Required NotRequired Iterator Iterable Generator Awaitable "
    "AsyncIterator AsyncIterable AsyncGenerator Coroutine AbstractAsyncContextManager "
    "AbstractContextManager AsyncContextManager ContextManager"
)
# Not to be followed into: what an application calls of us is not its own slow work.
_OPEN_ROOMS = ("relevo.apps", "relevo.ingress", "relevo.dashboard", "relevo.simulators")


class Project:
    """All files read, and the answers to what a name in one of them stands for."""

    def __init__(self, sources: Iterable[Source]) -> None:
        self.modules: list[Module] = []
        self._by_path: dict[Path, Module] = {}
        self._by_name: dict[str, list[Module]] = {}
        self._values: dict[tuple[object, str], Value] = {}
        packages: dict[Path, bool] = {}
        for source in sources:
            name, folder = _module_name(source.path, packages)
            module = outline(source, name, folder)
            self.modules.append(module)
            path = source.path
            self._by_path[path.parent if module.is_package else path.with_suffix("")] = module
            self._by_name.setdefault(name.rpartition(".")[2], []).append(module)

    @property
    def functions(self) -> Iterator[Function]:
        return (function for module in self.modules for function in module.functions)

    @property
    def classes(self) -> Iterator[Class]:
        return (cls for module in self.modules for cls in module.classes)

    def value(self, node: ast.expr, scope: Scope, depth: int = 0) -> Value:
        """What an expression stands for."""
        if depth > DEPTH:
            return None
        depth += 1
        match node:
            case ast.Name():
                return self._named(node.id, scope, depth)
            case ast.Attribute():
                return self.attribute(self.value(node.value, scope, depth), node.attr, depth)
            case ast.Call():
                return self._result(self.value(node.func, scope, depth), depth)
            case ast.Await() | ast.NamedExpr():
                return self.value(node.value, scope, depth)
            case ast.IfExp():
                return self.value(node.body, scope, depth) or self.value(node.orelse, scope, depth)
            case ast.BoolOp():
                known = (self.value(each, scope, depth) for each in node.values[:4])
                return next((value for value in known if value), None)
            case _:
                return None

    def attribute(self, value: Value, name: str, depth: int = 0) -> Value:
        """What `value.name` stands for."""
        if depth > DEPTH:
            return None
        match value:
            case Outside():
                return _outside(f"{value.dotted}.{name}")
            case Module():
                return self._member(value, name, depth + 1)
            case Class():
                return self._of_class(value, name, depth + 1)
            case Instance():
                return self._of_class(value.cls, name, depth + 1)
            case _:
                return None

    def typed(self, annotation: ast.expr, scope: Scope, depth: int = 0) -> Value:
        """What an annotation says that a value is."""
        for part in parts(annotation):
            if isinstance(part, ast.Name | ast.Attribute):
                value = self.value(part, scope, depth + 1)
                if isinstance(value, Class):
                    return Instance(value)
                if value is not None:
                    return value
        return None

    def is_relevo(self, value: Value, name: str) -> bool:
        """Whether something is relevo's public class of that name, or an object of it."""
        match value:
            case Outside():
                return value.dotted.startswith("relevo.") and value.dotted.endswith(f".{name}")
            case Instance():
                return self.is_relevo(value.cls, name)
            case Class():
                return value.name == name and value.module.name.partition(".")[0] == "relevo"
            case _:
                return False

    def called(self, value: Value) -> Function | None:
        """The function of the files read that a call of `value` runs."""
        if isinstance(value, Class):
            value = self._of_class(value, "__init__", 0)
        if isinstance(value, Instance):
            value = self._of_class(value.cls, "__call__", 0)
        if not isinstance(value, Function):
            return None
        name = value.module.name
        is_ours = name == "relevo" or name.startswith("relevo.")
        return None if is_ours and not name.startswith(_OPEN_ROOMS) else value

    def text(self, node: ast.expr | None, scope: Scope) -> str | None:
        """The text of a literal, or of a constant that is one."""
        for _ in range(4):
            if isinstance(node, ast.Constant):
                return node.value if isinstance(node.value, str) else None
            if not isinstance(node, ast.Name):
                return None
            place = scope if node.id in scope.bindings else module_of(scope)
            bound = place.bindings.get(node.id, [])
            told = [each for each in bound if not isinstance(each, Typed)]
            if len(told) != 1:
                return None
            node = told[0] if isinstance(told[0], ast.expr) else None
        return None

    # one step each

    def _named(self, name: str, scope: Scope, depth: int) -> Value:
        place: Scope | None = scope
        while isinstance(place, Function):
            if name in place.bindings:
                return self._bound(name, place, depth)
            place = place.outer
        return self._member(module_of(scope), name, depth, is_inside=True)

    def _bound(self, name: str, scope: Scope, depth: int) -> Value:
        """The first thing a scope's name was bound to that the text tells."""
        place = (scope, name)
        if place not in self._values:
            self._values[place] = None  # whoever comes back here goes in a circle
            if isinstance(scope, Function) and scope.owner and _is_self(name, scope):
                self._values[place] = Instance(scope.owner)
            for binding in scope.bindings[name]:
                self._values[place] = self._values[place] or self._of(binding, scope, depth)
        return self._values[place]

    def _of(self, binding: Binding, scope: Scope, depth: int) -> Value:
        match binding:
            case Function() | Class():
                return binding
            case Typed():
                return self.typed(binding.annotation, scope, depth)
            case Import():
                return self._imported(binding, module_of(scope), depth)
            case ast.expr():
                return self.value(binding, scope, depth)
            case _:
                return None

    def _member(self, module: Module, name: str, depth: int, is_inside: bool = False) -> Value:
        if depth > DEPTH:
            return None
        if name in module.bindings:
            return self._bound(name, module, depth)
        if module.is_package and not is_inside:
            child = self._by_path.get(module.source.path.parent / name)
            if child:
                return child
        place = (module, f"*{name}")
        if place not in self._values:
            self._values[place] = None
            for star in module.stars:
                origin = self._module(star, module)
                if origin and origin is not module and not self._values[place]:
                    self._values[place] = self._member(origin, name, depth + 1)
        return self._values[place]

    def _of_class(self, cls: Class, name: str, depth: int) -> Value:
        place = (cls, name)
        if place not in self._values:
            self._values[place] = None
            self._values[place] = self._looked_up(cls, name, depth)
        return self._values[place]

    def _looked_up(self, cls: Class, name: str, depth: int) -> Value:
        if depth > DEPTH:
            return None
        if name in cls.methods:
            method = cls.methods[name]
            decorators = {dotted(each)[-1] for each in method.node.decorator_list if dotted(each)}
            is_value = decorators & {"property", "cached_property"}
            return self._result(method, depth) if is_value else method
        for binding, scope in cls.attributes.get(name, ()):
            if value := self._of(binding, scope, depth + 1):
                return value
        for base in cls.node.bases[:8]:
            origin = self.value(base, cls.scope, depth + 1)
            if origin is not cls and (value := self.attribute(origin, name, depth + 1)):
                return value
        return None

    def _result(self, value: Value, depth: int) -> Value:
        match value:
            case Class():
                return Instance(value)
            case Outside():
                return value
            case Function(node=node) if node.returns:
                return self.typed(node.returns, value, depth + 1)
            case _:
                return None

    # imports

    def _imported(self, origin: Import, importer: Module, depth: int) -> Value:
        module = self._module(origin, importer)
        if module is None:
            whole = ".".join(filter(None, (origin.module, origin.name)))
            # from shop import workers, where shop is a directory without __init__.py
            child = self._module(Import(origin.level, whole), importer) if origin.name else None
            return child or _outside("." * origin.level + whole)
        if origin.name is None:
            return module
        found = self._member(module, origin.name, depth + 1)
        return found or _outside(f"{module.name}.{origin.name}")

    def _module(self, origin: Import, importer: Module) -> Module | None:
        if origin.level:
            return self._by_path.get(_relative(origin, importer))
        named = self._by_name.get(origin.module.rpartition(".")[2], ())
        answers = [
            module
            for module in named
            if module is not importer and _answers_to(module, origin.module, importer)
        ]
        # Where two projects under one roof have an `app.main`, the nearer one is meant.
        return max(answers, key=lambda module: _nearness(module, importer), default=None)


def parts(annotation: ast.expr) -> Iterator[ast.expr]:
    """The alternatives of a type: X and None of `X | None`, X of `Annotated[X, …]` or `"X"`."""
    pending = [annotation]
    for _ in range(200):
        if not pending:
            return
        node = pending.pop()
        match node:
            case ast.BinOp(op=ast.BitOr()):
                pending += [node.right, node.left]
            case ast.Constant(value=str(text)):
                if written := quoted(text):
                    pending.append(written)
            case ast.Subscript() if dotted(node.value)[-1:] == ["Union"]:
                pending += node.slice.elts[::-1] if isinstance(node.slice, ast.Tuple) else []
            case ast.Subscript() if (dotted(node.value) or [""])[-1] in _WRAPPERS:
                first = node.slice.elts[:1] if isinstance(node.slice, ast.Tuple) else [node.slice]
                pending += first
            case _:
                yield node


def quoted(text: str) -> ast.expr | None:
    """The expression that an annotation in quotes holds."""
    try:
        return ast.parse(text[:1_000], mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _outside(name: str) -> Outside:
    return Outside(name if len(name) <= 4 * WORD_MAX else name[-4 * WORD_MAX :])


def module_of(scope: Scope) -> Module:
    """The module a scope is, or is in."""
    return scope.module if isinstance(scope, Function) else scope


def _is_self(name: str, function: Function) -> bool:
    decorators = [dotted(each)[-1:] for each in function.node.decorator_list]
    first = function.parameters[:1]
    return bool(first) and first[0].arg == name and ["staticmethod"] not in decorators


def _relative(origin: Import, importer: Module) -> Path:
    folder = importer.source.path.parent
    for _ in range(origin.level - 1):
        folder = folder.parent
    return folder.joinpath(*origin.module.split(".")) if origin.module else folder


def _nearness(module: Module, importer: Module) -> int:
    shared = zip(module.source.path.parts, importer.source.path.parts, strict=False)
    return next((place for place, (ours, theirs) in enumerate(shared) if ours != theirs), 0)


def _module_name(path: Path, packages: dict[Path, bool]) -> tuple[str, Path]:
    """The name a file is imported by, and the directory it is imported from."""
    steps = [] if path.name == "__init__.py" else [path.stem]
    folder = path.parent
    while packages.setdefault(folder, (folder / "__init__.py").is_file()):
        steps.append(folder.name)
        folder = folder.parent
    return ".".join(reversed(steps)), folder


def _answers_to(module: Module, name: str, importer: Module) -> bool:
    """Whether `import name` in one file means the other.

    `gateways/stripe.py` is no answer to `import stripe`, unless it lies on the importer's own path.
    """
    if name == module.name:
        is_top = "." not in name and not module.is_package
        return not is_top or importer.source.path.is_relative_to(module.folder)
    if not name.endswith(f".{module.name}"):
        return False
    above = name.removesuffix(f".{module.name}").split(".")
    return list(module.folder.parts[-len(above) :]) == above
