"""What a customer may ask for, checked field by field before anything is stored."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
)

from relevo.apps.cars.gateways import Kind, Supplier
from relevo.apps.cars.records import Reservation, Status, digits

LONGEST = timedelta(days=365)
FARTHEST = timedelta(days=3 * 365)
ZONES = timedelta(hours=12)  # how far behind UTC an office's clock may be
VALUE_MAX = 100
AMOUNT_MAX = 99_999_999  # Stripe's, in the currency's smallest unit

_LOCAL = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_EMAIL = re.compile(r"[A-Za-z0-9._%+'-]{1,64}@[A-Za-z0-9-]{1,63}(\.[A-Za-z0-9-]{1,63})+", re.ASCII)
_PHONE = re.compile(r"\+?[0-9][0-9 ().-]{4,30}", re.ASCII)
_PLACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 _./-]{0,39}", re.ASCII)
_FLIGHT = re.compile(r"[A-Za-z0-9 -]{0,12}", re.ASCII)
_AMOUNT = re.compile(r"\d{1,8}(\.\d{1,2})?", re.ASCII)
_METHOD = re.compile(r"pm_\w{1,100}", re.ASCII)


class Invalid(ValueError):
    """What is asked for cannot be; `fields` says where and why."""

    def __init__(self, fields: list[dict[str, str]]) -> None:
        super().__init__("invalid")
        self.fields = fields

    @classmethod
    def of(cls, error: ValidationError) -> Invalid:
        """The fields of a validation error; never a value."""
        return cls(
            [
                {
                    "field": ".".join(str(part) for part in each["loc"]) or "(body)",
                    "why": each["msg"].removeprefix("Value error, "),
                }
                for each in error.errors(include_url=False, include_input=False)[:20]
            ]
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is wanted")
    return value.strip()


def _name(text: str) -> str:
    if not 1 <= len(text) <= 100:
        raise ValueError("1 to 100 characters are wanted")
    # Neither XML nor a clerk can do anything with these.
    if any(unicodedata.category(each) in ("Cc", "Cs", "Cn", "Co") for each in text):
        raise ValueError("control characters are not part of a name")
    return text


def _like(pattern: re.Pattern[str], why: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(why)
        return text

    return AfterValidator(check)


def _local(value: Any) -> datetime:
    if not isinstance(value, str) or not _LOCAL.fullmatch(value):
        raise ValueError("a local time without a zone is wanted, such as 2026-03-01T10:00:00")
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("there is no such day or hour") from None


def _day(value: Any) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise ValueError("a day is wanted, such as 1990-01-31")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError("there is no such day") from None


def _amount(value: Any) -> Decimal:
    text = value if isinstance(value, str) else str(value)
    if isinstance(value, bool) or not _AMOUNT.fullmatch(text) or Decimal(text) <= 0:
        raise ValueError("an amount above 0 with at most two decimals is wanted")
    return Decimal(text)


Text = Annotated[str, BeforeValidator(_text)]
Name = Annotated[Text, AfterValidator(_name)]
Place = Annotated[Text, _like(_PLACE, "an office's code is wanted, such as CUN")]
Local = Annotated[datetime, BeforeValidator(_local)]


class _Wish(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Customer(_Wish):
    """Who drives."""

    first_name: Name
    last_name: Name
    email: Annotated[Text, _like(_EMAIL, "one e-mail address is wanted"), Field(max_length=254)]
    phone: Annotated[Text, _like(_PHONE, "a phone number is wanted, such as +34 600 000 000")]
    birth_date: Annotated[date, BeforeValidator(_day)]


class CreateReservationRequest(_Wish):
    """A reservation, with the snapshot of the availability it was chosen from."""

    supplier_id: Annotated[StrictInt, Field(gt=0, lt=2**31)]
    pickup_datetime: Local
    dropoff_datetime: Local
    pickup_location: Place
    dropoff_location: Place
    customer: Customer
    flight: Annotated[Text, _like(_FLIGHT, "a flight number is wanted, such as AZ123")] = ""
    total_amount: Annotated[Decimal, BeforeValidator(_amount)]
    currency: Annotated[Text, _like(re.compile("[A-Z]{3}"), "a currency is wanted, such as EUR")]
    supplier_specific_data: dict[str, Any]

    def reservation(self, suppliers: Mapping[int, Supplier], now: datetime) -> Reservation:
        """A pending reservation of it; Invalid with every reason why not."""
        wrong = self._times(now)
        supplier = suppliers.get(self.supplier_id)
        snapshot: dict[str, str] = {}
        if supplier is None:
            wrong.append({"field": "supplier_id", "why": "no such supplier"})
        else:
            until = self.dropoff_datetime.date()
            snapshot = _snapshot(supplier.kind, self.supplier_specific_data, until, wrong)
        currency = self.currency.lower()
        minor = self.total_amount.scaleb(digits(currency))
        if minor != minor.to_integral_value():
            wrong.append({"field": "total_amount", "why": f"{self.currency} has no cents"})
        if minor > AMOUNT_MAX:
            wrong.append({"field": "total_amount", "why": "no card is charged that much"})
        if wrong:
            raise Invalid(wrong)
        who = self.customer
        return Reservation(
            code="",
            supplier_id=self.supplier_id,
            status=Status.PENDING,
            pickup_datetime=self.pickup_datetime,
            dropoff_datetime=self.dropoff_datetime,
            pickup_location=self.pickup_location,
            dropoff_location=self.dropoff_location,
            first_name=who.first_name,
            last_name=who.last_name,
            email=who.email,
            phone=who.phone,
            birth_date=who.birth_date,
            flight=self.flight,
            amount=int(minor),
            currency=currency,
            supplier_specific_data=snapshot,
            payment_attempt=1,
            created_at=now,
            updated_at=now,
        )

    def _times(self, now: datetime) -> list[dict[str, str]]:
        wrong: list[dict[str, str]] = []
        if is_past(self.pickup_datetime, now):
            wrong.append({"field": "pickup_datetime", "why": "it lies in the past"})
        if self.pickup_datetime > now.replace(tzinfo=None) + FARTHEST:
            wrong.append({"field": "pickup_datetime", "why": "it is more than 3 years away"})
        if not timedelta() < self.dropoff_datetime - self.pickup_datetime <= LONGEST:
            why = "it must come after the pick-up, and within a year"
            wrong.append({"field": "dropoff_datetime", "why": why})
        born = self.customer.birth_date
        if not 16 * 365 <= (now.date() - born).days <= 120 * 366:
            wrong.append({"field": "customer.birth_date", "why": "nobody of that age drives"})
        return wrong


def is_past(local: datetime, now: datetime) -> bool:
    """Whether a local time has passed, wherever on earth it is meant."""
    return local < now.replace(tzinfo=None) - ZONES


class PayRequest(_Wish):
    """With what to pay. The price is the reservation's; whatever else is sent is not read."""

    payment_method: Annotated[Text, _like(_METHOD, "a Stripe payment method, pm_…, is wanted")]


def _snapshot(
    kind: Kind, given: Mapping[str, Any], until: date, wrong: list[dict[str, str]]
) -> dict[str, str]:
    """The fields the supplier's gateway knows; others stay outside."""
    found: dict[str, str] = {}
    for name in (*kind.fields, *kind.optional):
        value = given.get(name, kind.optional.get(name))
        is_text = isinstance(value, str) and 0 < len(value.strip()) <= VALUE_MAX
        if is_text and str(value).isprintable():
            found[name] = str(value).strip()
        else:
            why = f"a text of up to {VALUE_MAX} characters is wanted"
            wrong.append({"field": f"supplier_specific_data.{name}", "why": why})
    for name, why in kind.check(found, until).items():
        if name in found:  # else it is told above that it is missing
            wrong.append({"field": f"supplier_specific_data.{name}", "why": why})
    return found
