"""The Spanish of expenses' pages."""

from __future__ import annotations

REFUSALS = {
    "This link is over, or was never ours: ask for a new one.": (
        "Este enlace venció o no es nuestro: pedí uno nuevo."
    ),
    "Write a month like 2026-03, of the years 2000 to 2100.": (
        "Escribe un mes como 2026-03, de los años 2000 a 2100."
    ),
    "There is no such person.": "No existe esa persona.",
}
"""Why the panel did not do what it was asked."""

SPANISH = {
    **REFUSALS,
    "Expenses": "Gastos",
    "Person": "Persona",
    "Country": "País",
    "Language": "Idioma",
    "Latest": "Último",
    "No expense yet": "Todavía no hay gastos",
    "A message to the WhatsApp number makes the first.": (
        "Un mensaje al número de WhatsApp crea el primero."
    ),
    "Expenses of {name}, {when}": "Gastos de {name}, {when}",
    "Day": "Día",
    "Description": "Descripción",
    "Category": "Categoría",
    "Amount": "Monto",
    "Total": "Total",
    "By category": "Por categoría",
    "Nothing was spent": "No hubo gastos",
    "Previous month": "Mes anterior",
    "Next month": "Mes siguiente",
    "Download CSV": "Descargar CSV",
    "Download Excel": "Descargar Excel",
}
