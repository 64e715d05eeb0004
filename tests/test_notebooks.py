"""The notebooks run from top to bottom, and print what is stored in them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).parents[1] / "examples" / "notebooks"


def printed(notebook: NotebookNode) -> str:
    """All that the cells printed to stdout."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def run(name: str, folder: Path) -> tuple[str, str]:
    """Runs a notebook in an empty folder, and returns what is stored and what it prints now."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    stored = printed(notebook)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return stored, printed(notebook)


def test_the_notebook_on_budgets_and_traces_prints_what_is_stored_in_it(tmp_path: Path) -> None:
    stored, now = run("budgets_and_traces", tmp_path)
    assert stored
    assert now == stored


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_notebook_runs_with_embedded_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY", "RL_CONDUCTOR_POOL"):
        monkeypatch.delenv(key, raising=False)
    stored, now = run("first_conductor", tmp_path)
    assert "51" in stored
    assert "51" in now
