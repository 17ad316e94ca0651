"""OpenTravel's OTA_VehRes as suppliers answer it.

`<Success/>` and a ConfID are there even when the reservation has failed or is pending: what counts
is that there is no error, that the status is a good one, and that the number is a number.
"""

from __future__ import annotations

from lxml import etree

from relevo.apps.cars.gateways.supplier import SupplierBookingResult, bad_login, confirmed, said
from relevo.apps.outside import Reply
from relevo.apps.xml import Element, find_all, find_one, text_of
from relevo.errors import (
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    ProviderUncertain,
)

NAMESPACE = "http://www.opentravel.org/OTA/2003/05"

_NAMESPACES = {NAMESPACE, "http://tempuri.org/", None}
_GOOD = frozenset({"confirmed", "reserved"})
_WAITS = frozenset({"pending", "on request", "onrequest", "requested", "waitlisted"})
_BAD = frozenset({"failed", "cancelled", "canceled", "expired", "rejected"})
_HEALS = frozenset({"1", "12", "13"})  # unknown, processing exception, application error
_NOT_FOUND = "3"  # business rule
_NO_LOGIN = "4"  # authentication
_RESERVATION, _CANCELLATION = "14", "15"


class Pending(ProviderUncertain):
    """The supplier has the booking and has not decided yet."""


def booked(reply: Reply, root: Element) -> SupplierBookingResult:
    """What an OTA_VehResRS says of the booking it was asked for."""
    answer = _answer(reply, root, "OTA_VehResRS")
    error = find_one(answer, "Error")
    if error is not None:
        raise _error(reply, error)
    return _reservation(reply, answer)


def found(reply: Reply, root: Element) -> SupplierBookingResult | None:
    """What an OTA_VehRetResRS says; None when there is no such booking, or it has failed."""
    answer = _answer(reply, root, "OTA_VehRetResRS")
    error = find_one(answer, "Error")
    if error is not None and error.get("Type") == _NOT_FOUND:
        return None
    if error is not None:
        raise ProviderUnavailable(said(reply, _words(error)))
    try:
        return _reservation(reply, answer)
    except ProviderRefused:
        return None
    except Pending as pending:
        raise ProviderUnavailable(str(pending)) from pending


def cancelled(reply: Reply, root: Element) -> None:
    """Check that an OTA_VehCancelRS says that the booking is cancelled."""
    answer = _answer(reply, root, "OTA_VehCancelRS")
    error = find_one(answer, "Error")
    if error is not None:
        raise _error(reply, error)
    core = find_one(answer, "VehCancelRSCore")
    status = "" if core is None else core.get("CancelStatus", "").strip().lower()
    if status not in ("cancelled", "canceled"):
        raise reply.unreadable("an unknown status of the cancellation")


def _answer(reply: Reply, root: Element, name: str) -> Element:
    answers = find_all(root, name)
    if len(answers) != 1 or etree.QName(answers[0]).namespace not in _NAMESPACES:
        raise reply.unreadable(f"{len(answers)} {name}")
    return answers[0]


def _reservation(reply: Reply, answer: Element) -> SupplierBookingResult:
    for status in _statuses(answer):
        if status in _WAITS:
            raise Pending(f"{reply.who} has the booking as '{status}'")
        if status in _BAD:
            raise ProviderRefused(f"{reply.who} has the booking as '{status}'")
        if status not in _GOOD:
            raise reply.unreadable("an unknown status")
    numbers = [
        (each.get("Type", ""), (each.get("ID") or "").strip())
        for each in find_all(answer, "ConfID")
        if each.get("Type") != _CANCELLATION
    ]
    good = [id for type, id in numbers if type == _RESERVATION and id]
    good += [id for _, id in numbers if id]
    return confirmed(good[0] if good else None, reply)


def _statuses(answer: Element) -> list[str]:
    holders = [*find_all(answer, "VehReservation"), *find_all(answer, "VehResRSCore")]
    found = [each.get("ReservationStatus") for each in holders]
    return [status.strip().lower() for status in found if status is not None]


def _error(reply: Reply, error: Element) -> ProviderError:
    if error.get("Type") == _NO_LOGIN:
        return bad_login(reply)
    words = said(reply, _words(error))
    heals = error.get("Type") in _HEALS
    return ProviderUnavailable(words) if heals else ProviderRefused(words)


def _words(error: Element) -> str:
    return error.get("ShortText") or text_of(error) or f"error {error.get('Code', '')}"
