"""Checks that wheels have a licence and a type marker, and no tests or data: `wheel_contents.py *.whl`."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path


def problems(wheel: Path) -> list[str]:
    """Lists what is missing in a wheel, or does not belong there."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [
        name for name in ("py.typed", "licenses/LICENSE", "METADATA") if not any(n.endswith(name) for n in names)
    ]
    strangers = [name for name in names if "/tests/" in name or name.endswith((".pyc", ".db", ".sqlite"))]
    return [f"{wheel.name} has no {name}" for name in missing] + [f"{wheel.name} has {name}" for name in strangers]


if __name__ == "__main__":
    found = [problem for name in sys.argv[1:] for problem in problems(Path(name))]
    print("\n".join(found) or f"{len(sys.argv) - 1} wheels are complete")  # noqa: T201
    sys.exit(bool(found))
