"""Stores runs, their finished steps and their costs in SQLite or PostgreSQL. Contains no HTTP code."""

from rl_conductor_server.store.batches.models import (
    ClaimedItem,
    FilePurpose,
    InputError,
    ItemResult,
    NewItem,
    Quota,
    StoredBatch,
    StoredFile,
)
from rl_conductor_server.store.codec import decode
from rl_conductor_server.store.database import StoreUnreachableError
from rl_conductor_server.store.keys.api_keys import StoredKey
from rl_conductor_server.store.keys.budget_leases import BudgetPeriod, BudgetState, round_down
from rl_conductor_server.store.models import (
    AnswerOutcome,
    Arm,
    Canary,
    Claim,
    FeedbackFilter,
    KeySpending,
    NewRun,
    Pair,
    PairVerdict,
    RunRow,
    Search,
    Session,
    Spending,
    Status,
    StoredAnswer,
)
from rl_conductor_server.store.responses.conversations import Conversation
from rl_conductor_server.store.responses.responses import StoredResponse, StoredTurn, StreamPiece
from rl_conductor_server.store.runs.experiments import ExperimentStore
from rl_conductor_server.store.runs.feedback import FeedbackStore
from rl_conductor_server.store.runs.run_writer import REDACTED_ERROR
from rl_conductor_server.store.store import Store
from rl_conductor_server.store.tables import PLAN_POSITION
from rl_conductor_server.store.write_behind import StoreUnavailableError, WriteBehindQueue

__all__ = [
    "PLAN_POSITION",
    "REDACTED_ERROR",
    "AnswerOutcome",
    "Arm",
    "BudgetPeriod",
    "BudgetState",
    "Canary",
    "Claim",
    "ClaimedItem",
    "Conversation",
    "ExperimentStore",
    "FeedbackFilter",
    "FeedbackStore",
    "FilePurpose",
    "InputError",
    "ItemResult",
    "KeySpending",
    "NewItem",
    "NewRun",
    "Pair",
    "PairVerdict",
    "Quota",
    "RunRow",
    "Search",
    "Session",
    "Spending",
    "Status",
    "Store",
    "StoreUnavailableError",
    "StoreUnreachableError",
    "StoredAnswer",
    "StoredBatch",
    "StoredFile",
    "StoredKey",
    "StoredResponse",
    "StoredTurn",
    "StreamPiece",
    "WriteBehindQueue",
    "decode",
    "round_down",
]
