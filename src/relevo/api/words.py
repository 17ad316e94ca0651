"""The Spanish of the page that documents the API."""

from __future__ import annotations

from typing import Final

SPANISH: Final = {
    "HTTP API": "API HTTP",
    "Everything here needs a session or a token.": "Todo aquí necesita una sesión o un testigo.",
    "OpenAPI document": "Documento OpenAPI",
    "field": "campo",
    "in": "en",
    "type": "tipo",
    "default": "por defecto",
    "meaning": "significado",
    "required": "obligatorio",
    "Nothing is asked.": "No se pide nada.",
}
