"""How much: `Limits` on one request, and the `UpperBound` of a call, checked before it is made. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from pydantic import Field

from rl_conductor.types import Dollars, FilePart, ImagePart, JsonFormat, Message, Price, Request, Value

TOKENS_PER_MESSAGE = 16
"""What chat templates add around a message, generously."""
TOKENS_PER_IMAGE = 3_000
"""More than any vendor counts for one image at its default detail."""
BASE64_BYTES_PER_FILE_TOKEN = 4
"""Of documents that are no text, such as a PDF: an estimate, since how much text and how many pictures of pages a
vendor reads out of one can't be told from its size."""
DEFAULT_OUTPUT_TOKENS = 4_096
"""Most output tokens of a call that names no other bound (paper: workers in training)."""
PLAN_TOKENS = 1_024
"""Most tokens of a plan (paper, table of hyper-parameters)."""
USD_DIGITS = 60
"""Most digits of a limit in dollars, half of them after the point: clients write limits, and told in full, a few
characters such as `1e-999999999` would take a gigabyte."""
MAX_LIMIT = 10**15
"""Highest limit of tokens, calls and seconds: far more than any run can use, and still a number that clocks and
databases can hold."""


class Limits(Value):
    """What one request may use. Each is checked before a call, on a reservation that is settled afterwards."""

    usd: Dollars | None = Field(default=None, ge=0, max_digits=USD_DIGITS, decimal_places=USD_DIGITS // 2)
    """US dollars, planning included."""
    tokens: int | None = Field(default=None, ge=0, le=MAX_LIMIT)
    """Tokens read and written, planning included."""
    calls: int | None = Field(default=None, ge=1, le=MAX_LIMIT)
    """Calls to any model, planning and retries included."""
    seconds: float | None = Field(default=None, gt=0, le=MAX_LIMIT)
    """Wall time until everything in flight is given up."""
    rounds: int = Field(default=1, ge=1)
    """Most plans that are run one after the other; 2 is the paper's recursion."""
    steps: int = Field(default=5, ge=1)
    """Most steps of one plan."""
    concurrency: int | None = Field(default=None, ge=1)
    """Most calls in flight at once."""
    depth: int = Field(default=2, ge=1)
    """How deep conductors may sit in one another's pools."""
    hedges: int = Field(default=0, ge=0)
    """Most second calls made because a first one is slow (see `Worker.hedge_after`)."""


@dataclass(frozen=True)
class UpperBound:
    """The most that a call can use."""

    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    """US dollars; `None` when the price is unknown."""

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens


def upper_bound(request: Request, price: Price | None) -> UpperBound:
    """The most that `request` can use: a token is never less than one byte, so bytes bound the input."""
    read = sum(_tokens(message) for message in request.messages)
    read += sum(_bytes(tool.model_dump_json()) for tool in request.tools)
    if isinstance(request.response_format, JsonFormat):
        read += _bytes(request.response_format.model_dump_json())
    written = request.sampling.max_tokens or DEFAULT_OUTPUT_TOKENS
    cost = None if price is None else price.most(input_tokens=read, output_tokens=written)
    return UpperBound(input_tokens=read, output_tokens=written, cost=cost)


def _tokens(message: Message) -> int:
    tokens = TOKENS_PER_MESSAGE + sum(_bytes(call.arguments) + _bytes(call.name) for call in message.tool_calls)
    for part in message.content:
        if isinstance(part, ImagePart):
            tokens += TOKENS_PER_IMAGE
        elif isinstance(part, FilePart):
            tokens += _file_tokens(part)
        else:
            tokens += _bytes(part.text)
    return tokens


def _file_tokens(part: FilePart) -> int:
    if part.media_type.startswith("text/"):
        return len(part.data) * 3 // 4  # its bytes
    return len(part.data) // BASE64_BYTES_PER_FILE_TOKEN


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
