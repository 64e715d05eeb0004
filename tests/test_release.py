"""The release: one version everywhere, and workflows that publish without a stored secret."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from environments.release_version import other_versions

ROOT = Path(__file__).parents[1]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github" / "workflows").glob("*.yml")}
RELEASE: dict[str, Any] = yaml.safe_load(WORKFLOWS["release"])


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A copy of the files that have a version, with a changelog of the release."""
    for path in [*ROOT.glob("packages/*/pyproject.toml"), ROOT / "deploy/helm/rl-conductor/Chart.yaml"]:
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        shutil.copy(path, copy)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (2026-12-01)\n")
    return tmp_path


def test_a_tag_with_the_version_of_everything_is_a_release(released: Path) -> None:
    assert other_versions("v0.1.0", released) == []


def test_every_other_version_is_listed(released: Path) -> None:
    found = other_versions("v0.2.0", released)
    assert len([line for line in found if "pyproject.toml has version 0.1.0" in line]) == 6
    assert "packages/training/pyproject.toml depends on rl-conductor==0.1.0" in found
    assert "deploy/helm/rl-conductor/Chart.yaml has appVersion 0.1.0" in found
    assert "CHANGELOG.md has no section '## 0.2.0 (YYYY-MM-DD)'" in found


def test_the_changelog_has_a_date_before_the_release(released: Path) -> None:
    (released / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n")
    assert other_versions("v0.1.0", released) == ["CHANGELOG.md has no section '## 0.1.0 (YYYY-MM-DD)'"]


def test_only_the_job_that_publishes_may_get_a_token_of_the_index() -> None:
    jobs = RELEASE["jobs"]
    assert RELEASE["permissions"] == {}
    assert {name for name, job in jobs.items() if "environment" in job} == {"publish"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert not any("run" in step for step in jobs["publish"]["steps"]), "no code of ours runs beside the token"
    assert not re.search(r"secrets\.|password", "".join(WORKFLOWS.values()))


def test_nothing_is_published_that_was_not_checked_built_and_attested() -> None:
    jobs = RELEASE["jobs"]
    assert jobs["build"]["needs"] == "check"
    assert jobs["publish"]["needs"] == ["build", "attest"]
    assert jobs["check"]["uses"] == "./.github/workflows/check.yml"
    matrix = yaml.safe_load(WORKFLOWS["check"])["jobs"]["test"]["strategy"]["matrix"]["python"]
    classifiers = (ROOT / "packages/core/pyproject.toml").read_text()
    assert matrix == re.findall(r"Python :: (3\.\d+)", classifiers)


def test_the_workflows_run_scripts_that_exist() -> None:
    text = "".join(WORKFLOWS.values())
    scripts = re.findall(r"tests/environments/[\w.]+", text)
    assert scripts
    assert all((ROOT / script).exists() for script in scripts)
    commands = set(re.findall(r"\./check (\w+)", text))
    assert all(f"    {command}) " in (ROOT / "check").read_text() for command in commands)
