#!/bin/sh
# Makes the environment .venv-phoenix and runs tests/with_phoenix against the Phoenix in it; arguments go to pytest.
# The tests run in .venv: Phoenix is another program, which receives spans over HTTP.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-phoenix
uv pip install --quiet --python .venv-phoenix --requirement tests/environments/phoenix.txt

PHOENIX="$PWD/.venv-phoenix/bin/phoenix" .venv/bin/python -m pytest tests/with_phoenix "$@"
