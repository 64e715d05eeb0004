"""Checks that wheels have a licence and a type marker, no tests or data, and no link that an index can't follow.

`wheel_contents.py *.whl`
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

RELATIVE_LINK = re.compile(r"\]\((?!https?://|#)([^)]*)\)|(?:href|src)=[\"'](?!https?://|#)([^\"']*)")


def problems(wheel: Path) -> list[str]:
    """Lists what is missing in a wheel, or does not belong there."""
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        metadata = opened.read(next(name for name in names if name.endswith(".dist-info/METADATA"))).decode()
    missing = [
        name for name in ("py.typed", "licenses/LICENSE", "METADATA") if not any(n.endswith(name) for n in names)
    ]
    strangers = [name for name in names if "/tests/" in name or name.endswith((".pyc", ".db", ".sqlite"))]
    description = metadata.partition("\n\n")[2]
    links = [match[1] or match[2] for match in RELATIVE_LINK.finditer(description)]
    found = [f"{wheel.name} has no {name}" for name in missing] + [f"{wheel.name} has {name}" for name in strangers]
    if len(description) < 200 or "no release on PyPI" in description:
        found.append(f"{wheel.name} has no description for an index")
    return found + [
        f"the description of {wheel.name} has a link that leads nowhere on an index: {link}" for link in links
    ]


if __name__ == "__main__":
    found = [problem for name in sys.argv[1:] for problem in problems(Path(name))]
    print("\n".join(found) or f"{len(sys.argv) - 1} wheels are complete")  # noqa: T201
    sys.exit(bool(found))
