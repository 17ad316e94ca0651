"""Expenses as a CSV or an Excel file, in which no cell is ever a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from relevo.apps.expenses.records import Row
from relevo.apps.expenses.texts import category

CSV_TYPE = "text/csv; charset=utf-8"
EXCEL_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_HEADS = {
    "en": ("Date", "Description", "Category", "Amount", "Currency"),
    "es": ("Fecha", "Descripción", "Categoría", "Monto", "Moneda"),
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def safe(text: str) -> str:
    """Text that a spreadsheet takes for text: with an apostrophe where it would begin a formula."""
    plain = "".join(each if each.isprintable() else " " for each in text)
    is_risky = plain.lstrip().startswith(_FORMULA) or text.startswith(_FORMULA)
    return f"'{plain}" if is_risky else plain


def to_csv(rows: Sequence[Row], language: str) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_MINIMAL)
    writer.writerow(_HEADS[language])
    for row in rows:
        amount = f"{row.cents / 100:.2f}"
        kind = category(row.category, language)
        writer.writerow([row.spent_on, safe(row.description), kind, amount, row.currency])
    return b"\xef\xbb\xbf" + out.getvalue().encode()  # Excel takes it for UTF-8 by this mark only


def to_excel(rows: Sequence[Row], language: str) -> bytes:
    from openpyxl import Workbook

    book = Workbook(write_only=True)
    sheet = book.create_sheet("Gastos" if language == "es" else "Expenses")
    sheet.append(list(_HEADS[language]))
    for row in rows:
        kind = category(row.category, language)
        sheet.append([row.spent_on, safe(row.description), kind, row.cents / 100, row.currency])
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()
