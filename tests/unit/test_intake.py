"""A door keeps no secret, knows a key from what is none, and refuses in its own words."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from relevo import (
    Answer,
    App,
    DefinitionError,
    Delivery,
    MisuseError,
    Reject,
    Relevo,
    sources,
    webhook,
)
from relevo.ingress.body import check_type
from relevo.ingress.reply import Refused, error, reply_of
from relevo.intake import Door, answer_of, delivery_of
from relevo.intake.door import NoKey
from relevo.pairs import Headers

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "p&ss word/ñ"


async def hook(delivery: Delivery) -> None: ...


def door(**options: Any) -> Door:
    given: dict[str, Any] = {
        "verify": sources.hmac_header("X-Hub-Signature-256", "a secret of tests"),
        "key": lambda d: d.json["id"],
    }
    return Door("shop", webhook("/hooks/shop", hook, **(given | options)), _use)


def _use(kind: type) -> Any:
    raise AssertionError(kind)


def came(body: bytes = b'{"id":"e1"}', **more: Any) -> Delivery:
    return Delivery(path="/hooks/shop", body=body, received_at=NOW, **more)


@pytest.mark.parametrize("status", [200, 302, 500])
def test_a_refusal_is_a_4xx(status: int) -> None:
    with pytest.raises(MisuseError):
        Reject(status, "no")


def test_a_refusal_tells_its_code_and_not_its_reason() -> None:
    rejected = Reject(422, "no_such_room", "room 99 of Ana Pérez")

    assert rejected.answer.body == b'{"ok":false,"error":"no_such_room"}'
    assert "Ana" in str(rejected)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{}", 'no field "id" in the body'),
        (b'{"id":""}', "the key function of /hooks/shop returned 0 characters: return text"),
        (b'{"id":null}', "the key function of /hooks/shop returned NoneType: return text"),
        (b'{"id":true}', "the key function of /hooks/shop returned bool: return text"),
        (b'{"id":1.5}', "the key function of /hooks/shop returned float: return text"),
        (b'{"id":["x"]}', "the key function of /hooks/shop returned list: return text"),
    ],
)
def test_a_key_that_is_none_says_what_is_missing(body: bytes, why: str) -> None:
    with pytest.raises(NoKey, match=re.escape(why)):
        door().key(came(body))


def test_a_key_that_is_looked_for_elsewhere_says_where() -> None:
    for key, why in (
        (lambda d: d.headers["X-Delivery"], 'no header "X-Delivery"'),
        (lambda d: d.form["Sid"], 'no field "Sid" in the form or the query'),
        (lambda d: d.json["id"]["of"], "its key function raised TypeError; the log has the line"),
    ):
        with pytest.raises(NoKey) as caught:
            door(key=key).key(came())
        assert str(caught.value) == f"/hooks/shop has no key for this: {why}"


@pytest.mark.parametrize(
    ("given", "key"), [(7, "7"), (-1, "-1"), (UUID(int=7), str(UUID(int=7))), ("e1", "e1")]
)
def test_a_number_and_a_uuid_are_keys_as_text(given: Any, key: str) -> None:
    assert door(key=lambda _: given).key(came()) == key


def test_a_mistake_in_the_key_s_function_that_no_input_explains_is_one() -> None:
    def key(delivery: Delivery) -> str:
        raise RuntimeError("a bug")

    with pytest.raises(NoKey, match="RuntimeError"):
        door(key=key).key(came())


@pytest.mark.parametrize("spelled", ["p%26ss+word%2F%C3%B1", "p%26ss%20word/%C3%B1", SECRET])
def test_a_secret_that_came_in_the_body_is_not_kept(spelled: str) -> None:
    forms = door(verify=sources.shared_secret(SECRET, form="secret", header="X-Secret"))
    body = f"id=1&secret={spelled}".encode()

    kept = forms.keep(came(body, headers=Headers({"x-secret": SECRET, "date": "now"}.items())), "1")

    assert kept.body == b"id=1&secret=***"
    assert kept.headers == b'[["date","now"]]'


def test_what_is_kept_comes_back_as_it_came() -> None:
    kept = door(keep_headers=["X-Shop"]).keep(
        came(query="a=1&token=x", headers=Headers([("x-shop", "7"), ("cookie", "c")])), "e1"
    )

    again = delivery_of(kept, NOW)

    assert again.body == b'{"id":"e1"}'
    assert (again.query, again.headers.pairs) == ("a=1&token=***", (("x-shop", "7"),))
    assert (again.id, again.method, again.path) == (kept.id, "POST", "/hooks/shop")


def test_an_answer_survives_its_keeping() -> None:
    one = door()
    answer = Answer.text("¡vale!", 202)

    kept = one.keep(came(), "e1", answer=one.encoded(answer), status=202)

    assert answer_of(kept) == answer


def test_two_webhooks_do_not_stand_at_one_path() -> None:
    doors = [webhook("/hooks/a", hook, source=sources.github("a secret"), key=lambda d: "1")]
    with pytest.raises(DefinitionError, match="/hooks/a"):
        Relevo(apps=[App("one", webhooks=doors), App("two", webhooks=doors)])
    with pytest.raises(DefinitionError, match="/hooks/a"):
        Relevo(apps=[App("one", webhooks=[*doors, *doors])])


@pytest.mark.parametrize(
    "options",
    [
        {"content_types": "application/json"},
        {"keep_headers": "X-Shop"},
        {"methods": "POST"},
        {"answer": {"ok": True}},
    ],
    ids=str,
)
def test_a_list_of_one_is_a_list_all_the_same(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=f"{next(iter(options))} is a"):
        door(**options)


@pytest.mark.parametrize(
    ("accepted", "given", "is_fine"),
    [
        (("application/json",), b"application/json", True),
        (("application/json",), b'APPLICATION/json ; charset="UTF-8"', True),
        (("application/json",), b"application/json;charset=latin-1", False),
        (("application/json",), b"application/jsonp", False),
        (("application/json",), b"", False),
        (("application/json", ""), b"", True),
        (("*",), b"anything/at-all; charset=utf-7", True),
        ((), b"application/json", False),
    ],
    ids=str,
)
def test_content_types_are_as_listed(
    accepted: tuple[str, ...], given: bytes, is_fine: bool
) -> None:
    if is_fine:
        check_type(accepted, given)
    else:
        with pytest.raises(Refused) as caught:
            check_type(accepted, given)
        assert caught.value.reply.status == 415


def test_a_reply_is_written_once_and_whole() -> None:
    plain = reply_of(Answer.text("hi"))

    assert plain.wire.endswith(b"content-length: 2\r\n\r\nhi")
    assert error(405, "no", allow="GET, POST").wire.count(b"allow: GET, POST\r\n") == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"verify": None},
        {"verify": True},
        {"verify": lambda use: True},
        {"key": "id"},
        {"key": None},
    ],
)
def test_a_door_that_checks_nothing_or_knows_no_key_is_refused(wrong: dict[str, Any]) -> None:
    """C03: told when it is built, and not to the provider, delivery after delivery."""
    with pytest.raises(DefinitionError):
        door(**wrong)
