#!/bin/sh
# Makes the environment .venv-verifiers and runs tests/with_verifiers in it; arguments go to pytest.
# It stands apart because verifiers wants an older openai than everything else here.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-verifiers
uv pip install --quiet --python .venv-verifiers --requirement tests/environments/verifiers.txt

.venv-verifiers/bin/python -m pytest tests/with_verifiers "$@"
