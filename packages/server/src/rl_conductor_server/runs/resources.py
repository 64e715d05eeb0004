"""`RequestResources`: memory, subscriptions and the turn of a request, until its response ends."""

from __future__ import annotations

from contextlib import ExitStack


class RequestResources(ExitStack):
    """Room for the body and the history of a request, and subscriptions to its runs, until its response ends."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = self.enter_context(ExitStack())
        """Ends the request's turn in its conversation, unless a run has begun, which does so itself."""
