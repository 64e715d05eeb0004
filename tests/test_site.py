"""The staging of the documentation site: links work on both sides, and no page is lost."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from check_reference import cut_summaries, members_found, public_names, special_methods, without_heading
from run_picture import run_svg
from stage_site import (
    MODULES,
    NOT_SEARCHED,
    ROOT,
    BrokenLinkError,
    ShallowListError,
    outside_navigation,
    repeats_others,
    stage,
)

from rl_conductor import Conductor, ScriptedModel, Step, Trace, WorkerPool, Workflow


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


def test_a_nested_list_that_the_site_would_not_nest_is_an_error(tmp_path: Path) -> None:
    page = "1. First\n   - of the first\n"
    with pytest.raises(ShallowListError, match="indent a nested list by four spaces"):
        stage(repository(tmp_path / "repository", page), tmp_path / "staged")


def test_a_nested_list_may_be_indented_by_four_spaces_or_stand_in_code(tmp_path: Path) -> None:
    page = "1. First\n    - of the first\n\n```yaml\nnames:\n  - first\n```\n"
    stage(repository(tmp_path / "repository", page), tmp_path / "staged")
    assert (tmp_path / "staged" / "page.md").read_text() == page


def test_example_code_is_a_page(tmp_path: Path) -> None:
    stage(repository(tmp_path / "repository", ""), tmp_path / "staged")
    assert '```python\nprint("hello")\n```' in (tmp_path / "staged" / "source" / "examples" / "hello.py.md").read_text()


def test_a_notebook_is_a_page_with_its_output_and_its_links(tmp_path: Path) -> None:
    root = repository(tmp_path / "repository", "")
    (root / "examples" / "notebooks").mkdir()
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "[Page](../../docs/page.md)"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": [{"name": "stdout", "text": ["1\n"]}]},
    ]
    (root / "examples" / "notebooks" / "one.ipynb").write_text(json.dumps({"cells": cells}))
    stage(root, tmp_path / "staged")
    page = (tmp_path / "staged" / "source" / "examples" / "notebooks" / "one.ipynb.md").read_text()
    assert page == "# Title\n[Page](../../../page.md)\n\n```python\nprint(1)\n```\n\n```text\n1\n```\n"


def test_pages_outside_of_the_navigation_are_found() -> None:
    pages = ["a.md", "b.md", "source/examples/c.py.md"]
    assert outside_navigation(pages, "nav:\n  - A: a.md\n") == ["b.md"]


@pytest.mark.parametrize(
    ("page", "is_searched"),
    [
        ("page.md", True),
        ("project/security.md", True),
        ("project/changelog.md", False),
        ("project/readme.md", False),
        ("packages/core.md", False),
        ("source/examples/hello.py.md", False),
    ],
)
def test_pages_that_repeat_others_are_no_search_results(tmp_path: Path, page: str, is_searched: bool) -> None:
    stage(repository(tmp_path / "repository", "[a script](../examples/hello.py)"), tmp_path / "staged")
    assert (NOT_SEARCHED not in (tmp_path / "staged" / page).read_text()) is is_searched


def test_a_notebook_is_a_search_result() -> None:
    assert not repeats_others("source/examples/notebooks/one.ipynb.md")


def test_every_module_of_the_reference_exists() -> None:
    for name in MODULES:
        path = name.replace(".", "/")
        assert [*ROOT.glob(f"packages/*/src/{path}.py"), *ROOT.glob(f"packages/*/src/{path}/__init__.py")], name


def test_a_public_name_without_a_heading_is_found(tmp_path: Path) -> None:
    (tmp_path / "packages" / "core" / "src" / "shop").mkdir(parents=True)
    (tmp_path / "packages" / "core" / "src" / "shop" / "__init__.py").write_text('__all__ = ["Cart", "Event"]\n')
    page = '<h2 id="shop.Cart" class="doc doc-heading">'
    assert without_heading(page, "shop", public_names(tmp_path, "shop")) == ["Event"]


def test_a_member_of_a_class_that_is_a_search_result_is_found() -> None:
    guide = {"location": "guide/#timeout", "level": 3}
    class_and_member = [
        {"location": "reference/a/#a.Model", "level": 2},
        {"location": "reference/a/#a.Model.b", "level": 3},
    ]
    assert members_found([guide, *class_and_member]) == ["reference/a/#a.Model.b"]


def test_a_summary_that_ends_in_the_middle_of_a_sentence_is_found() -> None:
    cells = ["<p>Calls of a conductor take the <code>slots</code></p>", "<p>See <code>Worker</code>.</p>"]
    page = "".join(f'<td><div class="doc-md-description">{cell}</div></td>' for cell in cells)
    assert cut_summaries(page) == ["Calls of a conductor take the slots"]


def test_a_special_method_in_the_reference_is_found() -> None:
    assert special_methods('<h3 id="shop.Order.__setattr__"><h3 id="shop.Order.total">') == ["shop.Order.__setattr__"]


def test_the_picture_of_the_first_screen_is_that_of_the_saved_run() -> None:
    trace = Trace.model_validate_json((ROOT / "docs" / "site" / "first-run.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "images" / "first-run.svg").read_text(encoding="utf-8") == run_svg(trace)


def test_a_picture_shows_every_step_and_no_markup_of_a_model() -> None:
    hostile = "</text><script>alert(1)</script>"
    pool = WorkerPool({"a": ScriptedModel([hostile] * 2), "b": ScriptedModel([hostile])})
    planner = ScriptedModel(
        f"model_id = [0, 1, 0]\nsubtasks = ['Draft.', '{hostile}', 'Join.']\naccess_list = [[], [], ['all']]"
    )
    svg = run_svg(Conductor(planner, pool).run_sync(hostile))
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "script" not in {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert [text for text in texts if text in {"1 a", "2 b", "3 a"}] == ["1 a", "2 b", "3 a"]
    assert texts.count(hostile) == 3  # question, subtask, answer


def test_a_run_without_a_plan_has_no_picture() -> None:
    pool = WorkerPool({"a": ScriptedModel("An answer.")})
    trace = Conductor(ScriptedModel([]), pool).run_sync("?", workflow=Workflow(steps=[Step(subtask="s", worker="a")]))
    with pytest.raises(ValueError, match="no plan"):
        run_svg(trace.model_copy(update={"rounds": ()}))
