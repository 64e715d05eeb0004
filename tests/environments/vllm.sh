#!/bin/sh
# Makes the environment .venv-vllm and runs tests/with_vllm in it; arguments go to pytest.
# PIP_FIND_LINKS may name a folder with a CPU wheel of torch, where uv would not look by itself.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-vllm
uv pip install --quiet --python .venv-vllm ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
    --override tests/environments/vllm-overrides.txt --requirement tests/environments/vllm.txt

# vLLM's own imports warn; elsewhere a warning is an error.
.venv-vllm/bin/python -m pytest tests/with_vllm --override-ini filterwarnings=default --durations=5 "$@"
