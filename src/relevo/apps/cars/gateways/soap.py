"""SOAP 1.1 as suppliers speak it: an envelope around what is said, a fault instead of an answer."""

from __future__ import annotations

from lxml import etree

from relevo.apps.cars.gateways.supplier import bad_login, denied, said
from relevo.apps.outside import Reply
from relevo.apps.xml import Element, Maker, find_one, local, text_of
from relevo.errors import ProviderError, ProviderUnavailable

ENVELOPE = "http://schemas.xmlsoap.org/soap/envelope/"
CONTENT_TYPE = "text/xml; charset=utf-8"

_soap = Maker(ENVELOPE, "soap")


def envelope(content: Element) -> bytes:
    """A document with `content` as the body of an envelope."""
    root = _soap.Envelope(_soap.Header(), _soap.Body(content))
    return etree.tostring(root, xml_declaration=True, encoding="utf-8")


def opened(reply: Reply) -> Element:
    """The one thing that a reply says.

    A fault comes with a 500 (or, from some, with a 200): it is read before the status is judged.
    """
    if reply.status in (401, 403):
        raise bad_login(reply)
    try:
        root = reply.xml()
    except ProviderError:
        reply.check()
        raise
    fault = find_one(root, "Fault")
    if fault is not None:
        raise _fault(reply, fault)
    reply.check()
    bodies = [each for each in root if local(each) == "Body"]
    if local(root) != "Envelope" or len(bodies) != 1 or len(bodies[0]) != 1:
        raise reply.unreadable("no SOAP answer")
    return bodies[0][0]


def _fault(reply: Reply, fault: Element) -> ProviderError:
    code = find_one(fault, "faultcode")
    code = find_one(fault, "Value") if code is None else code
    why = find_one(fault, "faultstring")
    why = find_one(fault, "Text") if why is None else why
    words = text_of(why) or "SOAP fault"
    name = text_of(code).rpartition(":")[2]
    is_ours = name.startswith(("Client", "Sender", "VersionMismatch", "MustUnderstand"))
    return denied(reply, words) if is_ours else ProviderUnavailable(said(reply, words))
