"""In-process vLLM engines: one for each set of engine options, on its own event loop, shared by all models using it.

Requires vLLM.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import threading
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.engine.async_llm import AsyncLLM

from rl_conductor.errors import ModelError
from rl_conductor.models.in_process.chat_template import ChatTemplate
from rl_conductor.models.in_process.checkpoint import sees_images
from rl_conductor.models.in_process.sharing import SharedEngines

DEFAULTS: dict[str, Any] = {
    # With free white space, a weak model may write nothing else until its tokens are used up. The engine accepts this
    # option only with an explicit backend, and ignores it on requests.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
"""Default engine arguments."""


class Engine:
    """An `AsyncLLM` with its own event loop and thread. Call `start`, and use its result, on that loop only."""

    chat: ChatTemplate
    """Set by `start`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        """All methods except `close` must be called on this loop."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="rl-conductor-vllm", daemon=True)
        self._options = options
        self._llm: AsyncLLM | None = None
        self._loras: dict[str, LoRARequest] = {}
        self._thread.start()
        atexit.register(self.close)  # before vLLM's own hooks, which kill its processes

    def start(self, name: str) -> AsyncLLM:
        """Returns the running engine. The first call starts it and blocks the loop meanwhile; others wait."""
        if self._llm is None or self._llm.errored:
            self._shut_down()
            try:
                self._llm = llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._options))
                self.chat = ChatTemplate(llm.get_tokenizer(), parts=sees_images(llm.model_config.hf_config))
            except Exception as error:  # vLLM raises many types: unknown model, no device, too little memory
                raise ModelError(f"{name} can't be started: {error}", model=name) from error
        return self._llm

    def lora(self, folder: str | None) -> LoRARequest | None:
        """Returns the LoRA request for `folder`, with a unique number, by which vLLM identifies adapters."""
        if folder is None:
            return None
        return self._loras.setdefault(folder, LoRARequest(folder, len(self._loras) + 1, folder))

    def close(self) -> None:
        """Shuts the engine down, cancels the tasks on its loop and joins its thread."""
        atexit.unregister(self.close)
        asyncio.run_coroutine_threadsafe(self._stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _stop(self) -> None:
        self._shut_down()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()


engines = SharedEngines(Engine, key=lambda options: json.dumps(options, sort_keys=True, default=repr))
"""All engines of this process."""
