"""The examples with a vendor's models, chosen by nothing but the environment; `test_docs*.py` run them without."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from langchain_vendor import Vendor
from rl_conductor.config.discovery import POOL_VARIABLE

EXAMPLES = Path(__file__).parents[2] / "examples"
POOL = """
[workers.{name}]
model = "openai:{name}"
options = {{ base_url = "{url}/v1", dialect = "openai" }}
"""


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    with Vendor.running() as service:
        yield service


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["rag_swap", "support_desk", "coder_tests_fix", "plan_review", "research_policy"])
def test_an_example_runs_with_a_vendors_models(name: str, vendor: Vendor, tmp_path: Path) -> None:
    pool = tmp_path / "pool.toml"
    pool.write_text("".join(POOL.format(name=worker, url=vendor.url) for worker in ("strong", "fast")))
    environment = os.environ | {POOL_VARIABLE: str(pool), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip()
    assert vendor.requests
