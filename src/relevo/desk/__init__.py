"""What a person may do to jobs; the same for CLI, HTTP and dashboard.

Whatever changes something asks who is asking, looks their role up in ACTIONS, and is written down
by the store in the same step. DefinitionError: the question is written wrongly. NotFoundError:
there is no such thing, or not for this desk. MisuseError: not in the state the job is in.
"""

from relevo.changes import Override
from relevo.desk.bulk import COUNT_MAX, SWEEPABLE, BulkVerb, Pace, meant
from relevo.desk.deliveries import (
    DeliveryJob,
    DeliveryView,
    EffectsRepeated,
    Order,
    Replay,
    delivery_job,
    is_replayable,
)
from relevo.desk.desk import Desk
from relevo.desk.editing import EDITABLE, Change, Edited
from relevo.desk.events import EventPage, EventView, Given, SubscriberView
from relevo.desk.flows import FlowRow, FlowView, JoinedNode, Reason, name_of
from relevo.desk.forgetting import Forgotten, LeftAlone
from relevo.desk.groups import GroupView
from relevo.desk.people import ACTIONS, Person, Role
from relevo.desk.pressure import (
    LATE,
    DurationView,
    Saturation,
    durations,
    saturations,
    slowest_of,
)
from relevo.desk.replaying import (
    COUNTED,
    DeliveryCount,
    DeliveryGroup,
    DeliveryGroups,
    DeliveryQuery,
    Repeatable,
    ReplayError,
    Replays,
    error_of,
)
from relevo.desk.restoring import AfterRestore, JobAfter
from relevo.desk.standing import (
    BreakerView,
    JoinsView,
    OutboxView,
    RecurringView,
    UniqueView,
    WaitView,
    What,
)
from relevo.desk.views import Found, Progress, Row, Story, Sweep, view

__all__ = [
    "ACTIONS",
    "COUNTED",
    "COUNT_MAX",
    "EDITABLE",
    "LATE",
    "SWEEPABLE",
    "AfterRestore",
    "BreakerView",
    "BulkVerb",
    "Change",
    "DeliveryCount",
    "DeliveryGroup",
    "DeliveryGroups",
    "DeliveryJob",
    "DeliveryQuery",
    "DeliveryView",
    "Desk",
    "DurationView",
    "Edited",
    "EffectsRepeated",
    "EventPage",
    "EventView",
    "FlowRow",
    "FlowView",
    "Forgotten",
    "Found",
    "Given",
    "GroupView",
    "JobAfter",
    "JoinedNode",
    "JoinsView",
    "LeftAlone",
    "Order",
    "OutboxView",
    "Override",
    "Pace",
    "Person",
    "Progress",
    "Reason",
    "RecurringView",
    "Repeatable",
    "Replay",
    "ReplayError",
    "Replays",
    "Role",
    "Row",
    "Saturation",
    "Story",
    "SubscriberView",
    "Sweep",
    "UniqueView",
    "WaitView",
    "What",
    "delivery_job",
    "durations",
    "error_of",
    "is_replayable",
    "meant",
    "name_of",
    "saturations",
    "slowest_of",
    "view",
]
