"""What outlives a process: runs, the steps they have finished, and what they cost. Knows nothing of HTTP."""

from rl_conductor.store.journal import Journal
from rl_conductor.store.rows import Claim, NewRun, RunRow, Search, Spending, Status
from rl_conductor.store.store import Store

__all__ = ["Claim", "Journal", "NewRun", "RunRow", "Search", "Spending", "Status", "Store"]
