"""What outlives a process: runs, the steps they have finished, and what they cost. Knows nothing of HTTP."""

from rl_conductor_server.store.experiments import Trials
from rl_conductor_server.store.models import (
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
from rl_conductor_server.store.store import Store
from rl_conductor_server.store.write_behind import Journal, StoreAwayError
from rl_conductor_server.store.writer import PLAN

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
