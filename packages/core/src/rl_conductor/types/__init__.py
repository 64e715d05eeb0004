"""The data model shared by all packages: messages, requests, completions, usage, prices and worker cards.

Pure data: nothing here calls a model, reads a clock or touches a file. Equal content is equal.
"""

from rl_conductor.types.cards import Card, Roster, Wording
from rl_conductor.types.completions import Completion, Delta, FinishReason
from rl_conductor.types.messages import (
    ContentPart,
    Continuation,
    FilePart,
    ImageDetail,
    ImagePart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCall,
    last_user_index,
    prompt_in,
)
from rl_conductor.types.prices import FREE, Price, PriceTier
from rl_conductor.types.requests import Effort, Grammar, JsonFormat, Request, ResponseFormat, Sampling, Tool
from rl_conductor.types.usage import Usage, total
from rl_conductor.types.value import DecimalInput, Dollars, Names, Text, Value

__all__ = [
    "FREE",
    "Card",
    "Completion",
    "ContentPart",
    "Continuation",
    "DecimalInput",
    "Delta",
    "Dollars",
    "Effort",
    "FilePart",
    "FinishReason",
    "Grammar",
    "ImageDetail",
    "ImagePart",
    "JsonFormat",
    "Message",
    "Names",
    "Price",
    "PriceTier",
    "ReasoningPart",
    "Request",
    "ResponseFormat",
    "Roster",
    "Sampling",
    "Text",
    "TextPart",
    "Tool",
    "ToolCall",
    "Usage",
    "Value",
    "Wording",
    "last_user_index",
    "prompt_in",
    "total",
]
