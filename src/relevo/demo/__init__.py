"""Five systems, their providers pretended, faults, kill -9, and the count of what came of it.

The demo is a customer and a provider, never a part of the systems: it sends what people and
providers send, over HTTP, to processes of relevo's own, and counts effects in the ledgers of the
simulators, which those processes do not see.
"""

from relevo.demo.play import play
from relevo.demo.proof import Proof, Row

__all__ = ["Proof", "Row", "play"]
