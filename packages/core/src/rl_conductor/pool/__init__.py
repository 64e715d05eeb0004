"""Workers, worker pools and pool files. A worker is a model with a name, a card and settings.

In: models, names of models, pool files. Out: `Worker` and `WorkerPool`.
"""

from rl_conductor.pool.pool import AnyWorker, WorkerPool
from rl_conductor.pool.pool_file import PoolFile, read_pool_file
from rl_conductor.pool.worker import Worker

__all__ = [
    "AnyWorker",
    "PoolFile",
    "Worker",
    "WorkerPool",
    "read_pool_file",
]
