"""Estimates the tokens of a request: an upper bound to reserve for its call, the usual number, and a minimum. Pure.

Also the default limits of tokens in replies, which are part of the upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from rl_conductor.types import FilePart, ImagePart, JsonFormat, Price, Request
from rl_conductor.workflow.image_tokens import TOKENS_PER_SCALED_IMAGE, TOKENS_PER_WHOLE_IMAGE, max_image_tokens
from rl_conductor.workflow.pdf_tokens import MAX_PDF_TOKENS, MAX_TEXT_BYTES, max_pdf_tokens

TOKENS_PER_MESSAGE = 16
"""A generous estimate of the tokens that a chat template adds per message."""
BASE64_BYTES_PER_FILE_TOKEN = 4
"""An estimate for documents that are neither plain text nor PDFs, which hardly any vendor reads."""
MAX_PDF_TEXT_BYTES = 2**23
"""The size of decompressed streams that are looked through in all PDFs of a request, so that many take no long time."""
BYTES_PER_TOKEN = 4
"""Mean of English text, with today's tokenizers."""
MAX_CHARS_PER_TOKEN = 6
"""More characters per token than ordinary text has with any tokenizer: a request that is longer than a model's context
by this estimate certainly does not fit."""
DEFAULT_OUTPUT_TOKENS = 4_096
"""Default limit of output tokens per call (paper: workers in training)."""
OUTPUT_RETRY_FACTOR = 4
"""Factor by which a default `max_tokens` is raised after a reply that used it up on reasoning."""
PLAN_TOKENS = 1_024
"""Maximum tokens of a plan (paper, table of hyper-parameters)."""


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
    other = _other_tokens(request, unsized_image=TOKENS_PER_WHOLE_IMAGE, unread_pdf=MAX_PDF_TOKENS)
    input_tokens = _text_bytes(request) + other
    output_tokens = request.sampling.max_tokens or DEFAULT_OUTPUT_TOKENS
    cost = None if price is None else price.max_cost(input_tokens=input_tokens, output_tokens=output_tokens)
    return UpperBound(input_tokens=input_tokens, output_tokens=output_tokens, cost=cost)


def estimate_input_tokens(request: Request) -> int:
    """Estimates the input tokens of `request` for a typical tokenizer, at `BYTES_PER_TOKEN` bytes of text each.

    Images and files count with the maximum of the vendors; images by URL, whose size is unknown, as if scaled down, and
    PDFs that can't be looked through by their size.
    """
    other = _other_tokens(request, unsized_image=TOKENS_PER_SCALED_IMAGE, unread_pdf=None)
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


def _other_tokens(request: Request, *, unsized_image: int, unread_pdf: int | None) -> int:
    """Counts the tokens of images, files and the message format.

    Args:
        request: the request.
        unsized_image: the tokens of an image by URL.
        unread_pdf: the tokens of a PDF that can't be looked through; `None` estimates them by its size.
    """
    tokens = TOKENS_PER_MESSAGE * len(request.messages)
    files: list[FilePart] = []
    for message in request.messages:
        for part in message.content:
            if isinstance(part, ImagePart):
                tokens += max_image_tokens(part, unknown=unsized_image)
            elif isinstance(part, FilePart):
                files.append(part)
    room = min(MAX_TEXT_BYTES, MAX_PDF_TEXT_BYTES // max(len(files), 1))
    return tokens + sum([_file_tokens(part, unread_pdf, room) for part in files])


def _file_tokens(part: FilePart, unread_pdf: int | None, room: int) -> int:
    if part.media_type.startswith("text/"):
        return len(part.data) * 3 // 4  # its bytes
    by_size = len(part.data) // BASE64_BYTES_PER_FILE_TOKEN
    if part.media_type != "application/pdf":
        return by_size
    unknown = by_size if unread_pdf is None else unread_pdf
    tokens = max_pdf_tokens(part.data, unknown=unknown, room=room)
    return by_size if tokens is None else tokens


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
