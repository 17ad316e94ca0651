"""HTTP in: a door for each webhook, a raw ASGI callable with no framework in the way."""

from relevo.ingress.gate import Gate

__all__ = ["Gate"]
