"""`Limits` of one request. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator

from rl_conductor.types import DecimalInput, Dollars
from rl_conductor.types.value import MAX_DIGITS, UserValue

DEFAULT_REPLY_CHARS = 16 * 2**20
"""Default limit of the characters of one reply; the longest replies of today's models have about a million."""
MAX_LIMIT = 10**15
"""Maximum limit of tokens, calls and seconds: more than any run can use, and in the range of clocks and databases."""


class Limits(UserValue):
    """Limits on one request, enforced before each call by reserving the call's upper bound."""

    usd: Dollars | None = Field(default=None, ge=0, max_digits=MAX_DIGITS, decimal_places=MAX_DIGITS // 2)
    """US dollars, planning included."""
    tokens: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    """Tokens read and written, planning included."""
    calls: int | None = Field(default=None, ge=1, le=MAX_LIMIT)
    """Calls to any model, planning and retries included."""
    seconds: float | None = Field(default=None, gt=0, le=MAX_LIMIT)
    """Wall time until everything in flight is cancelled."""
    rounds: int = Field(default=1, ge=1)
    """Maximum number of plans that are run one after the other; 2 is the paper's recursion."""
    steps: int = Field(default=5, ge=1)
    """Maximum steps of one plan."""
    concurrency: int | None = Field(default=None, ge=1)
    """Maximum calls in flight at the same time."""
    depth: int = Field(default=2, ge=1)
    """Maximum nesting depth of conductors in one another's pools."""
    hedges: int = Field(default=0, ge=0)
    """Maximum number of hedged calls (see `Worker.hedge_after`)."""
    reply_chars: int = Field(default=DEFAULT_REPLY_CHARS, ge=1, le=MAX_LIMIT)
    """Maximum characters of one reply: text, reasoning and arguments of tool calls together."""

    def lowered(self, *others: Limits | None) -> Self:
        """Returns these limits, each lowered to the lowest that is set in `others`."""
        lowest: dict[str, Any] = {}
        for limits in others:
            for name in limits.model_fields_set if limits else ():
                values = lowest.get(name, getattr(self, name)), getattr(limits, name)
                lowest[name] = min((value for value in values if value is not None), default=None)
        return self.model_copy(update=lowest) if lowest else self

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_truth_values(cls, value: Any) -> Any:
        """Refuses `True`, which pydantic takes for 1."""
        if isinstance(value, bool):
            raise ValueError("a truth value is not a number")  # noqa: TRY004  pydantic reports only a `ValueError`
        return value

    @classmethod
    def _expectation(cls, path: Sequence[int | str], kind: str) -> str | None:
        name = path[0] if path else None
        if name not in cls.model_fields:
            return None
        if name == "usd":
            return f"write an amount of US dollars of 0 or more, with at most {MAX_DIGITS} digits"
        maximum = f", and at most {MAX_LIMIT:,}" if kind == "less_than_equal" else ""
        if name == "seconds":
            return f"write a number of seconds above 0{maximum}"
        return f"write a whole number of {0 if name in ('tokens', 'hedges') else 1} or more{maximum}"

    if TYPE_CHECKING:

        def __init__(
            self,
            *,
            usd: DecimalInput | None = None,
            tokens: int | None = None,
            calls: int | None = None,
            seconds: float | None = None,
            rounds: int = 1,
            steps: int = 5,
            concurrency: int | None = None,
            depth: int = 2,
            hedges: int = 0,
            reply_chars: int = DEFAULT_REPLY_CHARS,
        ) -> None: ...
