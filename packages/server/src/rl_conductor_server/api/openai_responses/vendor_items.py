"""Items of earlier responses about tools that are no functions. Pure."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args

from pydantic import ConfigDict

from rl_conductor.types import Message, ToolCall
from rl_conductor_server.api.content import tool_message
from rl_conductor_server.request_validation.parsing import Body

VendorItemType = Literal[
    "web_search_call",
    "file_search_call",
    "code_interpreter_call",
    "image_generation_call",
    "mcp_list_tools",
    "mcp_call",
    "mcp_approval_request",
    "mcp_approval_response",
    "tool_search_call",
    "tool_search_output",
    "computer_call",
    "computer_call_output",
    "local_shell_call",
    "local_shell_call_output",
    "shell_call",
    "shell_call_output",
    "apply_patch_call",
    "apply_patch_call_output",
    "compaction",
]
VENDOR_ITEM_TYPES: frozenset[str] = frozenset(get_args(VendorItemType))


class VendorItem(Body):
    """A call of a tool that only the vendor's models know, its result, or a summary that only they can read.

    What came of it is in the text after it.
    """

    model_config = ConfigDict(extra="ignore")

    type: VendorItemType


class CustomCall(Body):
    """A call of a tool with free text as input."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    def message(self) -> Message:
        arguments = json.dumps({"input": self.input}, ensure_ascii=False)
        return Message.assistant(tool_calls=[ToolCall(id=self.call_id, name=self.name, arguments=arguments)])


class CustomCallOutput(Body):
    """The result of such a call."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["custom_tool_call_output"]
    call_id: str
    output: str | tuple[dict[str, Any], ...]

    def message(self) -> Message:
        output = self.output
        texts = [output] if isinstance(output, str) else [str(part.get("text", "")) for part in output]
        return tool_message(self.call_id, "\n".join(texts))
