"""The staging of the documentation site: links work on both sides, and no page is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stage_site import MODULES, ROOT, BrokenLinkError, outside_navigation, stage


def repository(folder: Path, page: str) -> Path:
    """A repository with one page, and a few files that it may link to."""
    files = {
        "README.md": "# Readme\n\n[A page](docs/page.md)\n",
        "docs/page.md": page,
        "docs/site/style.css": "",
        "docs/site/tool.py": "",
        "docs/images/run.svg": "<svg/>",
        "examples/hello.py": 'print("hello")\n',
        "packages/core/README.md": "# Core\n\n[Up](../../README.md#readme)\n",
    }
    files |= dict.fromkeys(("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md"), "# Title\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("link", "staged"),
    [
        ("../README.md#readme", "project/readme.md#readme"),
        ("../examples/hello.py", "source/examples/hello.py.md"),
        ("site/tool.py", "source/docs/site/tool.py.md"),
        ("../examples", "source/examples/index.md"),
        ("../packages/core", "packages/core.md"),
        ("images/run.svg", "images/run.svg"),
        ("#title", "#title"),
        ("https://example.com/a.md", "https://example.com/a.md"),
    ],
)
def test_links_of_the_repository_lead_to_pages_of_the_site(tmp_path: Path, link: str, staged: str) -> None:
    root = repository(tmp_path / "repository", f"# Title\n\n[text]({link})\n")
    stage(root, tmp_path / "staged")
    assert f"[text]({staged})" in (tmp_path / "staged" / "page.md").read_text()


def test_links_in_code_stay_as_they_are(tmp_path: Path) -> None:
    page = "# Title\n\n```markdown\n[text](missing.md)\n```\n"
    stage(repository(tmp_path / "repository", page), tmp_path / "staged")
    assert (tmp_path / "staged" / "page.md").read_text() == page


@pytest.mark.parametrize("link", ["missing.md", "../examples/missing.py", "../../outside.md"])
def test_a_link_to_a_missing_file_is_an_error(tmp_path: Path, link: str) -> None:
    with pytest.raises(BrokenLinkError, match=r"docs/page\.md links to"):
        stage(repository(tmp_path / "repository", f"[text]({link})"), tmp_path / "staged")


def test_example_code_is_a_page(tmp_path: Path) -> None:
    stage(repository(tmp_path / "repository", ""), tmp_path / "staged")
    assert '```python\nprint("hello")\n```' in (tmp_path / "staged" / "source" / "examples" / "hello.py.md").read_text()


def test_pages_outside_of_the_navigation_are_found() -> None:
    pages = ["a.md", "b.md", "source/examples/c.py.md"]
    assert outside_navigation(pages, "nav:\n  - A: a.md\n") == ["b.md"]


def test_every_module_of_the_reference_exists() -> None:
    for name in MODULES:
        path = name.replace(".", "/")
        assert [*ROOT.glob(f"packages/*/src/{path}.py"), *ROOT.glob(f"packages/*/src/{path}/__init__.py")], name
