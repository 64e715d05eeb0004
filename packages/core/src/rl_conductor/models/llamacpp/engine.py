"""In-process llama.cpp engines: one for each combination of weights and options, shared by all models that use it.

Takes Chat Completions request bodies and returns chunks; does not depend on messages, prices or event loops. Each
engine has one thread for each parallel request; further requests wait in a queue. Loading holds the GIL
(0.5 s for 135M parameters, 1.1 s for 0.5B), because xllamacpp does not release it.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from rl_conductor.errors import ConfigError
from rl_conductor.models.in_process.sharing import SharedEngines

try:
    import xllamacpp  # type: ignore[import-untyped]
except ImportError as missing:
    raise ConfigError("llama.cpp models need xllamacpp: pip install 'rl-conductor[local]'") from missing

BATCH = 128
"""Prompt tokens per batch; a smaller batch cancels sooner, 2048 would be 5 % faster."""
PROMPT_CACHE_MIB = 256
"""Size of the prompt cache, for requests with a common prefix; the default of llama.cpp is 8 GiB."""


@dataclass(frozen=True)
class EngineSetup:
    """Weights and load options; models with equal setups share an engine."""

    weights: Path
    lora: Path | None
    context: int
    """Maximum tokens of prompt and reply together."""
    parallel: int
    threads: int
    name: str = ""
    """Engines of different names are separate."""


class Job(Protocol):
    """A request in an engine. Its methods are called on the engine's threads."""

    body: dict[str, Any]
    """Body of a streaming Chat Completions request."""

    @property
    def abandoned(self) -> bool:
        """Returns whether the caller has stopped waiting."""

    def on_chunk(self, chunk: dict[str, Any]) -> bool:
        """Handles a chunk of the reply; returns `True` to stop. Must not raise: xllamacpp ignores exceptions."""

    def on_end(self, error: Exception | None) -> None:
        """Handles the end of the reply; `error` is set if the request could not be started."""


class Engine:
    """Weights that are loaded for the first request and freed by `close`."""

    def __init__(self, setup: EngineSetup) -> None:
        self.setup = setup
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._load_lock = threading.Lock()
        self._server: Any = None
        self._closing = False
        # Daemon threads, because Python joins other threads before it runs the `atexit` hook that stops them.
        name = f"llama.cpp {setup.weights.name}"
        self._threads = [
            threading.Thread(target=self._process_jobs, name=name, daemon=True) for _ in range(setup.parallel)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> None:
        """Appends `job` to the queue."""
        self._jobs.put(job)

    def close(self) -> None:
        """Stops running jobs, fails waiting ones and frees the memory. Blocks for at most a batch of tokens."""
        self._closing = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        self._server = None  # its destructor waits for llama.cpp's own threads

    def _process_jobs(self) -> None:
        while (job := self._jobs.get()) is not None:
            error = None if job.abandoned or self._closing else self._run(job)
            with suppress(RuntimeError):  # the event loop of the caller is closed
                job.on_end(error)

    def _run(self, job: Job) -> Exception | None:
        try:
            self._get_server().handle_chat_completions(job.body, lambda chunk: self._closing or job.on_chunk(chunk))
        except Exception as error:  # passed to the caller's event loop
            return error
        return None

    def _get_server(self) -> Any:
        with self._load_lock:
            if self._server is None:
                self._server = _load(self.setup)
            return self._server


def _load(setup: EngineSetup) -> Any:
    with TemporaryDirectory(prefix="rl-conductor-") as folder:
        try:
            return xllamacpp.Server(_parameters(setup, Path(folder)))
        except RuntimeError as error:
            files = f"{setup.weights} with the adapter {setup.lora}" if setup.lora else str(setup.weights)
            raise ConfigError(
                f"llama.cpp can't load {files}: damaged, of a kind it does not know, or too large for the free memory"
            ) from error


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
        cpu.poll = 0  # let waiting threads sleep instead of spin
    # xllamacpp always opens an HTTP server, which we do not use: it gets a socket whose file is deleted right after.
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
    """Returns half of the usable cores, 1 to 8: llama.cpp slows down sharply if one of its threads has to wait.

    Measured on 2 cores with SmolLM2-135M, tokens a second: 1 thread 53, 2 threads 84; beside one busy process 53 and 2.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, min(8, min(usable, _cgroup_cores()) // 2))


def _cgroup_cores(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Returns the CPU limit of the container, in cores."""
    try:
        allowed, period = file.read_text().split()
        return int(allowed) // int(period)
    except (OSError, ValueError):  # no container, or no limit
        return sys.maxsize


engines = SharedEngines(Engine, key=lambda setup: setup)
"""All engines of this process."""
atexit.register(engines.close_all)
