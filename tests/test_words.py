"""Names and docstrings in the packages use the terms of the field; part of `./check lint`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "packages"

PARTICIPLES = """told known made found held said given kept wanted asked done begun shown brought meant taken heard
    beside around drawn written most least answered spent named chosen left"""
"""Words that describe the history of a value instead of the value."""
BANNED_NAMES = frozenset(PARTICIPLES.split())
PUBLIC_NAMES = {
    "openai_chat/adapter.py": {"DONE"},
    "rl_conductor/errors.py": {"left"},
    "store/audit.py": {"answered", "shown"},
}
"""Fields of serialised formats and of the public API, which keep their names."""
BANNED_OPENING = re.compile(r"(what|whatever|who|whoever|whom|whose|where|how|that)\b", re.IGNORECASE)


def modules() -> list[Path]:
    return sorted(SOURCES.glob("*/src/**/*.py"))


def bindings(tree: ast.AST) -> list[tuple[int, str]]:
    """Lists the names that a module binds, with their lines."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.append((node.lineno, node.id))
        elif isinstance(node, ast.arg):
            names.append((node.lineno, node.arg))
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append((node.lineno, node.name))
    return names


def findings(source: str, allowed: set[str]) -> list[str]:
    """Describes each banned name and each docstring that begins with a relative pronoun."""
    tree = ast.parse(source)
    problems = [
        f"{line}: rename {name!r} to what the value is"
        for line, name in bindings(tree)
        if name.strip("_").lower() in BANNED_NAMES and name not in allowed
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first_line = (ast.get_docstring(node) or "").split("\n")[0]
            if BANNED_OPENING.match(first_line):
                problems.append(f"{getattr(node, 'lineno', 1)}: begin the docstring with a verb or noun: {first_line}")
    return problems


def test_names_and_docstrings_use_plain_words() -> None:
    problems = [
        f"{module.relative_to(SOURCES)}:{problem}"
        for module in modules()
        for problem in findings(
            module.read_text(encoding="utf-8"), PUBLIC_NAMES.get("/".join(module.parts[-2:]), set())
        )
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("told = 1", 1),
        ("def f(_held): ...", 1),
        ("class Asked: ...", 1),
        ("for known in (): ...", 1),
        ('def f():\n    """Who may answer."""', 1),
        ('"""Whoever answers."""', 1),
        ('def f():\n    """Returns what was found."""', 0),
        ("budget = knownness = 1", 0),
    ],
)
def test_banned_words_are_found(source: str, count: int) -> None:
    assert len(findings(source, set())) == count
