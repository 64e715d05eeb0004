"""`docs/migrating.md` shows the programs in `examples/migrating` as they are, and counts their lines."""

from __future__ import annotations

import re

import pytest

from migrations import PAGE, PROGRAMS, changed_lines, diff, read_row

MOVES = {
    "LangGraph supervisor": ("supervisor_before", "supervisor_after"),
    "LangGraph conditional edges": ("edges_before", "edges_after"),
    "LangChain router chain": ("router_chain_before", "router_chain_after"),
    "LlamaIndex": ("router_engine_before", "router_engine_after"),
    "CrewAI, sequential": ("crew_sequential_before", "crew_after"),
    "CrewAI, hierarchical": ("crew_hierarchical_before", "crew_after"),
    "Agent Framework": ("group_chat_before", "group_chat_after"),
    "AutoGen": ("selector_before", "selector_after"),
    "OpenAI Agents SDK": ("handoffs_before", "handoffs_after"),
}
DIFF = re.compile(
    r"^\[Before\]\(\S+/(\w+)\.py\) and \[after\]\(\S+/(\w+)\.py\):\n\n```diff\n(.*?)\n```", re.MULTILINE | re.DOTALL
)


def test_every_program_is_shown() -> None:
    assert [found[:2] for found in DIFF.findall(PAGE.read_text())] == list(MOVES.values())
    assert {path.stem for path in PROGRAMS.glob("*.py")} == {name for pair in MOVES.values() for name in pair}


def test_the_diffs_are_those_of_the_programs() -> None:
    for before, after, shown in DIFF.findall(PAGE.read_text()):
        assert shown == diff(before, after), f"the diff of {before} and {after} should be:\n{diff(before, after)}"


def test_the_settings_are_those_of_the_server() -> None:
    settings, page = (PROGRAMS / "server.toml").read_text(), PAGE.read_text()
    assert f"```toml\n{settings}```" in page
    assert f"#settings-of-the-server), {len([line for line in settings.splitlines() if line])} lines." in page


@pytest.mark.parametrize("row", MOVES)
def test_the_table_counts_the_changed_lines(row: str) -> None:
    assert read_row(row).lines == changed_lines(*MOVES[row])
