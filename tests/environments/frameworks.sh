#!/bin/sh
# Makes the environment .venv-frameworks and runs tests/with_frameworks in it; arguments go to pytest.
# It stands apart because CrewAI and others want an older openai than everything else here.
# The server that the tests start comes from .venv.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-frameworks
uv pip install --quiet --python .venv-frameworks \
    --override tests/environments/frameworks-overrides.txt --requirement tests/environments/frameworks.txt

# Frameworks warn about their own dependencies; what our package warns of is an error, as everywhere.
.venv-frameworks/bin/python -m pytest tests/with_frameworks --durations=5 \
    -W ignore -W 'error:::rl_conductor' -W 'error:::llama_index.llms.conductor' "$@"
