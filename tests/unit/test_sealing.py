"""Sealing: the first key seals, every key opens, and no key is ever told."""

from __future__ import annotations

import inspect
import re
import sys
import traceback
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from relevo import SealError, SealKeys, SettingsError
from relevo.sealing import (
    closed,
    is_sealed,
    new_key,
    opened,
    sealed_json,
    sealed_pairs,
    sealed_text,
    unsealed,
)
from relevo.settings import Settings
from relevo.store import Outbox, Store
from relevo.stores.sealed import Sealed

OLD, NEW = new_key(), new_key()
WRITERS = (sealed_text, sealed_json, sealed_pairs)
TEXT = '{"name":"canary-ana ñ"}'.encode()


@pytest.mark.parametrize("written", WRITERS)
@pytest.mark.parametrize("data", [b"", b"null", TEXT, bytes(range(256)) * 300])
def test_c23_what_was_sealed_is_opened_again(written: Any, data: bytes) -> None:
    keys = SealKeys(NEW)
    stored = written(keys, data)

    assert is_sealed(stored)
    assert b"canary" not in stored
    assert stored.isascii()
    assert opened(keys, stored) == data
    assert written(keys, data) != stored, "the same twice tells nobody that it is the same"


def test_what_is_sealed_stays_json() -> None:
    keys = SealKeys(NEW)
    assert isinstance(msgspec.json.decode(sealed_json(keys, TEXT)), str)
    pairs = msgspec.json.decode(sealed_pairs(keys, b'[["a","b"]]'), type=list[tuple[str, str]])
    assert [name for name, _ in pairs] == ["relevo-sealed"]


def test_c23_keys_are_rotated() -> None:
    """The new key first: what the old one sealed still opens, and is sealed with the new one."""
    before = sealed_json(SealKeys(OLD), TEXT)
    both = SealKeys(f" {NEW} ,{OLD},")
    after = sealed_json(both, opened(both, before))

    assert opened(both, before) == opened(SealKeys(NEW), after) == TEXT
    assert opened(SealKeys(OLD), after) == after
    assert SealKeys(NEW, OLD).names == both.names
    assert len(set(both.names)) == 2


@pytest.mark.parametrize("written", WRITERS)
def test_what_no_key_opens_stays_as_it_is_and_says_which_key_is_missing(written: Any) -> None:
    stored = written(SealKeys(OLD), TEXT)
    [name] = SealKeys(OLD).names

    assert opened(SealKeys(NEW), stored) == stored
    with pytest.raises(SealError, match=f"the key called {name} .* RELEVO_SEAL_KEYS") as caught:
        unsealed(stored)
    assert OLD not in "".join(traceback.format_exception(caught.value))


def test_what_was_changed_is_not_opened() -> None:
    keys = SealKeys(NEW)
    stored = bytearray(keys.seal(TEXT))
    for place in range(len(stored)):
        changed = stored[:]
        changed[place] ^= 1
        with pytest.raises(SealError):
            keys.open(bytes(changed))
    for damaged in (b"", b"key-", b"key-00000000:", bytes(stored[:-1]), bytes(stored[:30])):
        with pytest.raises(SealError):
            keys.open(damaged)


@pytest.mark.parametrize("data", [b'"relevo-sealed:"', b'"relevo-sealed:?"', b"relevo-sealed:YQ"])
def test_nonsense_behind_the_mark_is_no_reason_to_fail(data: bytes) -> None:
    assert opened(SealKeys(NEW), data) == data
    assert "not ours" in str(closed(data))


@pytest.mark.parametrize("data", [b"", b"{}", b'"relevo"', b"sealed", TEXT])
def test_what_was_never_sealed_is_read_as_it_is(data: bytes) -> None:
    assert not is_sealed(data)
    assert opened(SealKeys(NEW), data) == unsealed(data) == data
    assert unsealed(msgspec.Raw(data)) == data


CARRYING = r"\b(?:NewJob|Job|Edit|Arrival|Reception|Kept|Claim|Ending|Effect|Page|Letter)\b"


@pytest.mark.parametrize(
    "verb",
    [
        function
        for function in (*vars(Store).values(), *vars(Outbox).values())
        if inspect.isfunction(function) and re.search(CARRYING, str(inspect.signature(function)))
    ],
    ids=lambda function: function.__name__,
)
def test_c23_every_verb_that_carries_something_is_sealed(verb: Any) -> None:
    """One that joins the contract has to be thought of, and so has what it newly takes."""
    assert verb.__name__ in vars(Sealed), "it goes past the seal"
    told = inspect.signature(verb).parameters.values()
    by_name = {each.name: None for each in told if each.kind is each.KEYWORD_ONLY}
    mine = inspect.signature(vars(Sealed)[verb.__name__])
    mine.bind(*[None] * (len(told) - len(by_name)), **by_name)


class Shift:
    """A seal of somebody else's, whose troubles are its own."""

    def seal(self, data: bytes) -> bytes:
        return bytes([(byte + 128) % 256 for byte in data])

    def open(self, data: bytes) -> bytes:
        if not data:
            raise ZeroDivisionError
        return self.seal(data)

    def key_of(self, data: bytes) -> str:
        return "shift"

    def oldest(self) -> str:
        return "shift"

    def digest(self, data: bytes, by: str | None = None) -> bytes:
        return b"\x01" + sha256(data).digest()[:7]


def test_anybody_can_bring_a_seal() -> None:
    stored = sealed_json(Shift(), TEXT)
    assert msgspec.json.decode(stored)
    assert opened(Shift(), stored) == TEXT
    assert opened(Shift(), sealed_json(Shift(), b"")) == sealed_json(Shift(), b"")
    assert "not ours" in str(closed(stored))


@pytest.mark.parametrize(
    "bad",
    ["canary-key", OLD[:-1], OLD[:-2] + "=", OLD + "A", "é" * 44],
    ids=["short", "unpadded", "cut", "long", "odd"],
)
def test_a_key_that_is_none_is_never_quoted(bad: str) -> None:
    for made in (lambda: SealKeys(NEW, bad), lambda: Settings.read({"RELEVO_SEAL_KEYS": bad})):
        with pytest.raises(SettingsError, match="relevo seal-key") as caught:
            made()
        assert bad not in "".join(traceback.format_exception(caught.value))


def test_without_any_key_there_is_no_seal() -> None:
    with pytest.raises(SettingsError, match="no key"):
        SealKeys(" , ")


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(SettingsError, match=r"pip install 'relevo\[seal\]'"):
        SealKeys(NEW)
    with pytest.raises(SettingsError, match=r"RELEVO_SEAL_KEYS .*relevo\[seal\]"):
        Settings.read({"RELEVO_SEAL_KEYS": NEW})


def test_c20_no_key_is_shown() -> None:
    """C20"""
    settings = Settings.read({"RELEVO_SEAL_KEYS": f"{NEW},{OLD}"})
    assert settings.seal_keys is not None
    shown = f"{settings!r} {settings.shown()} {settings.seal_keys!r} {settings.seal_keys}"
    assert NEW[:8] not in shown
    assert OLD[:8] not in shown
