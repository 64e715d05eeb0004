"""Finds the LLMs that an agent, an engine, a workflow or a function holds.

LlamaIndex gives no way to refuse their calls before they are made. Conductors report and limit their calls themselves,
so the LLMs of their workers are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.chat_engine.types import BaseChatEngine
from llama_index.core.llms import LLM
from llama_index.core.workflow import Workflow

from rl_conductor.integration import instances_in

from .nested_conductor import ConductorHost

HOLDERS = (LLM, BaseQueryEngine, BaseChatEngine, Workflow)
"""The kinds of global variables that are searched, which tools, functions and steps of workflows name."""


def holds_conductors_only(source: object) -> bool:
    """Whether an object holds LLMs, all of which are conductors, so that it costs nothing but their calls."""
    llms = list(_llms_in(source))
    return bool(llms) and all(map(_is_conductor, llms))


def holds_llm(source: object) -> bool:
    """Whether an object holds an LLM of any kind."""
    return any(True for _ in _llms_in(source))


def holds_other_llms(source: object) -> bool:
    """Whether an object holds an LLM that is not a conductor."""
    return not all(map(_is_conductor, _llms_in(source)))


def _llms_in(source: object) -> Iterator[LLM]:
    root = (source, _steps(source)) if isinstance(source, Workflow) else source
    return instances_in(root, LLM, global_kinds=HOLDERS, is_opaque=_is_conductor)


def _is_conductor(part: object) -> bool:
    return isinstance(part, LLM) and isinstance(part, ConductorHost)


def _steps(workflow: Workflow) -> list[FunctionType]:
    """Returns the methods of a user's workflow."""
    classes = [cls for cls in type(workflow).__mro__ if not cls.__module__.startswith(("llama_index.", "workflows."))]
    return [value for cls in classes for value in vars(cls).values() if isinstance(value, FunctionType)]
