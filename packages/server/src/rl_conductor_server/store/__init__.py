"""Stores runs, their finished steps and their costs in SQLite or PostgreSQL. Contains no HTTP code."""

from rl_conductor_server.store.budget_leases import BudgetPeriod, BudgetState, round_down
from rl_conductor_server.store.experiments import ExperimentStore
from rl_conductor_server.store.feedback import FeedbackStore
from rl_conductor_server.store.models import (
    AnswerOutcome,
    Arm,
    Canary,
    Claim,
    FeedbackFilter,
    NewRun,
    Pair,
    PairVerdict,
    RunRow,
    Search,
    Spending,
    Status,
)
from rl_conductor_server.store.store import Store
from rl_conductor_server.store.tables import PLAN_POSITION
from rl_conductor_server.store.write_behind import StoreUnavailableError, WriteBehindQueue

__all__ = [
    "PLAN_POSITION",
    "AnswerOutcome",
    "Arm",
    "BudgetPeriod",
    "BudgetState",
    "Canary",
    "Claim",
    "ExperimentStore",
    "FeedbackFilter",
    "FeedbackStore",
    "NewRun",
    "Pair",
    "PairVerdict",
    "RunRow",
    "Search",
    "Spending",
    "Status",
    "Store",
    "StoreUnavailableError",
    "WriteBehindQueue",
    "round_down",
]
