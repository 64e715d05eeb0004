"""Tools that Anthropic defines: those that it runs itself are ignored, those that the client runs are refused. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import ConfigDict

from rl_conductor_server.api.anthropic_messages.documents import Block
from rl_conductor_server.request_validation.markers import tool_type

VERSION = r"(_\d{8})?"
RUN_BY_VENDOR = re.compile(rf"(web_search|web_fetch|code_execution|tool_search_tool_\w+|advisor|mcp_toolset){VERSION}")
RUN_BY_CLIENT = re.compile(rf"(bash|text_editor|memory|computer|computer_toolset|browser_toolset){VERSION}")
REFUSAL = (
    "is a tool whose parameters only Anthropic's models know; describe it as one of type 'custom', "
    "with name, description and input_schema"
)

ToolType = Annotated[Literal["custom"], tool_type("custom", ignored=RUN_BY_VENDOR, refused={RUN_BY_CLIENT: REFUSAL})]
"""The type of a tool that workers of all vendors can call."""


class VendorToolBlock(Block):
    """A call or a result of a tool that ran at the vendor, for an earlier response; the text there has the outcome."""

    model_config = ConfigDict(extra="ignore")

    type: Literal[
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "advisor_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "container_upload",
    ]


class ToolReference(Block):
    """A tool that a search for tools has found; all tools are offered anyway."""

    model_config = ConfigDict(extra="ignore")

    type: Literal["tool_reference"]

    def parts(self) -> tuple[Any, ...]:
        return ()
