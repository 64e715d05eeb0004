"""A harness that makes a single call to the policy: a Conductor writes its plan in one turn, without tools."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from typing_extensions import override
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult


class OneCallConfig(vf.HarnessConfig):  # type: ignore[misc, unused-ignore]
    """The options of `OneCall`, which adds none to the base class."""


class OneCall(vf.Harness[OneCallConfig]):  # type: ignore[misc, unused-ignore]
    """Calls the policy from this process instead of from a program in the rollout's runtime."""

    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    @override
    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        """Sends the task's messages; the endpoint adds sampling options and records the reply in the trace."""
        system, turns = self.resolve_prompt(data)
        messages: list[Any] = [{"role": "system", "content": system}] if system else []
        messages += [message_to_wire(turn) for turn in turns]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            reply = await client.chat.completions.create(model=ctx.model, messages=messages)
        return ProgramResult(exit_code=0, stdout=reply.choices[0].message.content or "", stderr="")
