"""gamification, its table of contents: everyone has a profile with points, and a wallet."""

from __future__ import annotations

from relevo.apps.razworks.gamification import listeners

LISTENERS = [listeners.create_profile, listeners.create_wallet, listeners.reward_project]
