"""Checks that a tag is the version of every package, and of the chart: `release_version.py v0.1.0`."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def other_versions(tag: str, root: Path) -> list[str]:
    """Lists the files that have another version than the tag, or depend on another one of our packages."""
    version, found = tag.removeprefix("v"), []
    for path in sorted(root.glob("packages/*/pyproject.toml")):
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        if project["version"] != version:
            found.append(f"{path.relative_to(root)} has version {project['version']}")
        extras = [one for extra in project.get("optional-dependencies", {}).values() for one in extra]
        for dependency in project["dependencies"] + extras:
            pinned = re.fullmatch(r"rl-conductor[\w-]*(?:\[[^]]*\])?==(\S+)", dependency)
            if pinned and pinned[1] != version:
                found.append(f"{path.relative_to(root)} depends on {dependency}")
    chart = root / "deploy" / "helm" / "rl-conductor" / "Chart.yaml"
    for name, value in re.findall(r"^(version|appVersion): \"?([^\"\n]+)\"?$", chart.read_text(), re.MULTILINE):
        if value != version:
            found.append(f"{chart.relative_to(root)} has {name} {value}")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)'")
    return found


if __name__ == "__main__":
    problems = other_versions(sys.argv[1], Path(__file__).parents[2])
    print("\n".join(problems) or f"all packages have version {sys.argv[1]}")  # noqa: T201
    sys.exit(bool(problems))
