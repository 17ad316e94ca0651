"""Room: a folder of templates with its Spanish table; makes pages of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode

import msgspec
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from relevo.clock import moment_if
from relevo.version import version
from relevo.web.auth import is_https
from relevo.web.refusals import REFUSALS
from relevo.web.sentences import Sentences
from relevo.web.translate import LANGUAGES, Words, language_of
from relevo.web.visit import Visit
from relevo.web.words import SPANISH

TEMPLATES = Path(__file__).parent / "templates"
THEMES = ("light", "dark")
SAID = "relevo_said"
LANG = "relevo_lang"
THEME = "relevo_theme"
_YEAR = 31_536_000
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


class Room:
    """Pages of one folder, dressed in the shared layout.

    `sentences` are those of `spanish` that reach a page filled in, such as the room's errors.
    """

    def __init__(
        self,
        folder: Path,
        spanish: Mapping[str, str] | None = None,
        sentences: Iterable[str] = (),
    ) -> None:
        self.folder = folder
        self.spanish = dict(spanish or {})
        self.sentences = Sentences(REFUSALS, sentences)
        self._templates = Environment(
            loader=ChoiceLoader([FileSystemLoader(folder), FileSystemLoader(TEMPLATES)]),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        filters: dict[str, Any] = self._templates.filters
        filters.update(number=_number, span=span, ago=_ago, clock=_clock, pretty=pretty)

    def words(self, request: Request) -> Words:
        """What `_` is on this room's pages, for text that is made in Python."""
        shared = Visit.of(request.scope).web.spanish
        return Words(_language(request), self.spanish, shared, SPANISH)

    def retold(self, request: Request, text: str) -> str:
        """A sentence of ours, filled in, in the reader's language; what is not ours as it is."""
        return self.sentences.retold(self.words(request), text)

    def page(
        self,
        request: Request,
        template: str,
        *,
        status: int = 200,
        block: str | None = None,
        headers: Mapping[str, str] | None = None,
        **context: Any,
    ) -> Response:
        """A page; with `block`, that part of it alone."""
        visit = Visit.of(request.scope)
        found = self._templates.get_template(template)
        values = self._values(request, visit) | {"status": status} | context
        if block is None:
            text = found.render(values)
        else:
            text = "".join(found.blocks[block](found.new_context(values)))
        # Keys and errors may hold half a surrogate pair, which UTF-8 has no room for.
        response = HTMLResponse(text.encode(errors="replace"), status, headers)
        _remember(request, visit, response, is_whole=block is None)
        return response

    def _values(self, request: Request, visit: Visit) -> dict[str, Any]:
        path = visit.path(request.scope)
        field = f'<input type="hidden" name="csrf" value="{visit.csrf}">'
        menu = [entry for entry in visit.web.menu if entry.app is None or visit.sees(entry.app)]
        near = [entry for entry in menu if entry.holds(path)]
        return {
            "_": self.words(request),
            "request": request,
            "person": visit.person,
            "may": visit.may,
            "can_log_out": visit.session is not None,
            "csrf_token": visit.csrf,
            "csrf": Markup(field),  # noqa: S704 - hexadecimal digits of ours
            "url": visit.url,
            "static": visit.static,
            "menu": menu,
            "here": max(near, key=lambda entry: len(entry.path), default=None),
            "search": visit.web.search,
            "language": _language(request),
            "languages": LANGUAGES,
            "theme": _theme(request),
            "with_query": partial(_with_query, request),
            "said": unquote(request.cookies.get(SAID, ""))[:500],
            "is_partial": request.headers.get("hx-request") == "true",
            "now": visit.now,
            "version": version(),
        }


def _remember(request: Request, visit: Visit, response: Response, *, is_whole: bool) -> None:
    path = visit.url("/")
    is_secure = is_https(request)
    for name, allowed in (("lang", LANGUAGES), ("theme", THEMES)):
        chosen = request.query_params.get(name, "")
        if chosen in allowed:
            response.set_cookie(
                f"relevo_{name}", chosen, _YEAR, path=path, secure=is_secure, samesite="strict"
            )
    visit.keep_secret(response, is_secure=is_secure)
    if is_whole and SAID in request.cookies:
        response.delete_cookie(SAID, path=path)


def say(request: Request, response: Response, text: str) -> None:
    """Have the next page say something."""
    response.set_cookie(
        SAID,
        quote(text[:500]),
        60,
        path=Visit.of(request.scope).url("/"),
        httponly=True,
        secure=is_https(request),
        samesite="strict",
    )


def _language(request: Request) -> Any:
    chosen = request.query_params.get("lang") or request.cookies.get(LANG)
    return language_of(chosen, request.headers.get("accept-language", ""))


def _theme(request: Request) -> str:
    theme = request.query_params.get("theme") or request.cookies.get(THEME, "")
    return theme if theme in THEMES else ""


def _with_query(request: Request, **changes: Any) -> str:
    pairs = [(name, value) for name, value in request.query_params.multi_items()]
    kept = [pair for pair in pairs if pair[0] not in changes]
    new = [(name, str(value)) for name, value in changes.items() if value is not None]
    return "?" + urlencode(kept + new)


@pass_context
def _number(context: Context, value: int | float | None) -> str:
    words: Words = context["_"]
    return "—" if value is None else words.number(value)


def span(ms: int | None) -> str:
    """A length of time in one or two units: 950 ms, 42 s, 3 h 5 min."""
    if ms is None:
        return "—"
    if ms < 1_000:
        return f"{ms} ms"
    parts: list[str] = []
    for unit, name in _UNITS:
        count, ms = divmod(ms, unit)
        if count or parts:
            parts += [f"{count} {name}"] if count else [""]
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part)


@pass_context
def _ago(context: Context, ms: int | None) -> str:
    translate: Words = context["_"]
    if not ms:
        return translate("never")
    passed = int(context["now"]() - ms)
    if abs(passed) < 1_000:
        return translate("now")
    text = span(abs(passed) // 1_000 * 1_000)
    return translate("{n} ago", n=text) if passed > 0 else translate("in {n}", n=text)


def _clock(ms: int | None) -> str:
    if not ms:
        return "—"
    at = moment_if(ms)
    return str(ms) if at is None else at.isoformat(sep=" ", timespec="milliseconds")[:23] + " UTC"


def pretty(value: Any) -> str:
    """JSON as a person reads it; what is no JSON comes as it is."""
    if isinstance(value, bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return value.decode(errors="replace")
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
