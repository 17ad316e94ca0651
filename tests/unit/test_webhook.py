"""A delivery is kept as it came, read strictly (B15, B20–B25) and shown without secrets (C21)."""

from __future__ import annotations

import json
import sys
import tracemalloc
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from relevo import sources, strictjson
from relevo.errors import BodyError, DefinitionError, RelevoError
from relevo.intake import Door
from relevo.pairs import FIELDS, Fields, Headers
from relevo.route import webhook
from relevo.strictjson import VALUES, parse_json
from relevo.webhook import Answer, Delivery, answer_from

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CANARY = "canary-7f3a"


def delivery(body: bytes = b"", **more: Any) -> Delivery:
    return Delivery(path="/hooks/test", body=body, received_at=NOW, **more)


async def hook(delivery: Delivery) -> None: ...


def headers(**values: str) -> Headers:
    return Headers([(name.replace("_", "-"), value) for name, value in values.items()])


# JSON

trees = st.recursive(
    st.none() | st.integers(-9, 9) | st.text('a",[{\\\n\u00e9', max_size=6),
    lambda inside: (
        st.lists(inside, max_size=5)
        | st.dictionaries(st.text('b",[{\\', max_size=3), inside, max_size=5)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("code", "body"),
    [
        # B20
        ("empty_body", b""),
        ("empty_body", b" \r\n"),
        ("not_an_object", b"null"),
        ("not_an_object", b"[]"),
        ("not_an_object", b'"x"'),
        ("not_an_object", b"1"),
        ("not_json", b'{"a":1'),
        ("not_json", b'{"a":1}x'),
        ("not_json", b'{"a":1}{"b":2}'),
        ("not_json", b'{"a":1,}'),
        ("not_json", b"{'a':1}"),
        ("not_json", b'{"a":1} // why'),
        ("not_json", b'{"a":"\t"}'),
        ("not_json", b'{"a":01}'),
        # B21
        ("too_deep", b'{"a":' + b"[" * 64 + b"]" * 64 + b"}"),
        ("too_deep", b'{"a":' * 65 + b"1" + b"}" * 65),
        ("too_deep", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        ("too_deep", b"[" * 100_000),
        # B22
        ("invalid_number", b'{"a":NaN}'),
        ("invalid_number", b'{"a":Infinity}'),
        ("invalid_number", b'{"a":-Infinity}'),
        ("invalid_number", b'{"a":1e400}'),
        ("invalid_number", b'{"a":' + b"9" * 5_000 + b"}"),
        ("invalid_number", b'{"a":18446744073709551616}'),
        ("invalid_number", b'{"a":-9223372036854775809}'),
        # B23
        ("duplicate_key", b'{"id":"a","id":"b"}'),
        ("duplicate_key", b'{"id":"a","\\u0069d":"b"}'),
        ("duplicate_key", b'{"a":[{"id":1,"id":1}]}'),
        ("duplicate_key", b'{"id" :"a","id":"b"}'),
        ("duplicate_key", b'{"id"\n:"a","id" :":b"}'),
        # B24
        ("invalid_text", b'{"a":"\\ud800"}'),
        ("invalid_text", b'{"a":["\\udc00\\ud800"]}'),
        ("invalid_text", b'{"\\ud83d":1}'),
        ("invalid_text", b'{"a":"\\u0000"}'),
        ("not_utf8", b'{"a":"\xff"}'),
        ("not_utf8", b'{"a":"\xed\xa0\x80"}'),
        ("not_utf8", '{"a":1}'.encode("utf-16")),
        ("not_utf8", '{"a":1}'.encode("utf-16-le")),
        ("not_utf8", '{"a":1}'.encode("utf-16-be")),
        ("not_utf8", '{"a":1}'.encode("utf-32-le")),
        ("not_utf8", b'\xef\xbb\xbf{"a":1}'),
    ],
)
def test_a_body_that_readers_could_take_differently_is_refused(code: str, body: bytes) -> None:
    """B20, B21, B22, B23, B24"""
    with pytest.raises(BodyError) as caught:
        _ = delivery(body).json
    assert caught.value.code == code


texts = st.lists(
    st.sampled_from(
        [
            b"a",
            b"\\u0061",
            b'\\"',
            b"\\\\",
            b"\\n",
            b"\\u0000",
            b"u0000",
            b"\\ud800",
            b"\\ude00",
            b"\\x",
        ]
    ),
    max_size=3,
).map(lambda parts: b'"' + b"".join(parts) + b'"')
bodies = st.recursive(
    texts
    | st.sampled_from([b"1", b"-0", b"1.5", b"18446744073709551616", b"1e400", b"NaN", b"tru"]),
    lambda inside: (
        st.lists(inside, max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]")
        | st.lists(st.tuples(texts, inside), max_size=3).map(
            lambda pairs: b"{" + b",".join(name + b":" + value for name, value in pairs) + b"}"
        )
    ),
    max_leaves=8,
)


@given(bodies)
@settings(max_examples=500)
def test_the_quick_way_reads_what_the_strict_way_reads_and_nothing_else(body: bytes) -> None:
    """B20 to B24: whichever parser has the first look."""
    quick = strictjson._quickly(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strictjson, "_quickly", lambda body: None)
        try:
            strict = parse_json(body)
        except BodyError:
            assert quick is None
        else:
            assert quick is None or repr(quick) == repr(strict)


CROWD = b"[" + b"1," * VALUES + b"1]"


@pytest.mark.parametrize(
    "body",
    [
        CROWD,
        CROWD[:-1],
        CROWD + b"\xff",
        b"[" + b"[]," * VALUES + b"[]]",
        b"[" + b"{}," * VALUES + b"{}]",
        b"[" + b"[[[]]]," * (VALUES // 3) + b"[]]",
        b'{"a":1' + b',"a":1' * VALUES + b"}",
        b"[" + b'"",' * VALUES + b'""]',
        b'["\\\\",' + b'"\\"",' * VALUES + b"1]",
    ],
)
def test_a_crowd_of_values_is_refused_before_any_of_them_is_made(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B20: such a body would be read for half a second, and everybody wait."""
    monkeypatch.setattr(strictjson, "_swift", None)
    monkeypatch.setattr(strictjson, "_decode", None)
    with pytest.raises(BodyError) as caught:
        parse_json(body)
    assert caught.value.code == "too_many_values"


@pytest.mark.parametrize("body", [b"[" * 2 * VALUES, b"[1," + b'{"a":' * VALUES])
def test_a_crowd_that_is_deep_is_told_so(body: bytes) -> None:
    """B21"""
    with pytest.raises(BodyError) as caught:
        parse_json(body)
    assert caught.value.code == "too_deep"


@given(trees)
def test_a_crowd_is_told_by_its_values_and_by_nothing_else(tree: Any) -> None:
    """Whatever stands in texts, and however it is escaped."""
    size = _values(tree)
    for body in (json.dumps(tree), json.dumps(tree, ensure_ascii=False, separators=(",", ":"))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strictjson, "VALUES", 6)
            if size <= 6:
                assert parse_json(body.encode()) == tree
            else:
                with pytest.raises(BodyError, match="more than"):
                    parse_json(body.encode())


def _values(tree: Any) -> int:
    if not isinstance(tree, dict | list):
        return 1
    inside = list(tree.values()) if isinstance(tree, dict) else tree
    return 1 + sum(map(_values, inside))


@pytest.mark.parametrize("value", [b"[]", b"{ }", b'[""]', b"[\n]", b"1"])
def test_as_many_values_as_may_be(value: bytes) -> None:
    count = (VALUES - 1) // (2 if value == b'[""]' else 1)
    body = b"[" + value + (b"," + value) * (count - 1) + b"]"
    assert len(parse_json(body)) == count
    with pytest.raises(BodyError) as caught:
        parse_json(b"[" + value + b"," + body[1:])
    assert caught.value.code == "too_many_values"


@pytest.mark.parametrize(
    ("body", "tree"),
    [
        (b'{"a":"' + b"[,{" * VALUES + b'"}', {"a": "[,{" * VALUES}),
        (b'{"a":"' + b'\\",' * VALUES + b'"}', {"a": '",' * VALUES}),
        (b'{"a":' + b"[" * 63 + b"]" * 63 + b"}", None),
        (b'{"a":"' + b"[" * 100 + b'"}', {"a": "[" * 100}),
        (b'{"a":"\\ud83d\\ude00 \xf0\x9f\x98\x80"}', {"a": "😀 😀"}),
        (b'{"a":"\\\\u0000"}', {"a": "\\u0000"}),
        (b'{"a":18446744073709551615,"b":-9223372036854775808}', {"a": 2**64 - 1, "b": -(2**63)}),
        (b' {"a":-0,"b":1.0,"c":1e-400} \n', {"a": 0, "b": 1.0, "c": 0.0}),
        ('{"a":"‮​é\u0301"}'.encode(), {"a": "‮​é\u0301"}),
        (b'{"__proto__":{"id":1},"constructor":2}', {"__proto__": {"id": 1}, "constructor": 2}),
    ],
)
def test_a_strange_but_clear_body_is_read_as_it_is(body: bytes, tree: Any) -> None:
    """B25"""
    found = delivery(body).json
    assert tree is None or found == tree


def test_no_error_carries_the_body() -> None:
    for body in (f'{{"{CANARY}"', f'{{"{CANARY}":1,"{CANARY}":2}}', f"{CANARY}"):
        with pytest.raises(BodyError) as caught:
            _ = delivery(body.encode()).json
        error = caught.value
        assert CANARY not in f"{error} {error.__context__!r} {error.__cause__!r}"
        assert isinstance(error, RelevoError)


def test_a_list_is_json_where_lists_are_due() -> None:
    assert parse_json(b"[1,2]") == [1, 2]


def test_a_body_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bytes] = []

    def count(body: bytes) -> Any:
        calls.append(body)
        return parse_json(body)

    monkeypatch.setattr(sys.modules["relevo.webhook"], "parse_json", count)
    came = delivery(b'{"id":"evt_1"}')
    assert calls == []
    assert came.json is came.json
    assert calls == [b'{"id":"evt_1"}']
    # Another body is another parse, never the old one's tree.
    assert msgspec.structs.replace(came, body=b'{"id":"evt_2"}').json == {"id": "evt_2"}


@settings(deadline=None, database=None)
@given(st.binary(max_size=200))
@example(b'{"a":"\\u0000"}')
def test_any_bytes_are_json_or_a_body_error(body: bytes) -> None:
    try:
        tree = parse_json(body)
    except BodyError:
        return
    assert tree == json.loads(body)


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc\u00e9"), inner),
    max_leaves=20,
)


@settings(deadline=None, database=None)
@given(TREES, st.booleans())
def test_whatever_is_json_comes_back(tree: Any, escaped: bool) -> None:
    assert parse_json(json.dumps(tree, ensure_ascii=escaped).encode()) == tree


WORDS = [
    *("{", "}", "[", "]", ",", ":", '"', '"a"', '"a":', '"b":1', '"é"@:', '"":', "null", "@"),
    *("-0", "1.5", "1e9", "1e400", "-1", "tru", "NaN", "18446744073709551616", "\\u0041"),
]
PIECES = st.lists(st.sampled_from(WORDS), max_size=12).map("".join)
BROKEN = PIECES.map(lambda text: text.replace("@", " "))


@settings(deadline=None, database=None, max_examples=500)
@given(BROKEN | TREES.map(json.dumps) | TREES.map(lambda tree: json.dumps(tree, indent=1)))
@example('{"a":1,"a":2}')
@example('{"a":{"b":1},"c":{"b":1,"b":2}}')
@example('{"a":":","b":"\\":"}')
def test_the_quick_way_and_the_long_way_agree(text: str) -> None:
    quick = _result(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strictjson, "_quickly", lambda body: None)
        long = _result(text.encode())

    assert quick == long


def _result(body: bytes) -> str:
    try:
        return repr(parse_json(body))
    except BodyError as error:
        return error.code


# Forms and queries


def test_a_form_and_a_query_are_read_alike() -> None:
    came = delivery(b"bookid=12&name=Ana+P%C3%A9rez&note=a=b&empty=&flag&&", query="a=1&b=%26")
    assert dict(came.form) == {
        "bookid": "12",
        "name": "Ana Pérez",
        "note": "a=b",
        "empty": "",
        "flag": "",
    }
    assert dict(came.params) == {"a": "1", "b": "&"}
    assert came.form is came.form
    assert came.form.get("none") is None
    assert came.form["BookId"] == "12"


def test_a_field_that_came_twice_is_not_read_as_one() -> None:
    fields = Fields.parse(b"id=1&ID=2")
    assert fields.all("id") == ["1", "2"]
    assert len(fields) == 1
    with pytest.raises(BodyError) as caught:
        _ = fields["id"]
    assert caught.value.code == "duplicate_field"


@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("too_many_fields", b"&".join([b"a=1"] * (FIELDS + 1))),
        ("too_many_fields", b"&" * 100_000),
        ("invalid_text", b"a=%00"),
        ("invalid_text", b"%00=a"),
    ],
)
def test_a_form_has_limits(code: str, data: bytes) -> None:
    """B15."""
    with pytest.raises(BodyError) as caught:
        Fields.parse(data)
    assert caught.value.code == code


def test_a_form_that_is_not_utf8_is_still_read() -> None:
    assert Fields.parse(b"name=Jos\xe9&x=%E9%zz").pairs == (("name", "Jos�"), ("x", "�%zz"))


@given(
    st.lists(
        st.sampled_from([b"%", b"4", b"1", b"e9", b"%C3", b"+", b"g", b"\xff", b"\\", b"x41"]),
        max_size=12,
    )
)
def test_escapes_are_read_as_everybody_reads_them(parts: list[bytes]) -> None:
    data = b"".join(parts)
    meant = unquote_to_bytes(data.replace(b"+", b" ")).decode("utf-8", "replace")
    assert Fields.parse(b"a=" + data)["a"] == meant


def test_a_field_as_long_as_a_body_takes_no_more_than_it_must() -> None:
    """B15: the process grows by no more than 64 MiB, whoever sends what."""
    data = b"a=" + b"%41" * ((1 << 20) // 3)
    tracemalloc.start()
    try:
        assert len(Fields.parse(data)["a"]) == (1 << 20) // 3
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20


def test_as_many_fields_as_allowed_are_read() -> None:
    assert len(Fields.parse(b"&".join(b"f%d=1" % n for n in range(FIELDS)))) == FIELDS


# Headers


def test_headers_are_found_in_any_case_and_cannot_be_changed() -> None:
    found = Headers([(b"Content-Type", b"application/json"), ("X-A", "1"), ("x-a", "2")])
    assert found["CONTENT-TYPE"] == "application/json"
    assert found["x-A"] == "1, 2"
    assert found.all("X-a") == ["1", "2"]
    assert list(found) == ["content-type", "x-a"]
    assert len(found) == 2
    assert "X-B" not in found
    assert found.get("x-b") is None
    with pytest.raises(KeyError):
        _ = found["x-b"]
    assert not hasattr(found, "__setitem__")


def test_bytes_of_a_header_are_letters() -> None:
    assert Headers([(b"x-name", b"Jos\xe9\xff")])["x-name"] == "José\xff"


def test_a_header_of_any_server_comes_without_white_space_around_it() -> None:
    headers = Headers.from_asgi([(b"x-signature", b" \tsha256=a b\t ")])
    assert headers["x-signature"] == "sha256=a b"


def test_a_delivery_gives_its_headers() -> None:
    came = delivery(headers=headers(Content_Type="Application/JSON; charset=utf-8", X_A="1"))
    assert came.header("x-a") == "1"
    assert came.header("x-b") is None
    assert came.media_type == "application/json"
    assert delivery().media_type == ""


SECRET_HEADERS = {
    "Authorization": f"Bearer {CANARY}",
    "Proxy-Authorization": CANARY,
    "Cookie": CANARY,
    "Set-Cookie": CANARY,
    "Stripe-Signature": f"t=1,v1={CANARY}",
    "X-Hub-Signature": CANARY,
    "X-Hub-Signature-256": CANARY,
    "Upstash-Signature": CANARY,
    "webhook-signature": CANARY,
    "svix-signature": CANARY,
    "X-Shopify-Hmac-Sha256": CANARY,
    "X-Relevo-Secret": CANARY,
    "X-Api-Key": CANARY,
    "token": CANARY,
    "X-Unheard-Of": CANARY,
}
SECRET_QUERY = f"a=1&secret={CANARY}&hub.verify_token={CANARY}&s%65cret[]={CANARY}"


def test_only_listed_headers_are_kept_and_never_a_secret() -> None:
    """C21."""
    all_of_them = SECRET_HEADERS | {
        "Content-Type": "text/xml",
        "webhook-id": "msg_1",
        "X-Ours": "x",
    }
    found = Headers(all_of_them.items())
    assert dict(found.kept()) == {"content-type": "text/xml", "webhook-id": "msg_1"}
    asked = found.kept([*(set(SECRET_HEADERS) - {"X-Unheard-Of"}), "X-Ours"])
    assert dict(asked) == {"content-type": "text/xml", "webhook-id": "msg_1", "x-ours": "x"}


def test_what_is_stored_of_a_delivery_holds_no_secret() -> None:
    """C21."""
    came = delivery(
        b'{"id":1}',
        headers=Headers([*SECRET_HEADERS.items(), ("content-type", "application/json")]),
        query=f"{SECRET_QUERY}&door={CANARY}",
    )
    route = webhook(
        came.path,
        hook,
        verify=sources.shared_secret("a secret of tests", query="door", header="X-Unheard-Of"),
        key=lambda delivery: delivery.id,
        keep_headers=["x-unheard-of", "x-door"],
    )

    kept = Door("shop", route, use=type).keep(came, came.id)

    assert (kept.id, kept.body, kept.path) == (came.id, came.body, came.path)
    assert json.loads(kept.headers) == [["content-type", "application/json"]]
    assert CANARY not in kept.query
    assert kept.query.startswith("a=1&")
    assert kept.query.endswith("&door=***")


def test_nothing_shows_a_secret_or_a_body() -> None:
    came = delivery(
        CANARY.encode(),
        headers=Headers([*SECRET_HEADERS.items(), ("user-agent", "x\x1b[31m\ny")]),
        query=SECRET_QUERY,
    )
    out = StringIO()
    Console(file=out, width=400).print(came)
    shown = f"{came!r} {came} {came.headers!r} {came.params!r} {out.getvalue()}"
    assert "POST" in shown
    assert "authorization" in shown
    assert CANARY not in shown
    for text in (repr(came), repr(came.headers)):
        assert text.isprintable()


def test_a_delivery_has_an_id_of_its_own() -> None:
    assert len({delivery().id for _ in range(10)}) == 10


# Answers


def test_an_answer_is_plain_data() -> None:
    answer = Answer.json({"ok": True}, 202)
    assert answer == Answer(202, b'{"ok":true}', {"content-type": "application/json"})
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer
    assert Answer() == Answer(200, b"", {})


def test_text_is_no_page() -> None:
    """B55."""
    answer = Answer.text("<script>1</script>")
    assert answer.body == b"<script>1</script>"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("status", [-1, 0, 100, 199, 600, 10**9])
def test_an_answer_has_a_status_that_ends_a_call(status: int) -> None:
    with pytest.raises(DefinitionError):
        Answer(status)


@pytest.mark.parametrize("given", [(204, "gone"), (304, {"a": 1}), (200.5, "x"), (True, "x")])
def test_an_answer_that_cannot_be_stored_or_sent_is_refused(given: tuple[Any, Any]) -> None:
    with pytest.raises(DefinitionError):
        answer_from(given, Answer())
    with pytest.raises(DefinitionError):
        Answer(given[0], b"x")
    assert answer_from((204, None), Answer()) == Answer(204)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-a", "1\r\nset-cookie: a=b"),
        ("x-a", "1\n"),
        ("x-a", "\0"),
        ("x-a", "\x7f"),
        ("x-a", "€"),
        ("x a", "1"),
        ("x-a:", "1"),
        ("x-a\n", "1"),
        ("", "1"),
        ("Content-Length", "5"),
        ("transfer-encoding", "chunked"),
        ("Connection", "close"),
    ],
)
def test_an_answer_cannot_carry_a_second_one(name: str, value: str) -> None:
    with pytest.raises(DefinitionError):
        Answer(200, b"", {name: value})
