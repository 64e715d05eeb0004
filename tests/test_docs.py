"""README, docs and examples are executed, and print what they say they print."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REAL_MODELS = {"llamaindex_swap", "quickstart", "rag_swap"}
"""Examples that run the embedded models."""
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]


def blocks() -> list[CodeExample]:
    return [one for one in find_examples(*PAGES) if one.prefix.startswith("python")]


@pytest.fixture(scope="module")
def page_globals() -> dict[str, dict[str, object]]:
    """What the earlier blocks of each page defined: a page is read from top to bottom."""
    return {}


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_of_the_docs_prints_what_it_says(
    block: CodeExample, eval_example: EvalExample, page_globals: dict[str, dict[str, object]]
) -> None:
    eval_example.set_config(line_length=120)
    known = page_globals.setdefault(str(block.path), {})
    known.update(eval_example.run_print_check(block, module_globals=known))


@pytest.mark.parametrize(
    "example", [path for path in EXAMPLES if path.stem not in REAL_MODELS], ids=lambda path: path.stem
)
def test_an_example_runs(example: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example.parent)  # as `python examples/...` does
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.stem in REAL_MODELS], ids=lambda path: path.stem)
def test_an_example_runs_with_embedded_models(example: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
