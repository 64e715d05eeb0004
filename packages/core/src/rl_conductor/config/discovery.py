"""Discovers a pool and a planner: from a pool file, vendors' API keys, a local server, or the embedded models."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_conductor.config.discovered_pool import DiscoveredPool, from_file
from rl_conductor.config.learned_folder import CONDUCTOR_FILE, load_folder
from rl_conductor.config.server_models import list_server_models, read_server_models
from rl_conductor.errors import ConfigError
from rl_conductor.models import model
from rl_conductor.models.endpoints import ENDPOINTS, usable_key
from rl_conductor.models.urls import redact_url
from rl_conductor.planning.planner import Planner
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.types import FREE, Card, Price, Sampling
from rl_conductor.workflow.limits import Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.request_tokens import PLAN_TOKENS

POOL_VARIABLE = "RL_CONDUCTOR_POOL"
"""The environment variable with the path of a pool file, which takes precedence over everything else."""
MAX_SERVER_MODELS = 7
"""Maximum number of models used from one server; the paper's pool has the same size."""


@dataclass(frozen=True)
class Vendor:
    """Two models of a paid API."""

    strong: str
    fast: str


VENDORS = {
    "openai": Vendor("gpt-6-sol", "gpt-6-luna"),
    "anthropic": Vendor("claude-sonnet-5-5", "claude-haiku-5-5"),
    "google": Vendor("gemini-3.8-flash", "gemini-3.5-flash-lite"),
}
"""The models that are used when only an API key is set (as of November 2026); a pool file can use any other."""

SERVERS = {
    "http://127.0.0.1:8000/v1": "vllm",
    "http://127.0.0.1:8080/v1": "llama.cpp",
    "http://127.0.0.1:11434/v1": "compatible",
    "http://127.0.0.1:1234/v1": "compatible",
}
"""Default addresses of local servers (vLLM, llama.cpp, Ollama, LM Studio), with the dialects of their APIs."""

EMBEDDED = {
    "coder": (
        "embedded:qwen2.5-coder-0.5b",
        "a small coder: arithmetic, step-by-step reasoning, code, exact formats, facts",
    ),
    "writer": (
        "embedded:smollm2-135m",
        "a tiny, quick writer: one or two plain English sentences; poor at facts and sums",
    ),
}


def discover(environ: Mapping[str, str] | None = None, *, pool_file: str | Path | None = None) -> DiscoveredPool:
    """Discovers a pool from the first of: a pool file, vendors' API keys, a local server, the embedded models.

    Args:
        environ: the environment variables; by default those of the process.
        pool_file: the path of a pool file, or the folder of a learned conductor; by default the value of
            `RL_CONDUCTOR_POOL`.

    Raises:
        ConfigError: the pool file is invalid, or a required library is not installed.
    """
    environ = os.environ if environ is None else environ
    path = pool_file or environ.get(POOL_VARIABLE)
    if path:
        if (Path(path) / CONDUCTOR_FILE).is_file():
            return load_folder(path)
        source = "" if pool_file else f" (from {POOL_VARIABLE})"
        return from_file(read_pool_file(path), f"using the pool file {str(path)!r}{source}")
    return from_keys(environ) or from_server(environ) or embedded()


def from_models(names: Sequence[str]) -> DiscoveredPool:
    """Builds a pool of models such as `openai:gpt-6-sol`; the first one that can plan is also the planner.

    Raises:
        ConfigError: a name is unknown, a required library or key is missing, or no model can plan.
    """
    short_names = [name.partition(":")[2] or name for name in names]
    worker_names = short_names if len(set(short_names)) == len(names) else names
    pool = WorkerPool(Worker.of(worker, name) for worker, name in zip(worker_names, names, strict=True))
    planner = Planner.from_pool(pool)
    reasons = (f"using {', '.join(names)}", f"{planner.model.name} is also the planner")
    return DiscoveredPool(planner=planner, pool=pool, reasons=reasons)


def from_keys(environ: Mapping[str, str]) -> DiscoveredPool | None:
    """Builds a pool of a strong and a fast model of every vendor with an API key; `None` if no key is set.

    OpenAI's key is ignored here if `OPENAI_BASE_URL` is set, because it then belongs to that server.

    Raises:
        ConfigError: keys are set, but none of them can be used.
    """
    workers: list[Worker] = []
    reasons, problems = [], []
    for provider, vendor in VENDORS.items():
        key = next((name for name in ENDPOINTS[provider].key_variables if environ.get(name, "").strip()), None)
        if key is None or (provider == "openai" and environ.get("OPENAI_BASE_URL")):
            continue
        try:
            workers += _vendor_workers(provider, vendor, key=usable_key(key, environ[key]))
            reasons.append(f"{key} is set: {vendor.strong} and {vendor.fast}")
        except ConfigError as error:
            problems.append(f"{key} is set, but can't be used: {error}")
    if problems and not workers:
        raise ConfigError("; ".join(problems))
    if not workers:
        return None
    strong, fast = workers[:2]
    reasons += [*problems, f"the first strong model is also the planner: {strong.model.name}"]
    reasons.append(f"the profile mini plans with the first fast model: {fast.model.name}")
    return DiscoveredPool(
        planner=Planner.from_worker(strong),
        pool=WorkerPool(workers),
        reasons=tuple(reasons),
        economy_planner=Planner.from_worker(fast),
    )


def _vendor_workers(provider: str, vendor: Vendor, *, key: str | None) -> list[Worker]:
    tags = frozenset({"external", provider})
    strengths = {vendor.strong: "strong generalist", vendor.fast: "fast and cheap generalist"}
    cards = [Card(name=name, strengths=text, tags=tags) for name, text in strengths.items()]
    return [Worker.of(card.name, model(f"{provider}:{card.name}", api_key=key), card=card) for card in cards]


def from_server(environ: Mapping[str, str]) -> DiscoveredPool | None:
    """Builds a pool of the models of the server at `OPENAI_BASE_URL`, or of the first local server that responds.

    Models of a local server are free. The price of those at `OPENAI_BASE_URL` is unknown, because even on this machine
    the server may be a gateway to a paid service.

    Raises:
        ConfigError: `OPENAI_BASE_URL` is set, but its server lists no models; the message says why.
    """
    base_url = environ.get("OPENAI_BASE_URL")
    if base_url:
        key = usable_key("OPENAI_API_KEY", environ.get("OPENAI_API_KEY"))
        return _server_pool(base_url, "compatible", _named_models(base_url, key), "from OPENAI_BASE_URL", key=key)
    for address, dialect in SERVERS.items():
        names = list_server_models(address)
        if names:
            return _server_pool(address, dialect, names, "found on this machine", price=FREE)
    return None


def _named_models(base_url: str, key: str | None) -> list[str]:
    try:
        return read_server_models(base_url, key=key)
    except ConfigError as error:
        raise ConfigError(
            f"OPENAI_BASE_URL is {redact_url(base_url)!r}, but no server there lists its models: {error}, or unset "
            "OPENAI_BASE_URL"
        ) from None


def _server_pool(
    address: str,
    dialect: str,
    names: Sequence[str],
    source: str,
    *,
    key: str | None = None,
    price: Price | None = None,
) -> DiscoveredPool:
    names = names[:MAX_SERVER_MODELS]
    models = [model(f"openai:{name}", base_url=address, api_key=key, dialect=dialect, price=price) for name in names]
    pool = WorkerPool(Worker.of(name, server_model) for name, server_model in zip(names, models, strict=True))
    planner = Planner.from_pool(pool)
    reason = f"using the server at {redact_url(address)} ({source}): {', '.join(names)}"
    reasons = (reason, f"{planner.model.name} is also the planner")
    return DiscoveredPool(planner=planner, pool=pool, reasons=reasons)


def embedded() -> DiscoveredPool:
    """Builds the pool of the tiny models that run inside this process.

    Raises:
        ConfigError: the libraries of these models are not installed.
    """
    sampling = Sampling(max_tokens=256, temperature=0.0)  # tiny models are most accurate with greedy decoding
    try:
        workers = [
            Worker.of(name, model_name, card=Card(name=name, strengths=strengths), sampling=sampling)
            for name, (model_name, strengths) in EMBEDDED.items()
        ]
    except ConfigError as missing:
        keys = ", ".join(ENDPOINTS[provider].key_variables[0] for provider in VENDORS)
        raise ConfigError(
            "no model is available: found no API key, no local server and no pool file, and the built-in models are "
            f"not installed. Set one of {keys}, start a server (Ollama, vLLM, llama.cpp, LM Studio), pass a pool file, "
            "or run: pip install 'rl-conductor[local]'"
        ) from missing
    pool = WorkerPool(workers)
    planner = Planner(model=pool["coder"].model, sampling=Sampling(max_tokens=PLAN_TOKENS, temperature=0.2, seed=1))
    reasons = (
        "found no API key, server or pool file: using the built-in tiny models",
        "the coder, the better of the two, always writes the answer; plans have at most 3 steps",
    )
    return DiscoveredPool(
        planner=planner,
        pool=pool,
        policy=Policy(final="coder"),
        limits=Limits(steps=3),
        reasons=reasons,
        embedded=True,
    )
