"""XML of strangers: read without DTD, entities or excess, found by local name, and made escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from lxml import etree

LIMIT = 5 * 1_048_576
DEPTH = 64
MARKS = 100_000  # elements and attributes of one document

Element: TypeAlias = etree._Element  # pyright: ignore[reportPrivateUsage] - lxml has no public name

_ENCODING = re.compile(r"<\?xml[^>]{0,200}?encoding\s*=\s*[\"']([\w.-]{1,40})[\"']", re.ASCII)
_ENCODINGS = {"utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "iso-8859-15", "windows-1252"}
_CONTROL = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_HTML = re.compile(
    r"\s*(?:<!--.{0,2000}?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)


class Unreadable(ValueError):
    """An answer is not what it should be."""


def parse_xml(data: bytes) -> Element:
    """A document's root; Unreadable for anything that is more, less or other than plain XML.

    No DTD, no entities beyond XML's own five, 64 deep at most, encodings of one byte a character
    or UTF-8. A byte order mark, blanks or a line of noise in front are forgiven.
    """
    if len(data) > LIMIT or data.count(b"<") + data.count(b"=") > MARKS:
        raise Unreadable("too much XML")
    if b"\0" in data:
        raise Unreadable("no text")  # UTF-16 and UTF-32 among others
    text = _CONTROL.sub("", _text(data))
    start = text.find("<")
    if not 0 <= start <= 1_000:
        raise Unreadable("no XML")
    if "<!DOCTYPE" in text or "<!ENTITY" in text or is_html(text[start : start + 4096]):
        raise Unreadable("no plain XML")
    parser = etree.XMLParser(
        encoding="utf-8",  # not what the document declares: it was decoded above
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(text[start:].encode(), parser)
    except etree.XMLSyntaxError as error:
        raise Unreadable("broken XML") from error
    depth = 0
    for event, _ in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        if depth > DEPTH:
            raise Unreadable(f"XML more than {DEPTH} deep")
    return root


def is_html(start: str) -> bool:
    """Whether a document that begins so is a web page."""
    return _HTML.match(start) is not None


class Maker:
    """Makes elements, escaped: `x.Driver(x.Name("O'Neil & Cía"), Age="40")`.

    What XML cannot carry at all, a control character, is a ValueError.
    """

    def __init__(self, namespace: str | None = None, prefix: str | None = None) -> None:
        self._start = "" if namespace is None else f"{{{namespace}}}"
        self._names: dict[Any, str] = {} if namespace is None else {prefix: namespace}

    def __getattr__(self, name: str) -> Callable[..., Element]:
        def make(*content: Element | str | Mapping[str, str], **attributes: str) -> Element:
            made = etree.Element(self._start + name, nsmap=self._names)
            for each in content:
                if isinstance(each, str):
                    made.text = each
                elif isinstance(each, Mapping):
                    attributes = {**each, **attributes}
                else:
                    made.append(each)
            for key, value in attributes.items():
                made.set(key, value)
            return made

        return make


def local(element: Element) -> str:
    """An element's name without its namespace."""
    return etree.QName(element).localname


def find_all(root: Element, name: str) -> list[Element]:
    """The elements of a local name at any depth, the root included."""
    return [each for each in root.iter() if local(each) == name]


def find_one(root: Element, name: str) -> Element | None:
    """The first element of a local name at any depth."""
    return next((each for each in root.iter() if local(each) == name), None)


def text_of(element: Element | None) -> str:
    """An element's own text without blanks around it; empty when there is none."""
    return "" if element is None else (element.text or "").strip()


def _text(data: bytes) -> str:
    data = data.removeprefix(b"\xef\xbb\xbf")
    declared = _ENCODING.search(data[:1_400].decode("latin-1"))
    encoding = "utf-8" if declared is None else declared[1].lower()
    if encoding not in _ENCODINGS:
        raise Unreadable("an encoding that is not read here")
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise Unreadable("broken text") from error
