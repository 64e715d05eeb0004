#!/bin/sh
# Makes the environment .venv-torch and runs tests/with_torch in it; arguments go to pytest.
# PIP_FIND_LINKS may name a folder with a CPU wheel of torch, where uv would not look by itself.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-torch
uv pip install --quiet --python .venv-torch ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
    --constraint constraints.txt --requirement tests/environments/torch.txt

.venv-torch/bin/python -m pytest tests/with_torch --durations=5 "$@"
