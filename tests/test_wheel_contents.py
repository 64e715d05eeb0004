"""The check of built wheels finds what is missing, and links that an index can't follow."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pytest

from environments.wheel_contents import problems

PACKAGES = sorted((Path(__file__).parents[1] / "packages").iterdir())
FILES = ("a/py.typed", "a-1.dist-info/licenses/LICENSE")
TEXT = "A package that does something for somebody. " * 6


def wheel(folder: Path, *files: str, text: str = TEXT) -> Path:
    with zipfile.ZipFile(folder / "a-1-py3-none-any.whl", "w") as opened:
        for name in files:
            opened.writestr(name, "")
        opened.writestr("a-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: a\n\n{text}")
    return folder / "a-1-py3-none-any.whl"


def test_a_whole_wheel_has_no_problem(tmp_path: Path) -> None:
    text = f"{TEXT} See [the site](https://example.com/docs), [below](#below) or [a book](http://example.com)."
    assert problems(wheel(tmp_path, *FILES, text=text)) == []


@pytest.mark.parametrize("missing", FILES)
def test_what_is_missing_is_named(tmp_path: Path, missing: str) -> None:
    (problem,) = problems(wheel(tmp_path, *(name for name in FILES if name != missing)))
    assert problem == f"a-1-py3-none-any.whl has no {missing.partition('/')[2]}"


def test_what_does_not_belong_there_is_named(tmp_path: Path) -> None:
    assert problems(wheel(tmp_path, *FILES, "a/tests/test_a.py")) == ["a-1-py3-none-any.whl has a/tests/test_a.py"]


@pytest.mark.parametrize(
    "link", ["[docs](../../docs/a.md)", "![run](images/run.png)", '<img src="images/run.png">', "[two\nlines](docs)"]
)
def test_a_link_into_the_repository_is_a_problem(tmp_path: Path, link: str) -> None:
    (problem,) = problems(wheel(tmp_path, *FILES, text=f"{TEXT} {link}"))
    assert "leads nowhere on an index" in problem


@pytest.mark.parametrize("text", ["", f"{TEXT} There is no release on PyPI yet."])
def test_a_description_that_is_none_is_a_problem(tmp_path: Path, text: str) -> None:
    assert problems(wheel(tmp_path, *FILES, text=text)) == ["a-1-py3-none-any.whl has no description for an index"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.name)
def test_the_description_on_the_index_names_no_page_without_a_link(package: Path) -> None:
    hooks = tomllib.loads((package / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    text = (package / "README.md").read_text()
    for substitution in hooks["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    assert "Documentation:" not in text
    assert "examples/" not in text
    assert not text.endswith("\n\n")
