"""Where a person writes from: their currency, how they write numbers and dates, their clock."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from zoneinfo import ZoneInfo

from relevo.apps.expenses.rules.area_codes import (
    CANADA,
    DOMINICAN_REPUBLIC,
    PUERTO_RICO,
    UNITED_STATES,
)


@dataclass(frozen=True, slots=True)
class Region:
    """The habits of a country; an empty currency has to be asked for."""

    country: str
    currency: str
    timezone: str
    decimal: str = ","  # what stands before cents; the other one groups thousands
    language: str = "es"
    month_first: bool | None = False  # None: some write it so, some the other way

    @property
    def grouping(self) -> str:
        return "." if self.decimal == "," else ","

    def day(self, at: datetime) -> date:
        """What day it is there."""
        return at.astimezone(ZoneInfo(self.timezone)).date()


SOMEWHERE = Region("", "", "America/New_York", ".", "en", month_first=None)
"""Behind +1, and no area code that we know: its dollar may be one of a dozen."""


def _behind(areas: Iterable[str], region: Region) -> tuple[tuple[str, Region], ...]:
    return tuple((f"1{area}", region) for area in areas)


_ALL = (
    ("54", Region("AR", "ARS", "America/Argentina/Buenos_Aires")),
    ("52", Region("MX", "MXN", "America/Mexico_City", ".")),
    ("56", Region("CL", "CLP", "America/Santiago")),
    ("57", Region("CO", "COP", "America/Bogota")),
    ("598", Region("UY", "UYU", "America/Montevideo")),
    ("595", Region("PY", "PYG", "America/Asuncion")),
    ("51", Region("PE", "PEN", "America/Lima", ".")),
    ("591", Region("BO", "BOB", "America/La_Paz")),
    ("593", Region("EC", "USD", "America/Guayaquil")),
    ("502", Region("GT", "GTQ", "America/Guatemala", ".")),
    ("506", Region("CR", "CRC", "America/Costa_Rica")),
    ("55", Region("BR", "BRL", "America/Sao_Paulo")),
    ("34", Region("ES", "EUR", "Europe/Madrid")),
    ("49", Region("DE", "EUR", "Europe/Berlin", language="en")),
    ("33", Region("FR", "EUR", "Europe/Paris", language="en")),
    ("39", Region("IT", "EUR", "Europe/Rome", language="en")),
    ("44", Region("GB", "GBP", "Europe/London", ".", "en")),
    ("353", Region("IE", "EUR", "Europe/Dublin", ".", "en")),
    ("61", Region("AU", "AUD", "Australia/Sydney", ".", "en")),
    ("1", SOMEWHERE),
    *_behind(UNITED_STATES, Region("US", "USD", "America/New_York", ".", "en", month_first=True)),
    *_behind(CANADA, Region("CA", "CAD", "America/Toronto", ".", "en", month_first=None)),
    *_behind(DOMINICAN_REPUBLIC, Region("DO", "DOP", "America/Santo_Domingo", ".")),
    *_behind(PUERTO_RICO, Region("PR", "USD", "America/Puerto_Rico", ".", month_first=None)),
)
REGIONS = {region.country: region for _, region in _ALL if region.country}
HOME = REGIONS["AR"]

_BUSINESS_SCOPED = re.compile(r"([A-Z]{2})\.[A-Za-z0-9.]+", re.ASCII)


def region_of(user_id: str | None, wa_id: str | None, home: Region = HOME) -> Region:
    """The region of a person, from their id (`AR.100…`) or their number; `home` if neither says."""
    if user_id and (match := _BUSINESS_SCOPED.fullmatch(user_id)) and match[1] in REGIONS:
        return REGIONS[match[1]]
    number = wa_id or ""
    fits = [(code, region) for code, region in _ALL if number.startswith(code)]
    return max(fits, key=lambda each: len(each[0]))[1] if fits else home
