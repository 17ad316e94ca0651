"""Infinity Group: OTA without a namespace, the whole document in one query parameter of a GET.

OpenTravel has a look-up by our code, `OTA_VehRetResRQ`; FIND is that name once Infinity Group has
told that they answer it.
"""

from __future__ import annotations

from urllib.parse import quote

from lxml import etree

from relevo.apps.cars.gateways import ota
from relevo.apps.cars.gateways.supplier import (
    Booking,
    Kind,
    SupplierBookingResult,
    SupplierGateway,
    bad_login,
    reference,
)
from relevo.apps.outside import Reply
from relevo.apps.xml import Element, Maker, local
from relevo.errors import ProviderError, ProviderRefused

_LOCAL = "%Y-%m-%dT%H:%M"
_URL_MAX = 8_000

_x = Maker()


class InfinityGroupGateway(SupplierGateway):
    """One requestor's account."""

    async def book(self, booking: Booking) -> SupplierBookingResult:
        reply, root = await self._get(self._order(booking), booking, acts=True)
        if local(root) != "OTA_VehResRS":
            raise reply.unreadable("another document")
        return ota.booked(reply, root)

    async def find(self, booking: Booking) -> SupplierBookingResult | None:
        question = getattr(_x, self._account["FIND"])(
            self._login(),
            _x.VehRetResRQCore(
                _x.UniqueID(ID=booking.code, Type="14"),
                _x.PersonName(_x.Surname(booking.driver.last_name)),
            ),
            Version="1.00",
        )
        return ota.found(*await self._get(question, booking, acts=False))

    async def _get(
        self, content: Element, booking: Booking, *, acts: bool
    ) -> tuple[Reply, Element]:
        """The document that answers another."""
        document = etree.tostring(content, encoding="unicode")
        # Escaped as XML by the builder, and now, once, for the address: a blank becomes %20.
        query = "?XML=" + quote(f'<?xml version="1.0"?>{document}', safe="")
        if len(self._outside.base) + len(query) > _URL_MAX:
            raise ProviderRefused("the booking is too long for Infinity Group's GET")
        reply = await self._outside.call(
            "GET",
            query,
            headers={"accept": "application/xml", **reference(booking)},
            acts=acts,  # a GET that books
        )
        if reply.status in (401, 403):
            raise bad_login(reply)
        try:
            root = reply.xml()
        except ProviderError:
            reply.check()
            raise
        reply.check()
        return reply, root

    def _login(self) -> Element:
        return _x.POS(_x.Source(_x.RequestorID(ID=self._account["REQUESTOR_ID"])))

    def _order(self, booking: Booking) -> Element:
        snapshot, driver = booking.snapshot, booking.driver
        return _x.OTA_VehResRQ(
            self._login(),
            _x.BookingReferenceID(_x.UniqueID_Type(ID=booking.code)),
            _x.VehResRQCore(
                _x.VehRentalCore(
                    _x.PickUpLocation(LocationCode=booking.pickup_location),
                    _x.ReturnLocation(LocationCode=booking.dropoff_location),
                    PickUpDateTime=booking.pickup_at.strftime(_LOCAL),
                    ReturnDateTime=booking.dropoff_at.strftime(_LOCAL),
                ),
                _x.VehPref(
                    _x.VehClass(snapshot["car_type"]),
                    _x.VehType(),
                    VendorCarType=snapshot["car_type"],
                ),
                _x.RateQualifier(VendorRateID=snapshot["vendor_rate_id"]),
                _x.Customer(
                    _x.Primary(
                        _x.PersonName(
                            _x.GivenName(driver.first_name), _x.Surname(driver.last_name)
                        ),
                        _x.Email(_x.Value(driver.email)),
                    )
                ),
            ),
            Version="1.00",
        )


KIND = Kind(
    name="infinity",
    prefix="INFINITY",
    build=InfinityGroupGateway,
    needs=("URL", "REQUESTOR_ID"),
    may={"FIND": ""},
    fields=("car_type", "vendor_rate_id"),
)
