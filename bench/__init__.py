"""Speed as ratios: relevo beside a hand-written loop, or beside itself, in one run."""
