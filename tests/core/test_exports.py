"""The public names, pinned: a change here is a change for users."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

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
    "PlanExample",
    "Planner",
    "Policy",
    "PolicyError",
    "Price",
    "Profile",
    "Request",
    "RunError",
    "Sampling",
    "ScriptedModel",
    "SharedBudget",
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
    heavy = ("openai", "anthropic", "google.auth", "torch", "transformers", "vllm", "xllamacpp", "tenacity", "httpx")
    program = f"import sys, rl_conductor; rl_conductor.Conductor; print([n for n in {heavy} if n in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert loaded.stdout == "[]\n"


DOCUMENTED = ("", ".integration", ".models", ".plan_text", ".pool", ".trace", ".types", ".workflow")


@pytest.mark.parametrize("package", [f"rl_conductor{name}" for name in DOCUMENTED])
def test_every_public_function_and_class_has_a_docstring_that_says_something(package: str) -> None:
    module = import_module(package)
    public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    for thing in (getattr(module, name) for name in public):
        if callable(thing) and str(getattr(thing, "__module__", "")).startswith("rl_conductor"):
            assert len((thing.__doc__ or "").split()) > 3, f"{package}: {thing}"


BUILT_AT_IMPORT = """
from rl_conductor import Conductor
from rl_conductor.types.value import Value

def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))

print(sorted(kind.__name__ for kind in subclasses(Value) - {Value} if kind.__pydantic_complete__))
"""


def test_importing_builds_no_validator() -> None:
    """Building those of a run's values takes as long as the import itself."""
    printed = subprocess.run([sys.executable, "-c", BUILT_AT_IMPORT], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "[]"
