"""Reading and writing the suppliers' XML, with a parser that is not the gateways' own."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator

from starlette.responses import Response

SOAP = "http://schemas.xmlsoap.org/soap/envelope/"
OTA = "http://www.opentravel.org/OTA/2003/05"


def read(text: str | bytes) -> ET.Element:
    """A document's root; what is not XML, or declares a DTD, is a ValueError."""
    try:
        return ET.fromstring(text)  # noqa: S314 - our own gateways wrote it
    except ET.ParseError as error:
        raise ValueError("not XML") from error


def names(root: ET.Element) -> Iterator[tuple[str, ET.Element]]:
    """Every element with its local name."""
    for element in root.iter():
        yield element.tag.rpartition("}")[2], element


def one(root: ET.Element, name: str) -> ET.Element:
    """The only element of a local name; ValueError when there is none, or another."""
    found = [element for each, element in names(root) if each == name]
    if len(found) != 1:
        raise ValueError(f"{len(found)} elements {name}")
    return found[0]


def words(root: ET.Element, name: str) -> str:
    """The text of the only element of a name."""
    return one(root, name).text or ""


def shape(root: ET.Element) -> list[str]:
    """The local names of all elements, in order: what a smuggled element would change."""
    return [name for name, _ in names(root)]


def envelope(content: ET.Element) -> bytes:
    """A SOAP 1.1 document."""
    root = ET.Element(f"{{{SOAP}}}Envelope")
    ET.SubElement(root, f"{{{SOAP}}}Body").append(content)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def fault(code: str, text: str) -> Response:
    """A SOAP 1.1 fault, which comes with a 500."""
    made = ET.Element(f"{{{SOAP}}}Fault")
    ET.SubElement(made, "faultcode").text = f"soap:{code}"
    ET.SubElement(made, "faultstring").text = text
    return answer(envelope(made), 500)


def answer(body: bytes, status: int = 200) -> Response:
    return Response(body, status, media_type="text/xml; charset=utf-8")


def ota_error(root: ET.Element, space: str, type: str, text: str) -> ET.Element:
    """`<Errors><Error Type ShortText/></Errors>` in an answer."""
    errors = ET.SubElement(root, f"{space}Errors")
    ET.SubElement(errors, f"{space}Error", Type=type, Code="300", ShortText=text)
    return root


def ota_reservation(root: ET.Element, space: str, number: str, status: str) -> ET.Element:
    """`<Success/>` and a reservation, good or not: suppliers say Success either way."""
    ET.SubElement(root, f"{space}Success")
    core = ET.SubElement(root, f"{space}VehResRSCore", ReservationStatus="Reserved")
    held = ET.SubElement(core, f"{space}VehReservation", ReservationStatus=status)
    segment = ET.SubElement(held, f"{space}VehSegmentCore")
    ET.SubElement(segment, f"{space}ConfID", Type="24", ID="")
    ET.SubElement(segment, f"{space}ConfID", Type="14", ID=number)
    return root
