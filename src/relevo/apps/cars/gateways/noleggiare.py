"""Noleggiare: OTA in SOAP 1.1, with a look-up by our code and a message that cancels.

Pick-up and drop-off are local times at the office, and travel without a zone; only the time of a
message is UTC, and marked so.
"""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from relevo.apps.cars.gateways import ota, soap
from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    SupplierGateway,
    reference,
)
from relevo.apps.outside import Reply
from relevo.apps.xml import Element, Maker

_LOCAL = "%Y-%m-%dT%H:%M:%S"
_UTC = f"{_LOCAL}Z"

_x = Maker(ota.NAMESPACE, "ns")


class NoleggiareGateway(SupplierGateway):
    """One broker's account."""

    async def book(self, booking: Booking) -> SupplierBookingResult:
        reply = await self._call("OTA_VehResRQ", self._order(booking), booking, acts=True)
        return ota.booked(reply, soap.opened(reply))

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        name = self._account["FIND"]
        question = getattr(_x, name)(
            self._login(),
            _x.VehRetResRQCore(
                _x.UniqueID(Instance=booking.code, Type="14"),
                _x.PersonName(_x.Surname(booking.driver.last_name)),
            ),
            self._stamp(),
        )
        reply = await self._call(name, question, booking, acts=False)
        return ota.found(reply, soap.opened(reply))

    async def cancel(self, booking: Booking, number: str) -> None:
        name = self._account["CANCEL"]
        question = getattr(_x, name)(
            self._login(),
            _x.VehCancelRQCore(
                _x.UniqueID(ID=number, Type="14"),
                _x.PersonName(_x.Surname(booking.driver.last_name)),
                CancelType="Book",
            ),
            self._stamp(),
        )
        reply = await self._call(name, question, booking, acts=True)
        ota.cancelled(reply, soap.opened(reply))

    async def _call(self, action: str, content: Element, booking: Booking, *, acts: bool) -> Reply:
        return await self._outside.call(
            "POST",
            content=soap.envelope(content),
            headers={
                "content-type": soap.CONTENT_TYPE,
                "soapaction": action,
                **reference(booking),
            },
            acts=acts,
        )

    def _order(self, booking: Booking) -> Element:
        driver, pickup = booking.driver, booking.pickup_at.strftime(_LOCAL)
        info = _x.VehResRQInfo()
        if booking.flight:
            info.append(_x.ArrivalDetails(Number=booking.flight, ArrivalDateTime=pickup))
        info.append(
            _x.RentalPaymentPref(
                _x.Voucher(SeriesCode=booking.code),
                _x.PaymentAmount(Amount=str(booking.amount), CurrencyCode=booking.currency),
                PaymentTransactionTypeCode="charge",
                PaymentType=self._account["PAYMENT_TYPE"],
                Type="payment",
            )
        )
        return _x.OTA_VehResRQ(
            self._login(),
            _x.VehResRQCore(
                _x.VehRentalCore(
                    _x.PickUpLocation(LocationCode=booking.pickup_location),
                    _x.ReturnLocation(LocationCode=booking.dropoff_location),
                    PickUpDateTime=pickup,
                    ReturnDateTime=booking.dropoff_at.strftime(_LOCAL),
                ),
                _x.Customer(
                    _x.Primary(
                        _x.PersonName(
                            _x.GivenName(driver.first_name), _x.Surname(driver.last_name)
                        ),
                        _x.Telephone(PhoneTechType="1", PhoneNumber=driver.phone),
                        _x.Email(driver.email),
                    )
                ),
                _x.VehPref(Code=booking.snapshot["sipp_code"]),
            ),
            info,
            self._stamp(),
        )

    def _login(self) -> Element:
        account = self._account
        requestor = _x.RequestorID(
            _x.CompanyName(account["COMPANY"]),
            ID=account["USER"],
            MessagePassword=account["PASSWORD"],
        )
        return _x.POS(_x.Source(requestor))

    def _stamp(self) -> dict[str, str]:
        """The attributes of every message: now, not the pick-up."""
        return {
            "Version": "1.0",
            "Target": self._account["TARGET"],
            "TimeStamp": datetime.now(UTC).strftime(_UTC),
            "EchoToken": uuid4().hex,
        }


KIND = Kind(
    name="noleggiare",
    prefix="NOLEGGIARE",
    build=NoleggiareGateway,
    needs=("URL", "USER", "PASSWORD", "COMPANY"),
    may={
        "TARGET": "Production",
        "PAYMENT_TYPE": "voucher",
        "FIND": "OTA_VehRetResRQ",
        "CANCEL": "OTA_VehCancelRQ",
    },
    fields=("sipp_code",),
)
