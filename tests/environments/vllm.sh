#!/bin/sh
# Makes the environment .venv-vllm and runs tests/with_vllm in it; arguments go to pytest. With `setup` it runs no tests.
# PIP_FIND_LINKS may name a folder with a CPU wheel of torch, where uv would not look by itself.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-vllm
uv pip install --quiet --python .venv-vllm ${PIP_FIND_LINKS:+--find-links "$PIP_FIND_LINKS"} \
    --override tests/environments/vllm-overrides.txt --requirement tests/environments/vllm.txt
[ "${1:-}" != setup ] || exit 0

# What vLLM itself warns of; any other warning is an error, as everywhere.
.venv-vllm/bin/python -m pytest tests/with_vllm --durations=5 \
    -W ignore::DeprecationWarning -W 'ignore:Unclosed context:ResourceWarning' "$@"
