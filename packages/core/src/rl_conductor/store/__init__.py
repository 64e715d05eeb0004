"""What outlives a process: runs, the steps they have finished, and what they cost. Knows nothing of HTTP."""

from rl_conductor.store.journal import Journal, StoreAwayError
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
from rl_conductor.store.store import Store
from rl_conductor.store.trials import Trials
from rl_conductor.store.writing import PLAN

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
    "StoreAwayError",
    "Trials",
]
