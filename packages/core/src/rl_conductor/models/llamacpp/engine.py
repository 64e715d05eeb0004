"""llama.cpp engines in this process: one for each way of loading a weights file, shared by all who ask for the same.

Requests go in as bodies of the Chat Completions protocol and chunks come out; nothing here knows messages, prices
or event loops. Each engine has as many threads as it decodes requests at once; further requests wait in a queue.
Loading holds Python's interpreter lock (0.5 s for 135M parameters, 1.1 s for 0.5B): xllamacpp does not release it.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from rl_conductor.errors import ConfigError

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as missing:
    raise ConfigError("llama.cpp models need xllamacpp: pip install 'rl-conductor[local]'") from missing

BATCH = 128
"""Prompt tokens read at a time, and so how soon a prompt is given up; 2048 are read 5 % faster."""
PROMPT_CACHE_MIB = 256
"""Prompts kept for requests that begin alike, such as a planner's; llama.cpp itself would take up to 8 GiB."""


@dataclass(frozen=True)
class EngineSetup:
    """How weights are loaded."""

    weights: Path
    lora: Path | None
    context: int
    """Most tokens of one request, reply included."""
    parallel: int
    threads: int


class Job(Protocol):
    """A request on its way through an engine. All its methods are called on the engine's threads."""

    body: dict[str, Any]
    """A streaming request for a chat completion."""

    @property
    def abandoned(self) -> bool:
        """Nobody waits for it any more."""

    def take(self, chunk: dict[str, Any]) -> bool:
        """Use a chunk of the reply; true stops the generation. Raises nothing: xllamacpp would swallow it."""

    def end(self, failed: Exception | None) -> None:
        """There are no more chunks; `failed` is why it never began, if it did not."""


class Engine:
    """Weights that are loaded for the first request and stay in memory until `close`."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._loading = threading.Lock()
        self._server: Any = None
        self._closing = False
        # Daemons, because Python waits for other threads before it calls `atexit`, and so before these could be told.
        name = f"llama.cpp {setup.weights.name}"
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for _ in range(setup.parallel)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Put `job` at the end of the queue."""
        self._jobs.put(job)

    def close(self) -> None:
        """Stop what is running, fail what is waiting, and free the memory. Blocks for at most a batch of tokens."""
        self._closing = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._server = None  # its destructor waits for llama.cpp's own threads

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            failed = None if job.abandoned or self._closing else self._run(job)
            with suppress(RuntimeError):  # its event loop was closed: nobody is left to be told
                job.end(failed)

    def _run(self, job: Job) -> Exception | None:
        try:
            self._loaded().handle_chat_completions(job.body, lambda chunk: self._closing or job.take(chunk))
        except Exception as failed:  # it leaves this thread as data
            return failed
        return None

    def _loaded(self) -> Any:
        with self._loading:
            if self._server is None:
                self._server = _load(self.setup)
            return self._server


def _load(setup: EngineSetup) -> Any:
    with TemporaryDirectory(prefix="rl-conductor-") as folder:
        try:
            return xllamacpp.Server(_parameters(setup, Path(folder)))
        except RuntimeError as failed:
            files = f"{setup.weights} with the adapter {setup.lora}" if setup.lora else str(setup.weights)
            raise ConfigError(
                f"llama.cpp can't load {files}: damaged, of a kind it does not know, or too large for the free memory"
            ) from failed


def _parameters(setup: EngineSetup, folder: Path) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = str(setup.weights)
    params.n_ctx = setup.context * setup.parallel
    params.n_parallel = setup.parallel
    params.n_batch = params.n_ubatch = BATCH
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.warmup = False
    params.verbosity = -1
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = setup.threads
        cpu.poll = 0  # waiting threads sleep; spinning ones take the cores from whoever else is busy
    # xllamacpp always opens its HTTP server, which we never use: it gets a socket whose file is deleted right after.
    params.api_keys = [secrets.token_urlsafe()]
    params.n_threads_http = 1
    if os.name == "posix":
        params.hostnames = [str(folder / "unused.sock")]
    if setup.lora is not None:
        adapter = xllamacpp.CommonAdapterLoraInfo()
        adapter.path, adapter.scale = str(setup.lora), 1.0
        params.lora_adapters = [adapter]
    return params


def default_threads() -> int:
    """Half of the cores that this process may use, 1 to 8: llama.cpp collapses when one of its threads has to wait.

    Measured on 2 cores with SmolLM2-135M, tokens a second: 1 thread 53, 2 threads 84; beside one busy process 53 and 2.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(8, min(usable, _quota()) // 2))


def _quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Cores that a container may use."""
    try:
        allowed, period = file.read_text().split()
        return int(allowed) // int(period)
    except (OSError, ValueError):  # no container, or one without a limit
        return sys.maxsize


# ------------------------------------------------------------------------------------------ sharing

_engines: dict[EngineSetup, Engine] = {}
_users: Counter[EngineSetup] = Counter()
_sharing = threading.Lock()


def lease(setup: EngineSetup) -> Engine:
    """The engine of `setup`, to be given back with `release`."""
    with _sharing:
        _users[setup] += 1
        if setup not in _engines:
            _engines[setup] = Engine(setup)
        return _engines[setup]


def release(engine: Engine) -> None:
    """Give a leased engine back; the last one closes it, which blocks."""
    with _sharing:
        _users[engine.setup] -= 1
        if _users[engine.setup]:
            return
        del _engines[engine.setup], _users[engine.setup]
    engine.close()


@atexit.register
def _close_all() -> None:
    with _sharing:
        engines = list(_engines.values())
        _engines.clear()
        _users.clear()
    for engine in engines:
        engine.close()
