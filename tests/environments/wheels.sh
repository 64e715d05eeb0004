#!/bin/sh
# Builds every package, checks its metadata, installs the wheels into .venv-wheels and runs them outside of the checkout.
# The package for verifiers is built and checked only: it wants an older openai than everything else here.
set -eu
cd "$(dirname "$0")/../.."

rm -rf .venv-wheels
uv venv --quiet --python "${PYTHON:-3.11}" .venv-wheels
for package in packages/*/; do
    uv build --quiet --out-dir .venv-wheels/dist "$package"
done
twine check --strict .venv-wheels/dist/*.whl .venv-wheels/dist/*.tar.gz
python tests/environments/wheel_contents.py .venv-wheels/dist/*.whl

rm .venv-wheels/dist/verifiers_conductor-*
uv pip install --quiet --python .venv-wheels --constraint constraints.txt .venv-wheels/dist/*.whl

wheels_python="$PWD/.venv-wheels/bin/python"
cd /
"$wheels_python" -m rl_conductor.cli.main --version
"$wheels_python" -c "import langchain_conductor, llama_index.llms.conductor, rl_conductor_server, rl_conductor_training"
"$wheels_python" -m rl_conductor.cli.main bench --help >/dev/null
"$wheels_python" -m rl_conductor.cli.main serve --help >/dev/null
