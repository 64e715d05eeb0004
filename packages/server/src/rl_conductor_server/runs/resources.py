"""`RequestResources`: what a request has until its response ends."""

from __future__ import annotations

from contextlib import ExitStack


class RequestResources(ExitStack):
    """What a request has until it ends: room for its body and history, and subscriptions to its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = self.enter_context(ExitStack())
        """Ends the request's turn in its conversation, unless a run has begun, which does so itself."""
