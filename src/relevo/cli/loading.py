"""Finding the apps that were named as module:attribute."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, cast

from relevo.app import App
from relevo.errors import SettingsError
from relevo.intake import handling_queues
from relevo.message import Spec

_RELEVO = Path(__file__).parents[1]
PERIODS = {1_000: "s", 60_000: "m", 3_600_000: "h", 86_400_000: "d"}


def load(names: Iterable[str]) -> list[App]:
    """The apps, in the order they were named; SettingsError in one line when one is not to be had.

    The current directory comes first on the path, as with `python -m`.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    apps: dict[str, App] = {}
    for name in names:
        for app in _load(name.strip()):
            if apps.setdefault(app.name, app) is not app:
                raise SettingsError(f"two apps are called '{app.name}'; '{name}' is the second")
    return list(apps.values())


def queues_of(app: App) -> set[str]:
    """Every queue that an app serves."""
    own = {binding.spec.queue for binding in (*app.workers, *app.listeners)}
    return own.union(recurring(app), handling_queues(app))


def recurring(app: App) -> set[str]:
    """The queues of its pollers and schedules, whose jobs never end."""
    return {item.command.__relevo__.queue for item in (*app.pollers, *app.schedules)}


def limits_of(spec: Spec) -> str:
    """The limits of a queue in a person's words; empty when it has none."""
    lane = "" if spec.lane is None else f" per {spec.lane.text}"
    words: list[str] = []
    if spec.limit:
        words.append(f"{spec.limit:,} at once")
    if spec.lane_limit:
        words.append(f"{spec.lane_limit:,} at once{lane}")
    if spec.rate:
        words.append(_rate(spec.rate))
    if spec.lane_rate:
        words.append(f"{_rate(spec.lane_rate)}{lane}")
    if spec.ordered:
        words.append(f"in order{lane}")
    if lane and not words:
        words.append(f"in turns{lane}")
    return ", ".join(words)


def _rate(rate: tuple[int, int]) -> str:
    count, ms = rate
    return f"{count:,}/{PERIODS[ms]}"


def specs_of(app: App) -> dict[str, Spec]:
    """What the first message of each queue says about it."""
    specs: dict[str, Spec] = {}
    for binding in (*app.workers, *app.listeners):
        specs.setdefault(binding.spec.queue, binding.spec)
    return specs


def _load(name: str) -> list[App]:
    module, _, attribute = name.partition(":")
    attribute = attribute or "app"
    if name == module and _comes_along(name):
        module = f"relevo.apps.{name}"
    if not all(part.isidentifier() for part in (*module.split("."), attribute)):
        raise SettingsError(
            f"{name!r:.80} names no app: write module:attribute, as in shop.jobs:app"
        )
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        if getattr(error, "name", None) == attribute:
            raise SettingsError(f"app '{name}': {module} has no '{attribute}'") from error
        raise _broken(name, error) from error
    except Exception as error:
        raise _broken(name, error) from error
    apps: list[Any] = [found] if isinstance(found, App) else _listed(found)
    if apps and all(isinstance(app, App) for app in apps):
        return apps
    raise SettingsError(f"app '{name}' is a {type(found).__name__}, not an App")


def _listed(found: object) -> list[Any]:
    return list(cast("list[Any]", found)) if isinstance(found, list | tuple) else []


def _comes_along(name: str) -> bool:
    try:
        return name.isidentifier() and find_spec(f"relevo.apps.{name}") is not None
    except ModuleNotFoundError:
        return False


def come_along() -> list[str]:
    """The apps that are part of relevo, by the names they can be given by."""
    found = find_spec("relevo.apps")
    places = (found and found.submodule_search_locations) or ()
    return sorted(each.name for each in iter_modules(places) if each.ispkg)


def _broken(name: str, error: Exception) -> SettingsError:
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    # The line of the app that relevo refuses, rather than the line of relevo that refuses it.
    theirs = [frame for frame in frames if not Path(frame.filename).is_relative_to(_RELEVO)]
    last = next(reversed(theirs or frames), None)
    where = f" ({Path(last.filename).name}:{last.lineno})" if last else ""
    return SettingsError(f"app '{name}' cannot be loaded: {type(error).__name__}: {error}{where}")
