#!/bin/sh
# Makes the environment .venv-docs and builds the documentation site in build/site. Any warning, such as a broken link,
# is an error. The API reference is read from the sources, so none of the packages has to be installed.
set -eu
cd "$(dirname "$0")/../.."

uv venv --quiet --allow-existing --python "${PYTHON:-3.11}" .venv-docs
uv pip install --quiet --python .venv-docs --requirement tests/environments/docs.txt

rm -rf build/docs build/site
.venv-docs/bin/python docs/site/stage_site.py
.venv-docs/bin/zensical build --clean --strict
.venv-docs/bin/python docs/site/check_reference.py
