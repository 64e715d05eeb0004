"""Prepares the pages of the documentation site in `build/docs`, from which `./check docs` builds `build/site`.

The pages in `docs/` are read on two sides: as files of the repository, and on the site. A link to a file outside of
`docs/` works only on the first side, so this script adds the linked files as pages and rewrites the links. It also
writes a page for each public module, whose content comes from the docstrings. A link to a missing file, a page that the
navigation in `mkdocs.yml` lacks, and a list that only one of the two sides shows as nested are errors.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from os.path import relpath
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any

ROOT = Path(__file__).parents[2]

PROJECT_PAGES = {
    "README.md": "project/readme.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CODE_OF_CONDUCT.md": "project/code-of-conduct.md",
}
"""Files of the repository that are pages of the site."""

MODULES = {
    "rl_conductor": "Conductor, pools, policies and limits: everything that `import rl_conductor` offers.",
    "rl_conductor.types": "Messages, requests, completions, usage and prices.",
    "rl_conductor.models": "The interface of a model, and the registry of models by name.",
    "rl_conductor.pool": "Workers, worker pools and pool files.",
    "rl_conductor.agents": "Workers that call a model several times, such as models with tools.",
    "rl_conductor.workflow": "Workflows, plan spaces, policies and limits.",
    "rl_conductor.plan_text": "Rendering, parsing and constraining plans.",
    "rl_conductor.guardrails": "Checks of requests, prompts, replies and answers.",
    "rl_conductor.trace": "The run as data: traces, events and summaries.",
    "rl_conductor.replay": "Replay of traces, unchanged or with a changed step.",
    "rl_conductor.scoring": "Samples, scorers and scores.",
    "rl_conductor.errors": "The error classes.",
    "rl_conductor.integration": "Building blocks for adapters to other frameworks.",
    "langchain_conductor": "The chat model for LangChain and the graph for LangGraph.",
    "llama_index.llms.conductor": "The LLM for LlamaIndex.",
    "rl_conductor_server.app": "The ASGI application.",
    "rl_conductor_server.settings": "The settings of the server.",
    "rl_conductor_training.learn": "Learning for your own workers.",
    "rl_conductor_training.tasks": "Tasks and their registry.",
    "verifiers_conductor": "The training environment for verifiers and prime-rl.",
}
"""Modules of the API reference."""

SETTINGS_IN_BASES = {"langchain_conductor", "llama_index.llms.conductor"}
"""Modules whose classes have their settings from a base class, so that inherited members are shown."""

NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
"""Metadata of a page whose content the search finds on another page."""

LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FENCE = re.compile(r"^ *(```+|~~~+)", re.MULTILINE)


SHALLOW_ITEM = re.compile(r"^ {1,3}(?:[-*]|\d+\.) .*", re.MULTILINE)


class PageError(Exception):
    """A page can't be shown as it is meant."""


class BrokenLinkError(PageError):
    """A page links to a file that does not exist."""


class ShallowListError(PageError):
    """A nested list is indented by fewer than four spaces: the site adds its items to the outer list."""


class Stage:
    """The pages of the site while they are collected: sources wait in a queue, because a page may add others."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.pages: dict[str, str] = {}
        self._sources: dict[str, str] = {}

    def add(self, source: str) -> str:
        """Adds a file or folder of the repository, and returns its path on the site.

        Args:
            source: Path relative to the root of the repository.
        """
        path = self._root / source
        if path.is_dir() and (path / "README.md").is_file():
            source, path = f"{source}/README.md", path / "README.md"
        if source in self._sources:
            return self._sources[source]
        target = page_path(source, folder=path.is_dir())
        self._sources[source] = target
        if path.is_dir():
            self.pages[target] = self._listing(source, path)
        elif path.suffix == ".md":
            self.pages[target] = self._rewritten(source, target, path.read_text(encoding="utf-8"))
        elif path.suffix == ".ipynb":
            self.pages[target] = self._rewritten(
                source, target, notebook_text(json.loads(path.read_text(encoding="utf-8")))
            )
        elif path.suffix in LANGUAGES:
            self.pages[target] = code_page(source, path.read_text(encoding="utf-8"))
        return target

    def _listing(self, source: str, folder: Path) -> str:
        files = sorted(path.name for path in folder.iterdir() if path.suffix in LANGUAGES)
        here = page_path(source, folder=True)
        links = [f"- [{name}]({relative(self.add(f'{source}/{name}'), here)})" for name in files]
        return f"# {source}\n\n" + "\n".join(links) + "\n"

    def _rewritten(self, source: str, target: str, text: str) -> str:
        """Rewrites the links of a page; code blocks stay as they are."""

        def link(match: re.Match[str]) -> str:
            return f"{match[1]}{self._linked(source, target, match[2])}{match[3]}"

        parts = code_and_prose(text)
        for is_code, part in parts:
            if not is_code and (item := SHALLOW_ITEM.search(part)):
                raise ShallowListError(f"{source} has {item[0]!r}: indent a nested list by four spaces")
        return "".join(part if is_code else LINK.sub(link, part) for is_code, part in parts)

    def _linked(self, source: str, target: str, link: str) -> str:
        path, hash_mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        linked = normpath(join(dirname(source), path))
        if linked.startswith("..") or not (self._root / linked).exists():
            raise BrokenLinkError(f"{source} links to {link!r}, which does not exist")
        return relative(self.add(linked), target) + hash_mark + anchor


def page_path(source: str, *, folder: bool = False) -> str:
    """Returns the path on the site of a file or folder of the repository."""
    if source in PROJECT_PAGES:
        return PROJECT_PAGES[source]
    if source.startswith("docs/") and Path(source).suffix not in LANGUAGES:
        return source.removeprefix("docs/")
    if source.startswith("packages/") and source.count("/") == 2 and source.endswith("/README.md"):
        return f"packages/{source.split('/')[1]}.md"
    if folder:
        return f"source/{source}/index.md"
    return f"source/{source}" if source.endswith(".md") else f"source/{source}.md"


def relative(page: str, start: str) -> str:
    """Returns the link from one page to another."""
    return relpath(page, dirname(start) or ".").replace("\\", "/")


def code_and_prose(text: str) -> list[tuple[bool, str]]:
    """Splits a page into its code blocks, which come with `True`, and the text between them."""
    parts: list[tuple[bool, str]] = []
    position, fence = 0, ""
    for match in FENCE.finditer(text):
        if not fence:
            parts.append((False, text[position : match.start()]))
            position, fence = match.start(), match[1]
        elif match[1].startswith(fence):
            parts.append((True, text[position : match.end()]))
            position, fence = match.end(), ""
    return [*parts, (bool(fence), text[position:])]


def code_page(source: str, code: str) -> str:
    """Returns a page with a source file; a script's docstring stands above its code."""
    fence = "````" if "```" in code else "```"
    language = LANGUAGES[Path(source).suffix]
    return f"# {Path(source).name}\n\n`{source}`\n\n{fence}{language}\n{code.rstrip()}\n{fence}\n"


def notebook_text(notebook: dict[str, Any]) -> str:
    """Returns a notebook as Markdown: its text, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        printed = "".join("".join(output.get("text", "")) for output in cell.get("outputs", ()))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def reference_pages() -> dict[str, str]:
    """Returns the pages of the API reference, which mkdocstrings fills from the docstrings."""
    pages = {}
    for name in MODULES:
        options = "    options:\n      inherited_members: true\n" if name in SETTINGS_IN_BASES else ""
        pages[f"reference/{name}.md"] = f"# `{name}`\n\n::: {name}\n{options}"
    rows = "\n".join(f"| [`{name}`]({name}.md) | {text} |" for name, text in MODULES.items())
    introduction = "Rendered from the docstrings. Names that are not listed here may change without notice."
    pages["reference/index.md"] = f"# API reference\n\n{introduction}\n\n| module | content |\n|---|---|\n{rows}\n"
    return pages


def stage(root: Path, target: Path) -> list[str]:
    """Writes all pages and pictures to a folder, and returns the paths of the pages."""
    site = Stage(root)
    for path in [*sorted((root / "docs").glob("*.md")), *sorted(root.glob("packages/*/README.md"))]:
        site.add(path.relative_to(root).as_posix())
    for source in PROJECT_PAGES:
        site.add(source)
    for path in [*sorted((root / "examples").glob("*.py")), *sorted((root / "examples").glob("notebooks/*.ipynb"))]:
        site.add(path.relative_to(root).as_posix())
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(root / "docs" / "images", target / "images")
    shutil.copy(root / "docs" / "site" / "style.css", target / "style.css")
    pages = site.pages | reference_pages()
    for name, text in pages.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(NOT_SEARCHED * repeats_others(name) + text, encoding="utf-8")
    return sorted(pages)


def repeats_others(page: str) -> bool:
    """Whether a page repeats others or is the source of an example: in a search it would hide the guides."""
    return page in ("project/readme.md", "project/changelog.md") or (
        page.startswith(("packages/", "source/")) and not page.endswith(".ipynb.md")
    )


def outside_navigation(pages: list[str], configuration: str) -> list[str]:
    """Lists the pages that the navigation lacks. Source files are reached by links and need no entry."""
    return [page for page in pages if not page.startswith("source/") and f" {page}\n" not in configuration]


def main() -> int:
    """Stages the pages; returns the exit status."""
    try:
        pages = stage(ROOT, ROOT / "build" / "docs")
    except PageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    missing = outside_navigation(pages, (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    for page in missing:
        sys.stderr.write(f"{page} is not in the navigation: add it to `nav` in mkdocs.yml\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
