from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rl_conductor.cli.main import app

RECIPE = Path(__file__).parents[2] / "recipes" / "cpu.toml"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_real_models_train_for_a_step_on_a_processor(tmp_path: Path) -> None:
    recipe = tmp_path / "cpu.toml"  # with fewer plans in a step, each of which runs its workflow with smaller workers
    text = RECIPE.read_text(encoding="utf-8")
    workers = "".join(f'{name} = "embedded:smollm2-135m"\n' for name in ("reader", "coder", "writer"))
    for setting, quicker in (
        ("questions = 2", "questions = 1"),
        ("rollouts = 4", "rollouts = 2"),
        ("[pool.small]\n", f"[pool.small]\n{workers}"),
    ):
        assert setting in text
        text = text.replace(setting, quicker)
    recipe.write_text(text, encoding="utf-8")
    run = CliRunner().invoke(app, ["train", str(recipe), "--max-steps", "1", "--out", str(tmp_path / "run")])
    assert run.exit_code == 0, run.output
    assert [f"step {number} of 50: reward" in run.stderr for number in (1, 2)] == [True, False]
    assert "1 of 50 steps done" in run.stdout
    assert "Too few steps to tell" in run.stdout
    assert (tmp_path / "run" / "final" / "adapter_model.safetensors").exists()
