"""README, docs and examples are executed, and print what they say they print."""

from __future__ import annotations

import os
import re
import runpy
import textwrap
import tomllib
from pathlib import Path

import pytest
from pytest_examples import CodeExample, EvalExample, find_examples

from example_programs import PROGRAMS, REAL_MODELS
from forks import run_program
from migrations import ScriptedVendor
from rl_conductor_server.settings import Settings, read_settings

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md")), *sorted((ROOT / "docs").glob("*.md"))]

SOURCES = sorted(
    path for path in ROOT.glob("packages/*/src/**/*.py") if "    ```py" in path.read_text(encoding="utf-8")
)
"""Modules whose docstrings have examples in Python."""

SEPARATE_SECTIONS = [ROOT / "README.md", ROOT / "docs" / "quickstart.md"]
"""Pages of which readers copy one section, so that each block runs alone."""


def blocks() -> list[CodeExample]:
    return [one for one in find_examples(*PAGES, *SOURCES) if one.prefix.startswith("python")]


def blocks_with_vendors() -> list[CodeExample]:
    """Lists the blocks that call OpenAI's models through a conductor."""
    examples = (one for one in find_examples(*PAGES, *SOURCES) if one.prefix == "py")
    return [one for one in examples if "conductor import" in one.source and "gpt-6" in one.source]


def settings_blocks() -> list[tuple[str, str]]:
    """Lists the pool files and server settings of the docs, which have the same tables, with their places."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"^ *```toml\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
        for number, block in enumerate(map(textwrap.dedent, blocks), 1):
            keys = tomllib.loads(block).keys()
            if keys <= Settings.model_fields.keys() and keys != {"planner"} and page.stem != "training":
                found.append((f"{page.name}-{number}", block))
    return found


@pytest.fixture(scope="module")
def page_globals() -> dict[str, dict[str, object]]:
    """The names that the earlier blocks of each page defined: a page is read from top to bottom."""
    return {}


@pytest.mark.parametrize("block", blocks(), ids=str)
def test_a_block_of_the_docs_prints_what_it_says(
    block: CodeExample, eval_example: EvalExample, page_globals: dict[str, dict[str, object]]
) -> None:
    eval_example.set_config(line_length=120)
    known = {} if block.path in SEPARATE_SECTIONS else page_globals.setdefault(str(block.path), {})
    known.update(eval_example.run_print_check(block, module_globals=known))


@pytest.mark.parametrize("block", [pytest.param(block, id=place) for place, block in settings_blocks()])
def test_a_pool_or_settings_file_of_the_docs_is_valid(block: str, tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text(block)
    assert read_settings(file)


@pytest.mark.parametrize("block", blocks_with_vendors(), ids=str)
def test_a_block_with_models_of_a_vendor_runs_alone(block: CodeExample) -> None:
    with ScriptedVendor.running() as vendor:
        vendor.team = ("cheap", "strong") if '"cheap"' in block.source else ("rules", "writer")
        # A limit in dollars would be refused, because the prices of a server that isn't the vendor's are unknown.
        source = block.source if "ChatOpenAI" in block.source else re.sub(r'usd="[^"]*"(, )?', "", block.source)
        environment = os.environ | {"OPENAI_BASE_URL": f"{vendor.url}/v1", "OPENAI_API_KEY": "sk-loopback"}
        done = run_program(source, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "example", [path for path in PROGRAMS if path.stem not in REAL_MODELS], ids=lambda path: path.stem
)
def test_an_example_runs(example: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(example.parent)  # as `python examples/...` does
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.strip()
