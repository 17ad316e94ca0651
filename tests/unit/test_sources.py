"""Where the sources of webhooks are found, and that they hide no library of that name."""

from __future__ import annotations

import importlib

import pytest
import stripe

import relevo
from relevo import sources


@pytest.mark.parametrize("name", sources.__all__)
def test_a_source_is_asked_for_by_its_module(name: str) -> None:
    assert name not in relevo.__all__
    with pytest.raises(ImportError, match=rf"from relevo import sources`, then sources\.{name}\("):
        getattr(importlib.import_module("relevo"), name)


def test_a_file_uses_the_library_and_the_source() -> None:
    scheme = sources.stripe("whsec_of_this_endpoint")
    assert stripe.Webhook is not None
    assert scheme.name == "stripe"


def test_any_other_name_is_missing_as_ever() -> None:
    assert not hasattr(relevo, "nonsense")
    with pytest.raises(ImportError, match="cannot import name 'nonsense'"):
        exec("from relevo import nonsense", {})  # noqa: S102 - a misspelt import as it is written
