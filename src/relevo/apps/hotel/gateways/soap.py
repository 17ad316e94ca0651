"""SOAP 1.1 and 1.2 as channel managers speak it: envelope, credentials, faults."""

from __future__ import annotations

from lxml import etree

from relevo.apps.hotel.settings import Soap
from relevo.apps.outside import Outside, Reply
from relevo.apps.xml import Element, Maker, find_one, local, text_of
from relevo.errors import ProviderError, ProviderRefused, ProviderUnavailable

ENVELOPES = {
    "1.1": "http://schemas.xmlsoap.org/soap/envelope/",
    "1.2": "http://www.w3.org/2003/05/soap-envelope",
}
OTA = "http://www.opentravel.org/OTA/2003/05"
OURS = "urn:relevo:cm:1"
_WSS = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-"
WSSE = f"{_WSS}wssecurity-secext-1.0.xsd"
_PASSWORD_TEXT = f"{_WSS}username-token-profile-1.0#PasswordText"
_HEALS = frozenset({"1", "12", "13"})  # OTA error types: unknown, processing, application

ota, cm = Maker(OTA), Maker(OURS)
_wsse = Maker(WSSE, "wsse")


class SoapClient:
    """One endpoint; a call is a question and the one element that answers it."""

    def __init__(self, settings: Soap) -> None:
        self._settings = settings
        self._outside = Outside("the channel manager", settings.url)
        self._namespace = ENVELOPES[settings.version]

    async def close(self) -> None:
        await self._outside.close()

    def pos(self, maker: Maker) -> Element:
        """Who asks, in the body; with the password there, if that is where it belongs."""
        settings = self._settings
        secret = {"MessagePassword": settings.password} if settings.auth == "pos" else {}
        asker = maker.RequestorID(secret, Type="22", ID=settings.username)
        return maker.POS(maker.Source(asker))

    async def ask(self, question: Element, answer: str) -> Element:
        """The element of that name that answers a question; `ProviderError` for all else.

        Nothing here counts as acting: what is asked can be asked again under the same key.
        """
        name = local(question)
        namespace = etree.QName(question).namespace
        action = f"{namespace}/{name}"
        if self._settings.version == "1.1":
            headers = {"content-type": "text/xml; charset=utf-8", "soapaction": f'"{action}"'}
        else:
            kind = f'application/soap+xml; charset=utf-8; action="{action}"'
            headers = {"content-type": kind}
        content = etree.tostring(self._envelope(question), xml_declaration=True, encoding="utf-8")
        reply = await self._outside.call("POST", acts=False, content=content, headers=headers)
        found = _opened(reply)
        if etree.QName(found) != etree.QName(namespace, answer):
            raise reply.unreadable(f"no {answer}")
        _check(reply, found)
        return found

    def _envelope(self, question: Element) -> Element:
        soap = Maker(self._namespace, "soap")
        header = soap.Header()
        if self._settings.auth == "wsse":
            token = _wsse.UsernameToken(
                _wsse.Username(self._settings.username),
                _wsse.Password(self._settings.password, Type=_PASSWORD_TEXT),
            )
            must = {f"{{{self._namespace}}}mustUnderstand": "1"}
            header.append(_wsse.Security(must, token))
        return soap.Envelope(header, soap.Body(question))


def _opened(reply: Reply) -> Element:
    """What a reply says; a fault is read before its status is judged: it comes with 500, or 200."""
    try:
        root = reply.xml()
    except ProviderError:
        reply.check()
        raise
    is_envelope = etree.QName(root).namespace in ENVELOPES.values() and local(root) == "Envelope"
    bodies = [each for each in root if local(each) == "Body"]
    if not is_envelope or len(bodies) != 1 or len(bodies[0]) != 1:
        reply.check()
        raise reply.unreadable("no SOAP answer")
    content = bodies[0][0]
    if local(content) == "Fault":
        raise _fault(reply, content)
    reply.check()
    return content


def _fault(reply: Reply, fault: Element) -> ProviderError:
    code = find_one(fault, "faultcode")
    code = find_one(fault, "Value") if code is None else code
    name = text_of(code).rpartition(":")[2][:40]
    said = f"{reply.who} answered with the fault {name or '?'}"
    is_ours = name.startswith(("Client", "Sender", "VersionMismatch", "MustUnderstand"))
    return ProviderRefused(said) if is_ours else ProviderUnavailable(said)


def _check(reply: Reply, answer: Element) -> None:
    """OTA tells its errors with HTTP 200."""
    if (errors := [each for each in answer if local(each) == "Errors"]) == []:
        return
    listed = [each for each in errors[0] if local(each) == "Error"]
    kinds = {each.get("Type", "1") for each in listed} or {"1"}
    codes = ", ".join(sorted({each.get("Code", "?")[:20] for each in listed}))
    said = f"{reply.who} answered with error {codes or '?'}"
    raise ProviderUnavailable(said) if kinds <= _HEALS else ProviderRefused(said)
