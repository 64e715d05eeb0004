"""`Limits` of one request, and the `UpperBound` of a call, which is checked before the call is made. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, field_validator

from rl_conductor.types import DecimalInput, Dollars, FilePart, ImagePart, JsonFormat, Price, Request
from rl_conductor.types.value import MAX_DIGITS, UserValue
from rl_conductor.workflow.image_tokens import TOKENS_PER_SCALED_IMAGE, TOKENS_PER_WHOLE_IMAGE, max_image_tokens

TOKENS_PER_MESSAGE = 16
"""A generous estimate of the tokens that a chat template adds per message."""
BASE64_BYTES_PER_FILE_TOKEN = 4
"""An estimate for documents that are not plain text, such as PDFs: their size does not determine how much text and how
many page images a vendor extracts."""
BYTES_PER_TOKEN = 4
"""Mean of English text, with today's tokenizers."""
MAX_CHARS_PER_TOKEN = 6
"""More characters per token than ordinary text has with any tokenizer: a request that is longer than a model's context
by this estimate certainly does not fit."""
DEFAULT_OUTPUT_TOKENS = 4_096
"""Default limit of output tokens per call (paper: workers in training)."""
DEFAULT_REPLY_CHARS = 16 * 2**20
"""Default limit of the characters of one reply; the longest replies of today's models have about a million."""
OUTPUT_RETRY_FACTOR = 4
"""Factor by which a default `max_tokens` is raised after a reply that used it up on reasoning."""
PLAN_TOKENS = 1_024
"""Maximum tokens of a plan (paper, table of hyper-parameters)."""
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


@dataclass(frozen=True)
class UpperBound:
    """The maximum usage of one call."""

    input_tokens: int
    output_tokens: int
    cost: Decimal | None
    """US dollars; `None` when the price is unknown."""

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens


def raised_max_tokens(request: Request, context: int | None) -> int | None:
    """Returns a larger `max_tokens` for a request after a reply that used it up on reasoning.

    Args:
        request: the request, with `max_tokens`.
        context: the context of the model in tokens, if known.

    Returns:
        `OUTPUT_RETRY_FACTOR` times its `max_tokens`, or less if the context is too short; `None` without any room.
    """
    current = request.sampling.max_tokens
    if current is None:
        return None
    raised = OUTPUT_RETRY_FACTOR * current
    if context is not None:
        raised = min(raised, context - 2 * min_input_tokens(request))
    return raised if raised > current else None


def upper_bound(request: Request, price: Price | None) -> UpperBound:
    """Computes the maximum usage of `request`: a token is at least one byte, so the bytes bound the input tokens."""
    input_tokens = _text_bytes(request) + _other_tokens(request, unsized_image=TOKENS_PER_WHOLE_IMAGE)
    output_tokens = request.sampling.max_tokens or DEFAULT_OUTPUT_TOKENS
    cost = None if price is None else price.max_cost(input_tokens=input_tokens, output_tokens=output_tokens)
    return UpperBound(input_tokens=input_tokens, output_tokens=output_tokens, cost=cost)


def estimate_input_tokens(request: Request) -> int:
    """Estimates the input tokens of `request` for a typical tokenizer, at `BYTES_PER_TOKEN` bytes of text each.

    Images and files count with the maximum of the vendors; images by URL, whose size is unknown, as if scaled down.
    """
    other = _other_tokens(request, unsized_image=TOKENS_PER_SCALED_IMAGE)
    return -(-_text_bytes(request) // BYTES_PER_TOKEN) + other


def min_input_tokens(request: Request) -> int:
    """Estimates the minimum number of input tokens of `request`, by its text alone."""
    chars = sum([len(message.text) for message in request.messages])
    chars += sum([len(call.arguments) for message in request.messages for call in message.tool_calls])
    return chars // MAX_CHARS_PER_TOKEN


def _text_bytes(request: Request) -> int:
    """Counts the bytes of all text: messages, tool calls, tools and the schema of the reply."""
    count = 0
    for tool in request.tools:
        count += _bytes(tool.model_dump_json())
    if isinstance(request.response_format, JsonFormat):
        count += _bytes(request.response_format.model_dump_json())
    for message in request.messages:
        for call in message.tool_calls:
            count += _bytes(call.arguments) + _bytes(call.name)
        for part in message.content:
            if not isinstance(part, ImagePart | FilePart):
                count += _bytes(part.text)
    return count


def _other_tokens(request: Request, *, unsized_image: int) -> int:
    """Counts the tokens of images, files and the message format; `unsized_image` are those of an image by URL."""
    tokens = TOKENS_PER_MESSAGE * len(request.messages)
    for message in request.messages:
        for part in message.content:
            if isinstance(part, ImagePart):
                tokens += max_image_tokens(part, unknown=unsized_image)
            elif isinstance(part, FilePart):
                tokens += _file_tokens(part)
    return tokens


def _file_tokens(part: FilePart) -> int:
    if part.media_type.startswith("text/"):
        return len(part.data) * 3 // 4  # its bytes
    return len(part.data) // BASE64_BYTES_PER_FILE_TOKEN


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
