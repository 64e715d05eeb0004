"""Checks the API reference of the built site.

Each public name of a module has a heading: a name without a docstring has none, nor has a function that a module of the
same name hides. Members of classes are no search results: names such as `timeout` would hide the guides.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

from stage_site import MODULES, ROOT


def public_names(root: Path, module: str) -> list[str]:
    """Returns the names in `__all__` of a module; none if it has no such list."""
    path = module.replace(".", "/")
    (source,) = [*root.glob(f"packages/*/src/{path}.py"), *root.glob(f"packages/*/src/{path}/__init__.py")]
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def without_heading(page: str, module: str, names: list[str]) -> list[str]:
    """Lists the names that a page of the reference lacks."""
    return [name for name in names if f'id="{module}.{name}"' not in page]


def members_found(search_items: list[dict[str, Any]]) -> list[str]:
    """Lists the members of classes that are search results."""
    return [one["location"] for one in search_items if one["location"].startswith("reference/") and one["level"] > 2]


def main() -> int:
    """Checks all pages of the reference; returns the exit status."""
    missing = []
    for module in MODULES:
        page = (ROOT / "build" / "site" / "reference" / module / "index.html").read_text(encoding="utf-8")
        missing += [f"{module}.{name}" for name in without_heading(page, module, public_names(ROOT, module))]
    for name in missing:
        sys.stderr.write(f"{name} is not in the API reference: it needs a docstring\n")
    members = members_found(json.loads((ROOT / "build" / "site" / "search.json").read_text(encoding="utf-8"))["items"])
    for location in members:
        sys.stderr.write(f"{location} is a search result: see docs/site/templates/python/material/class.html.jinja\n")
    return 1 if missing or members else 0


if __name__ == "__main__":
    sys.exit(main())
