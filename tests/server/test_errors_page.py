"""The list of errors in docs/serve-api.md has every code of the server, its status, and whether a retry helps."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import rl_conductor_server

PAGE = Path(__file__).parents[2] / "docs" / "serve-api.md"
SOURCES = Path(rl_conductor_server.__file__).parent
PAGES_ONLY = ("auth/oidc.py", "web/")
"""Sources of errors that only people see, on the web pages."""


def modules() -> Iterator[ast.Module]:
    for path in SOURCES.rglob("*.py"):
        if not path.relative_to(SOURCES).as_posix().startswith(PAGES_ONLY):
            yield ast.parse(path.read_text(encoding="utf-8"))


def created_errors() -> dict[tuple[int, str], bool]:
    """Errors that the sources create with literals or constants, and whether a retry may help."""
    found: dict[tuple[int, str], bool] = {}
    for module in modules():
        constants = {
            target.id: node.value
            for node in module.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                values = {keyword.arg: keyword.value for keyword in node.keywords}
                if node.func.id == "invalid_request":
                    values["status"] = ast.Constant(400)
                code = values.get("code")
                code = constants.get(code.id) if isinstance(code, ast.Name) else code
                status = values.get("status")
                if isinstance(status, ast.Constant) and isinstance(code, ast.Constant):
                    error = int(str(status.value)), str(code.value)
                    found[error] = found.get(error, False) or "retry_after" in values
    return found


def listed_errors() -> dict[tuple[int, str], bool]:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Errors\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\d{3}) \| (.*?) \| (?:(yes) )?\|", section, re.MULTILINE)
    return {(int(status), code): bool(retry) for status, codes, retry in rows for code in re.findall(r"`(\w+)`", codes)}


def test_every_error_of_the_server_is_listed() -> None:
    assert created_errors().items() - listed_errors().items() == set()


def test_no_error_is_listed_that_the_server_does_not_have() -> None:
    texts = {node.value for module in modules() for node in ast.walk(module) if isinstance(node, ast.Constant)}
    computed = {(403, "policy_RULE")}
    assert {code for _, code in listed_errors().keys() - created_errors().keys() - computed} <= texts
