"""Compare a result that a person tells with what earlier calls gave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from msgspec.json import encode

_KINDS: dict[type[object], str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    type(None): "null",
}


def unlike(value: Any, earlier: Sequence[Any]) -> str:
    """What a value lacks to be like the earlier ones; "" if it is, or if there are none."""
    kinds = {_kind(each) for each in earlier}
    if not kinds:
        return ""
    objects = [cast("dict[str, Any]", each) for each in earlier if isinstance(each, dict)]
    if _kind(value) not in kinds:
        gave = " or ".join(sorted(kinds))
        return f"earlier calls gave {gave}, not {_kind(value)}. {_write(earlier, objects)}"
    if isinstance(value, dict) and objects:
        common = set(objects[0]).intersection(*objects[1:])
        missing = sorted(common - set(cast("dict[str, Any]", value)))
        if missing:
            return f"what earlier calls gave has {_names(missing)}, too. {_write(earlier, objects)}"
    return ""


def _kind(value: Any) -> str:
    kind = cast("type[object]", type(value))
    return _KINDS.get(kind, kind.__name__)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 6} more fields" if len(names) > 6 else ""
    return ", ".join(names[:6]) + more


def _write(earlier: Sequence[Any], objects: Sequence[dict[str, Any]]) -> str:
    """How to write such a result, without anybody's values."""
    if not objects:
        like = "a JSON text" if isinstance(earlier[0], str) else "JSON like theirs"
        return f"Write {like}: --code TEXT, or --result JSON"
    common = set(objects[0]).intersection(*objects[1:]) or set(objects[0])
    shown = {name: "…" for name in objects[0] if name in common}
    return f"Write it with --result '{encode(shown).decode()}'"
