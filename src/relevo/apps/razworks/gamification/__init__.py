"""gamification, its table of contents: everyone has a profile with points, and a wallet."""

from __future__ import annotations

from relevo import listener
from relevo.apps.razworks.gamification import listeners

LISTENERS = [
    listener(listeners.create_profile, queue="razworks:gamification:create-profile"),
    listener(listeners.create_wallet, queue="razworks:gamification:create-wallet"),
    listener(listeners.reward_project, queue="razworks:gamification:reward-project"),
]
