"""The public names, pinned: a change here is a change for users."""

from __future__ import annotations

import subprocess
import sys

import rl_conductor

PUBLIC = {
    "MINI",
    "ULTRA",
    "Capabilities",
    "Card",
    "Completion",
    "Conductor",
    "ConductorError",
    "ConfigError",
    "DataRule",
    "Delta",
    "Event",
    "Flow",
    "DiscoveredPool",
    "LimitError",
    "Limits",
    "Message",
    "Model",
    "ModelError",
    "Planner",
    "Policy",
    "PolicyError",
    "Price",
    "Profile",
    "Request",
    "RunError",
    "Sampling",
    "ScriptedModel",
    "Step",
    "Tool",
    "Trace",
    "Usage",
    "Worker",
    "WorkerPool",
    "Workflow",
    "WorkflowError",
    "discover",
    "model",
}


def test_the_public_names_are_these_and_no_others() -> None:
    assert set(rl_conductor.__all__) == PUBLIC
    assert len(rl_conductor.__all__) == len(PUBLIC)


def test_every_public_name_is_there() -> None:
    for name in rl_conductor.__all__:
        assert getattr(rl_conductor, name) is not None
    assert dir(rl_conductor) == sorted(rl_conductor.__all__)


def test_importing_the_package_loads_no_vendors_library() -> None:
    heavy = ("openai", "anthropic", "google.genai", "torch", "transformers", "vllm", "xllamacpp", "tenacity", "httpx")
    program = f"import sys, rl_conductor; rl_conductor.Conductor; print([n for n in {heavy} if n in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"
