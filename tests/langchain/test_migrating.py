"""The programs of `docs/migrating.md` that run in this environment; the others are in `tests/with_frameworks`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from migrations import REPLY, ScriptedVendor, check_row, measure


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedVendor]:
    """A vendor that the environment names as OpenAI."""
    with ScriptedVendor.running() as service:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{service.url}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-loopback")
        yield service


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of langgraph-supervisor
@pytest.mark.parametrize(
    ("row", "before", "after", "team"),
    [
        ("LangGraph supervisor", "supervisor_before", "supervisor_after", ("researcher", "writer")),
        ("LangGraph conditional edges", "edges_before", "edges_after", ("researcher", "writer")),
        ("LangChain router chain", "router_chain_before", "router_chain_after", ("advice",)),
    ],
)
def test_a_program_moves(vendor: ScriptedVendor, row: str, before: str, after: str, team: tuple[str, ...]) -> None:
    first, second = measure(vendor, before, team), measure(vendor, after, team)
    assert (first.output.strip(), second.output.strip()) == (REPLY, REPLY)
    check_row(row, first, second)
