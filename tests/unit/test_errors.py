"""The tree drawn in the docstring of errors.py is the tree of its classes."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import pytest

from relevo import errors
from relevo.errors import CircuitOpen, PayloadError, ProviderUnavailable, RelevoError

LINE = re.compile(r"(?P<rails>[│ ]*)[├└]── (?P<name>\w+)\s{2,}(?P<meaning>\S.*)")


def drawn() -> dict[str, str]:
    """Each class of the drawing and the class it hangs from."""
    parents: dict[str, str] = {}
    path = ["RelevoError"]
    for line in (errors.__doc__ or "").splitlines():
        if match := LINE.fullmatch(line):
            depth = len(match["rails"]) // 4
            del path[depth + 1 :]
            parents[match["name"]] = path[-1]
            path.append(match["name"])
    return parents


def written() -> dict[str, str]:
    classes = [each for _, each in inspect.getmembers(errors, inspect.isclass)]
    return {
        each.__name__: each.__bases__[0].__name__
        for each in classes
        if issubclass(each, RelevoError) and each is not RelevoError
    }


def test_the_drawing_shows_every_class_where_it_belongs() -> None:
    # Two are named in the line of their parent.
    assert "ProviderUnavailable  … tried again; CircuitOpen and TooEarly" in (errors.__doc__ or "")
    named = dict.fromkeys(("CircuitOpen", "TooEarly"), "ProviderUnavailable")
    assert drawn() | named == written()


def test_every_error_says_what_it_means() -> None:
    for name in written():
        assert getattr(errors, name).__doc__, name


def test_everything_raised_on_purpose_is_an_ordinary_exception() -> None:
    assert RelevoError.__bases__ == (Exception,)
    assert "RelevoError\n├──" in (errors.__doc__ or "")


def test_a_payload_error_names_its_field() -> None:
    error = PayloadError("too big", path="guest.photo")
    assert (str(error), error.path) == ("too big", "guest.photo")
    assert PayloadError("too big").path == ""


def test_an_unavailable_provider_may_say_when_to_come_back() -> None:
    error = ProviderUnavailable("429", retry_after=timedelta(seconds=30), spends=False)
    assert error.retry_after == timedelta(seconds=30)
    assert error.spends is False
    plain = ProviderUnavailable("timeout")
    assert plain.retry_after is None
    assert plain.spends is True


def test_an_open_circuit_spends_no_attempt_and_names_its_breaker() -> None:
    error = CircuitOpen("supplier:28")
    assert error.spends is False
    assert error.breaker == "supplier:28"
    assert "supplier:28" in str(error)


@pytest.mark.parametrize("name", sorted(written()))
def test_every_error_is_caught_as_relevos(name: str) -> None:
    kind = getattr(errors, name)
    with pytest.raises(RelevoError):
        raise kind("why")
