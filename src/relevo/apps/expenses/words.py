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
    "There is no such expense.": "No existe ese gasto.",
    "Write an amount in digits, such as 1234.50.": "Escribe un monto en cifras, como 1234,50.",
    "Choose a day that has come, from the year 2000 on.": (
        "Elige un día que ya haya llegado, del año 2000 en adelante."
    ),
    "Choose a currency and a category of those in the list.": (
        "Elige una moneda y una categoría de la lista."
    ),
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
    "Edit": "Editar",
    "Edit this expense": "Editar este gasto",
    "Currency": "Moneda",
    "Save": "Guardar",
    "Delete": "Borrar",
    "Delete this expense?": "¿Borrar este gasto?",
    "Leave it": "Dejarlo así",
    "Saved.": "Guardado.",
    "Deleted.": "Borrado.",
    "Download CSV": "Descargar CSV",
    "Download Excel": "Descargar Excel",
}
