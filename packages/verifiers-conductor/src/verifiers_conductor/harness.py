"""One call to the policy and nothing else: a Conductor writes its plan in a single turn, without tools."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI
from typing_extensions import override
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult


class OneCallConfig(vf.HarnessConfig):  # type: ignore[misc, unused-ignore]
    """It has no options of its own."""


class OneCall(vf.Harness[OneCallConfig]):  # type: ignore[misc, unused-ignore]
    """Asks from this process; the program that `null` starts for each rollout has nothing to do here."""

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
        """Send the task's messages; the endpoint adds sampling and records the reply on the trace."""
        system, turns = self.resolve_prompt(data)
        told: list[Any] = [{"role": "system", "content": system}] if system else []
        told += [message_to_wire(turn) for turn in turns]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret, max_retries=0) as client:
            reply = await client.chat.completions.create(model=ctx.model, messages=told)
        return ProgramResult(exit_code=0, stdout=reply.choices[0].message.content or "", stderr="")
