#!/bin/sh
# Makes the environment .venv-inspect and runs tests/with_inspect in it; arguments go to pytest.
# It stands apart because inspect-ai wants an older python-dateutil than everything else here.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-inspect
uv pip install --quiet --python .venv-inspect --requirement tests/environments/inspect.txt

# inspect-ai warns about its own dependencies; what our packages warn of is an error, as everywhere.
.venv-inspect/bin/python -m pytest tests/with_inspect -W ignore -W 'error:::rl_conductor' \
    -W 'error:::rl_conductor_training' "$@"
