"""Checks the API reference of the built site.

Each public name of a module has a heading: a name without a docstring has none, nor has a function that a module of the
same name hides. Members of classes are no search results: names such as `timeout` would hide the guides. Tables show a
whole sentence for each member, and Python's special methods are no members.
"""

from __future__ import annotations

import ast
import html
import json
import re
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


def cut_summaries(page: str) -> list[str]:
    """Lists the descriptions of a page's tables that end in the middle of a sentence."""
    cells = re.findall(r'<div class="doc-md-description">(.*?)</div>', page, re.DOTALL)
    texts = [" ".join(html.unescape(re.sub(r"<[^>]+>", "", cell)).split()) for cell in cells]
    return [text for text in texts if not text.endswith((".", ":", "?", "!", ")"))]


def special_methods(page: str) -> list[str]:
    """Lists the special methods that have a heading, such as `__setattr__`."""
    return re.findall(r'id="([\w.]+\.__\w+__)"', page)


def main() -> int:
    """Checks all pages of the reference; returns the exit status."""
    problems = []
    for module in MODULES:
        page = (ROOT / "build" / "site" / "reference" / module / "index.html").read_text(encoding="utf-8")
        missing = without_heading(page, module, public_names(ROOT, module))
        problems += [f"{module}.{name} is not in the API reference: it needs a docstring" for name in missing]
        problems += [f"{module} has a summary that is not a sentence: {text}" for text in cut_summaries(page)]
        problems += [
            f"{name} is in the API reference: write a comment, not a docstring" for name in special_methods(page)
        ]
    members = members_found(json.loads((ROOT / "build" / "site" / "search.json").read_text(encoding="utf-8"))["items"])
    template = "docs/site/templates/python/material/class.html.jinja"
    problems += [f"{location} is a search result: see {template}" for location in members]
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
