"""What outlives a process: runs, the steps they have finished, and what they cost. Knows nothing of HTTP."""

from rl_conductor.store.journal import Journal
from rl_conductor.store.rows import (
    Answered,
    Canary,
    Claim,
    NewRun,
    Pair,
    PairVerdict,
    RunRow,
    Search,
    Side,
    Spending,
    Status,
)
from rl_conductor.store.store import PLAN, Store
from rl_conductor.store.trials import Trials

__all__ = [
    "PLAN",
    "Answered",
    "Canary",
    "Claim",
    "Journal",
    "NewRun",
    "Pair",
    "PairVerdict",
    "RunRow",
    "Search",
    "Side",
    "Spending",
    "Status",
    "Store",
    "Trials",
]
