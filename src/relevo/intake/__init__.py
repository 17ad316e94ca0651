"""How a delivery and its jobs are kept as one.

A Door is a webhook whose secrets have been read. A Receiver takes what has passed a door: it asks
for the key, runs the function with an Intake, and keeps the delivery and the jobs in one step, many
deliveries to a commit. The same path serves live calls, those that waited in a spool, and replays.
A delivery whose function fails is kept with a job that runs it again: see handling.
"""

from relevo.intake.door import Door, Reject, answer_of, delivery_of
from relevo.intake.handling import Handling, NoEndpoint, handling_queues
from relevo.intake.intake import Intake
from relevo.intake.receiver import REPLAYED_SO, Receiver, Taken, taken_of

__all__ = [
    "REPLAYED_SO",
    "Door",
    "Handling",
    "Intake",
    "NoEndpoint",
    "Receiver",
    "Reject",
    "Taken",
    "answer_of",
    "delivery_of",
    "handling_queues",
    "taken_of",
]
