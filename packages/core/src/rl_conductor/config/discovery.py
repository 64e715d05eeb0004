"""What this machine offers: vendors' keys, a server on it, or the embedded models; and why each was chosen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from rl_conductor.errors import ConfigError
from rl_conductor.models import Model, model
from rl_conductor.models.endpoints import shown_address, usable_key
from rl_conductor.planning.planner import Planner
from rl_conductor.planning.router import Tiers
from rl_conductor.pool.pool import WorkerPool
from rl_conductor.pool.pool_file import PoolFile, read_pool_file
from rl_conductor.pool.worker import Worker
from rl_conductor.types import FREE, Card, Sampling
from rl_conductor.workflow.limits import PLAN_TOKENS, Limits
from rl_conductor.workflow.policy import Policy
from rl_conductor.workflow.workflow import AccessMode

POOL_VARIABLE = "RL_CONDUCTOR_POOL"
"""Names a pool file, which then goes before everything else that is found."""
MOST_SERVED = 7
"""Most models taken from one local server; the paper's pool has as many."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts whose models cost nothing, because the user runs them."""
PROBE_SECONDS = 0.5


@dataclass(frozen=True)
class Vendor:
    """A paid service: the variables that may hold its key, and two of its models."""

    keys: tuple[str, ...]
    strong: str
    fast: str


VENDORS = {
    "openai": Vendor(("OPENAI_API_KEY",), "gpt-6-sol", "gpt-6-luna"),
    "anthropic": Vendor(("ANTHROPIC_API_KEY",), "claude-sonnet-5-5", "claude-haiku-5-5"),
    "google": Vendor(("GEMINI_API_KEY", "GOOGLE_API_KEY"), "gemini-3.8-flash", "gemini-3.5-flash-lite"),
}
"""The models a key alone brings in (November 2026); a pool file names any others."""

SERVERS = {
    "http://127.0.0.1:8000/v1": "vllm",
    "http://127.0.0.1:8080/v1": "llama.cpp",
    "http://127.0.0.1:11434/v1": "compatible",
    "http://127.0.0.1:1234/v1": "compatible",
}
"""Where local servers listen by default (vLLM, llama.cpp, Ollama, LM Studio), and what they understand."""

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


@dataclass(frozen=True)
class Found:
    """A pool, who plans over it, and why these."""

    pool: WorkerPool
    planner: Planner
    reasons: tuple[str, ...]
    """In words, a line each: what was found and what was made of it."""
    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    access: AccessMode = "binary"
    """How plans say what a step reads."""
    tiers: Tiers | None = None
    embedded: bool = False
    """Nothing better was found, so tiny models in this process do everything."""


def discover(environ: Mapping[str, str] | None = None, *, pool_file: str | Path | None = None) -> Found:
    """The pool of this machine, from the first of: a pool file, vendors' keys, a local server, embedded models.

    Args:
        environ: the environment to look in; the process's own by default.
        pool_file: a pool file; else the one that `RL_CONDUCTOR_POOL` names.

    Raises:
        ConfigError: the pool file is wrong, or a library for what was found is missing.
    """
    environ = os.environ if environ is None else environ
    path = pool_file or environ.get(POOL_VARIABLE)
    if path:
        how = "named" if pool_file else f"named by {POOL_VARIABLE}"
        return from_file(read_pool_file(path), f"the pool file {str(path)!r} was {how}")
    return from_keys(environ) or from_server(environ) or embedded()


def from_file(content: PoolFile, reason: str) -> Found:
    """The pool of a file; without a planner in it, the first worker's model plans too."""
    pool = WorkerPool(content.build())
    tiers = None if content.tiers is None else Tiers.read(content.tiers)
    if (own := content.planner) is None:
        first = next(iter(pool.values()))
        planner = Planner.like(first)
        reasons = (reason, f"its first worker, {first.name!r}, also plans: {planner.model.name}")
        return Found(pool, planner, reasons, tiers=tiers)
    planner = Planner.of(own)
    reasons = (reason, f"its planner plans: {planner.model.name}")
    return Found(pool, planner, reasons, limits=Limits(steps=own.steps), access=own.access, tiers=tiers)


def from_keys(environ: Mapping[str, str]) -> Found | None:
    """A strong and a fast model of every vendor whose key is set; OpenAI's key may be for another server instead.

    Raises:
        ConfigError: no such vendor can be used; where another can, the reasons tell of it instead.
    """
    workers: list[Worker] = []
    reasons, left_out = [], []
    for provider, vendor in VENDORS.items():
        key = next((name for name in vendor.keys if environ.get(name, "").strip()), None)
        if key is None or (provider == "openai" and environ.get("OPENAI_BASE_URL")):
            continue
        try:
            workers += _two_of(provider, vendor, key=usable_key(key, environ[key]))
            reasons.append(f"{key} is set: {vendor.strong} and {vendor.fast}")
        except ConfigError as why:
            left_out.append(f"{key} is set, but can't be used: {why}")
    if left_out and not workers:
        raise ConfigError("; ".join(left_out))
    if not workers:
        return None
    reasons += [*left_out, f"the first strong model also plans: {workers[0].model.name}"]
    return Found(WorkerPool(workers), Planner.like(workers[0]), tuple(reasons))


def _two_of(provider: str, vendor: Vendor, *, key: str | None) -> list[Worker]:
    tags = frozenset({"external", provider})
    strengths = {vendor.strong: "strong generalist", vendor.fast: "fast and cheap generalist"}
    cards = [Card(name=name, strengths=good_at, tags=tags) for name, good_at in strengths.items()]
    return [Worker.of(card.name, model(f"{provider}:{card.name}", api_key=key), card=card) for card in cards]


def from_server(environ: Mapping[str, str]) -> Found | None:
    """The models of the server that `OPENAI_BASE_URL` names, or of the first that answers on this machine."""
    named = environ.get("OPENAI_BASE_URL")
    key = usable_key("OPENAI_API_KEY", environ.get("OPENAI_API_KEY")) if named else None
    addresses = {named: "compatible"} if named else SERVERS
    for address, dialect in addresses.items():
        names = served(address, key=key)
        if names:
            models = [_at(address, name, dialect, key) for name in names[:MOST_SERVED]]
            workers = [Worker.of(name, made) for name, made in zip(names, models, strict=False)]
            how = "OPENAI_BASE_URL names it" if named else "it answers on this machine"
            reason = f"a server at {shown_address(address)} ({how}): {', '.join(names[:MOST_SERVED])}"
            return Found(WorkerPool(workers), Planner(model=models[0]), (reason, f"{models[0].name} also plans"))
    if named:
        shown = shown_address(named)
        raise ConfigError(f"OPENAI_BASE_URL is {shown!r}, but no server there lists its models; start it or unset it")
    return None


def embedded() -> Found:
    """Tiny models in this process, for a machine that has nothing else."""
    sampling = Sampling(max_tokens=256, temperature=0.0)  # tiny models are least wrong when they are greedy
    workers = [
        Worker.of(name, where, card=Card(name=name, strengths=strengths), sampling=sampling)
        for name, (where, strengths) in EMBEDDED.items()
    ]
    pool = WorkerPool(workers)
    planner = Planner(model=pool["coder"].model, sampling=Sampling(max_tokens=PLAN_TOKENS, temperature=0.2, seed=1))
    reasons = (
        "no key, no server and no pool file was found: tiny embedded models plan and work",
        "the coder, the better of the two, always writes the answer; plans have at most 3 steps",
    )
    return Found(pool, planner, reasons, policy=Policy(final="coder"), limits=Limits(steps=3), embedded=True)


def _at(address: str, name: str, dialect: str, key: str | None) -> Model:
    price = FREE if urlsplit(address).hostname in LOOPBACK else None
    return model(f"openai:{name}", base_url=address, api_key=key, dialect=dialect, price=price)


def served(address: str, *, key: str | None = None) -> list[str]:
    """The models that a server lists; none when it is not there or speaks otherwise."""
    # Imported here because few need them: they are a tenth of this package's import time.
    from http.client import HTTPException  # noqa: PLC0415
    from urllib.request import Request, urlopen  # noqa: PLC0415

    try:
        asked = Request(f"{address.rstrip('/')}/models")  # noqa: S310
        if key:
            asked.add_unredirected_header("Authorization", f"Bearer {key}")
        with urlopen(asked, timeout=PROBE_SECONDS) as reply:  # noqa: S310
            return list(dict.fromkeys(str(one["id"]) for one in json.loads(reply.read())["data"]))
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return []
