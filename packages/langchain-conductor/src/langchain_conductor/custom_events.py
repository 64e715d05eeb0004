"""Reports the progress of a run as custom data: LangChain's custom events and LangGraph's stream mode `custom`."""

from __future__ import annotations

import sys
from typing import Any

from rl_conductor.trace import Event, progress


def custom_data(event: Event) -> dict[str, Any] | None:
    """Converts `event` to the data of a custom event; `None` if it is reported in other ways, such as tokens."""
    data = progress(event)
    return None if data is None else data | {"type": f"conductor_{event.type}"}


def write_custom(data: dict[str, Any]) -> None:
    """Writes `data` to the stream mode `custom` of the surrounding graph; does nothing outside a graph."""
    if "langgraph" not in sys.modules:
        return
    # Imported here because LangGraph is an extra and slow to import; inside a graph it is already loaded.
    from langgraph.config import get_stream_writer  # noqa: PLC0415

    try:
        write = get_stream_writer()
    except (KeyError, RuntimeError):  # LangGraph's answer outside a graph
        return
    write(data)
