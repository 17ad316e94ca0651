"""Webhook and Site, the doors an app has: where, for whom, and which function stands behind."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from relevo.errors import DefinitionError
from relevo.message import KeyPart
from relevo.signatures import Scheme
from relevo.sources import Source
from relevo.webhook import Answer, Delivery

T = TypeVar("T")

BODY_LIMIT = 1_048_576
"""Bytes a delivery may have unless its webhook says otherwise."""

_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+", re.ASCII)
_TYPE = re.compile(r"[!-~]{1,200}")
_DELIVERS = frozenset({"GET", "POST", "PUT"})


class Use(Protocol):
    """How a function asks for an opened resource of its app: `use(Settings)`."""

    def __call__(self, kind: type[T], /) -> T: ...


Verify: TypeAlias = Scheme | Callable[[Use], Scheme]
SourceOf: TypeAlias = Source | Callable[[Use], Source]
Key: TypeAlias = Callable[[Delivery], KeyPart]
Challenge: TypeAlias = Callable[[Delivery, Use], Answer]
OnDiffering: TypeAlias = Literal["keep", "handle"]


_CHECKS = (
    "which checks nothing: give sources.hmac_header(…), sources.shared_secret(…) or a function of "
    "`use` that gives one of them; a provider of relevo.sources goes into source="
)


@dataclass(frozen=True, slots=True, eq=False)
class Webhook:
    """A door for a provider; made by webhook() or App.webhook."""

    path: str
    function: Callable[..., Any]
    source: SourceOf | None = field(repr=False)
    verify: Verify | None = field(repr=False)
    key: Key | None
    types: tuple[str, ...]
    methods: tuple[str, ...] | None
    content_types: tuple[str, ...] | None
    limit: int
    answer: Answer | None
    challenge: Challenge | None
    keep_headers: tuple[str, ...]
    accept_gzip: bool
    later: bool
    on_differing: OnDiffering
    takes: tuple[str, ...]  # what the function takes besides the delivery: intake, tx

    @property
    def gives_answers(self) -> bool:
        """Whether the function says that it always returns an answer of its own: `-> Answer`."""
        given: Any = inspect.signature(self.function).return_annotation
        if isinstance(given, str):
            return "None" not in given and given != "Any"
        return given not in (inspect.Signature.empty, None, Any) and "None" not in str(given)

    def rules(self, use: Use) -> Source:
        """The source's rules, or those that `verify=` and `key=` say."""
        if self.source is not None:
            made = self.source if isinstance(self.source, Source) else self.source(use)
            if isinstance(made, Source):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped code
                return made
            raise DefinitionError(
                f"{self.path}: source gave {made!r:.60}, which is no source: give "
                "sources.stripe(…) or another of relevo.sources, or a function of `use` that does"
            )
        assert self.verify is not None  # noqa: S101 - webhook() has seen to it
        assert self.key is not None  # noqa: S101 - as above
        scheme = self.verify if isinstance(self.verify, Scheme) else self.verify(use)
        if not isinstance(scheme, Scheme):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise DefinitionError(f"{self.path}: verify gave {scheme!r:.60}, {_CHECKS}")
        return Source(name="", scheme=scheme, id=self.key)

    def takes_type(self, type: str) -> bool:
        """Whether the function is for an event of a type, or for one item of a call with many."""
        kinds = type.split(", ")
        return not self.types or any(
            fnmatchcase(kind, pattern) for kind in kinds for pattern in self.types
        )


def webhook(
    path: str,
    function: Callable[..., Any],
    *,
    source: SourceOf | None = None,
    verify: Verify | None = None,
    key: Key | None = None,
    types: Sequence[str] = (),
    methods: Sequence[str] | None = None,
    content_types: Sequence[str] | None = None,
    limit: int = BODY_LIMIT,
    answer: Answer | None = None,
    challenge: Challenge | None = None,
    keep_headers: Sequence[str] = (),
    accept_gzip: bool = False,
    later: bool = False,
    on_differing: OnDiffering = "keep",
) -> Webhook:
    """A webhook for the list form: `App("cars", webhooks=[webhook("/hooks/stripe", hook, …)])`.

    `source` knows the provider: `sources.github(secret)`. With it `types` says which events the
    function is for, such as ["push", "pull_request.*"]; others are answered as the provider likes
    it, and kept as ignored. For a provider that has no source, `verify` says who may deliver and
    `key` gives what makes two deliveries the same one: the provider's event id; beside a source
    `key` replaces its id. `answer` is what the provider gets unless the function returns another;
    where it is not given and the function returns answers, none is given in the function's place
    while the store is away: 503.
    `challenge` answers GET without storing anything, for providers that ask who we are. A content
    type of "" is a call without one, "*" is any at all. `limit` holds for the body as it came and,
    with `accept_gzip`, unpacked.

    `later` keeps and answers a delivery first, and runs the function as a job. `on_differing` says
    what becomes of another body that comes under a known key: "keep" stores it for a person and
    runs nothing, "handle" makes it a delivery of its own.
    """
    if not _PATH.fullmatch(path):
        raise DefinitionError(f"{path!r:.80} is not a webhook path: write one like /hooks/stripe")
    lists = {
        "types": types,
        "methods": methods,
        "content_types": content_types,
        "keep_headers": keep_headers,
    }
    for name, given in lists.items():
        if isinstance(given, str):  # else each of its letters would be one
            raise DefinitionError(f"{path}: {name} is a list: write {name}=({given!r:.60},)")
    if not isinstance(answer, Answer | None):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
        raise DefinitionError(
            f"{path}: answer is an Answer, such as Answer.json({{'ok': True}}), not {answer!r:.60}"
        )
    wrong = sorted(set(methods or ()) - _DELIVERS)
    if wrong or methods == []:
        raise DefinitionError(f"{path}: a webhook is delivered by GET, POST or PUT, not {wrong}")
    if challenge is not None and "GET" in (methods or ()):
        raise DefinitionError(f"{path}: GET either delivers or asks for the challenge")
    if not 1 <= limit <= 64 * BODY_LIMIT:
        raise DefinitionError(f"{path}: limit is 1 byte to 64 MiB, not {limit}")
    if not inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{path}: write {function.__qualname__} as `async def`")
    if source is None:
        if isinstance(verify, Source):
            raise DefinitionError(f"{path}: write source= for {verify.name}; it needs no key=")
        if not (isinstance(verify, Scheme) or callable(verify)):
            raise DefinitionError(
                f"{path}: say who may deliver: source=sources.stripe(…) or another of its kind; or "
                "verify=sources.hmac_header(…) or sources.shared_secret(…), with key= beside it"
            )
        if key is None:
            raise DefinitionError(
                f"{path}: verify= needs key=, which gives the provider's id of a delivery, such as "
                "key=lambda call: call.json['id']"
            )
        if types:
            raise DefinitionError(f"{path}: types= needs source=, which knows an event's type")
    elif verify is not None:
        raise DefinitionError(f"{path}: source= checks who delivers: leave verify= out")
    elif not (isinstance(source, Source) or callable(source)):
        raise DefinitionError(
            f"{path}: source is one of relevo.sources, such as sources.github(secret), "
            f"not {source!r:.60}; who only signs is told by verify= and key="
        )
    elif inspect.isfunction(source) and source.__module__.startswith("relevo.sources."):
        # Not called, it would be taken for a function of `use`, and fail when the engine opens.
        raise DefinitionError(f"{path}: write source=sources.{source.__name__}(…), with its secret")
    if key is not None and not callable(key):
        raise DefinitionError(
            f"{path}: key is a function of the delivery, such as lambda d: d.json['id'], "
            f"not {key!r:.60}"
        )
    if on_differing not in ("keep", "handle"):
        raise DefinitionError(
            f"{path}: on_differing is 'keep' or 'handle', not {on_differing!r:.40}"
        )
    for each in types:
        if not isinstance(each, str) or not _TYPE.fullmatch(each):  # pyright: ignore[reportUnnecessaryIsInstance] - people without a type checker
            raise DefinitionError(f"{path}: {each!r:.60} is not a type: write 'push' or 'issues.*'")
    return Webhook(
        path,
        function,
        source,
        verify,
        key,
        tuple(types),
        None if methods is None else tuple(methods),
        None if content_types is None else tuple(content_types),
        limit,
        answer,
        challenge,
        tuple(keep_headers),
        accept_gzip,
        later,
        on_differing,
        _takes(function),
    )


def _takes(function: Callable[..., Any]) -> tuple[str, ...]:
    """The delivery, and then `ctx` or `tx` or both, told by name so that no import runs."""
    names = list(inspect.signature(function).parameters)
    if not names or names[1:] not in ([], ["ctx"], ["tx"], ["ctx", "tx"]):
        raise DefinitionError(
            f"{function.__qualname__} takes ({', '.join(names)}); write (delivery), "
            "(delivery, ctx), (delivery, tx) or (delivery, ctx, tx)"
        )
    return tuple(names[1:])


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """An ASGI application of an app's own, under a prefix; it sees the whole path.

    One with a title is for people: it stands in the dashboard's menu, behind its login.
    """

    prefix: str
    build: Callable[[Any], Any]  # of the engine; gives an ASGI application
    title: str | None = None


def site(prefix: str, build: Callable[[Any], Any], *, title: str | None = None) -> Site:
    """A site for the list form: `App("cars", sites=[site("/reservations", api.build)])`."""
    if not _PATH.fullmatch(prefix):
        raise DefinitionError(f"{prefix!r:.80} is not a prefix: write one like /reservations")
    return Site(prefix, build, title)
