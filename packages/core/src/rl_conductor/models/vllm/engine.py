"""vLLM engines of this process: one for each set of engine options, on an event loop of its own, shared by its users.

It needs vLLM; `vllm` is the adapter around it.
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
from rl_conductor.models.transformers.chat_template import ChatTemplate
from rl_conductor.models.transformers.checkpoint import sees_images

DEFAULTS: dict[str, Any] = {
    # Where blanks are free, a weak model writes blanks until its tokens are used up. The engine takes this switch
    # only beside a named backend, and ignores the one on a request.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
"""Engine arguments unless the user gives others."""


class Engine:
    """One `AsyncLLM` on an event loop and thread of its own. Call `started` and use what it returns only there."""

    chat: ChatTemplate
    """Set by `started`."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.users = 0
        self.loop = asyncio.new_event_loop()
        """Where everything but `close` has to happen."""
        self._thread = threading.Thread(target=self.loop.run_forever, name="rl-conductor-vllm", daemon=True)
        self._options = options
        self._llm: AsyncLLM | None = None
        self._loras: dict[str, LoRARequest] = {}
        self._thread.start()
        atexit.register(self.close)  # before vLLM's own hooks, which tear its processes from under it

    def started(self, name: str) -> AsyncLLM:
        """The engine. The first call starts it, for which it keeps its loop busy: others queue up behind it."""
        if self._llm is None or self._llm.errored:
            self._shut_down()
            try:
                self._llm = llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._options))
                self.chat = ChatTemplate(llm.get_tokenizer(), parts=sees_images(llm.model_config.hf_config))
            except Exception as failed:  # vLLM raises many kinds: no such model, no device, too little memory
                raise ModelError(f"{name} can't be started: {failed}", model=name) from failed
        return self._llm

    def lora(self, folder: str | None) -> LoRARequest | None:
        """The request for the adapter in `folder`. vLLM tells adapters apart by this number alone."""
        if folder is None:
            return None
        return self._loras.setdefault(folder, LoRARequest(folder, len(self._loras) + 1, folder))

    def close(self) -> None:
        """Shut the engine down, end what still runs on its loop, and end its thread."""
        atexit.unregister(self.close)
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        self._shut_down()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _shut_down(self) -> None:
        llm, self._llm = self._llm, None
        if llm is not None:
            llm.shutdown()


_engines: dict[str, Engine] = {}
_engines_lock = threading.Lock()


def lease(options: dict[str, Any]) -> Engine:
    """The process's one engine for `options`, with one user more."""
    with _engines_lock:
        key = json.dumps(options, sort_keys=True, default=repr)
        if key not in _engines:
            _engines[key] = Engine(options)
        _engines[key].users += 1
        return _engines[key]


def release(engine: Engine) -> None:
    """One user less; without users it is closed."""
    with _engines_lock:
        engine.users -= 1
        if engine.users:
            return
        for key in [key for key, known in _engines.items() if known is engine]:
            del _engines[key]
    engine.close()
