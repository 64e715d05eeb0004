#!/bin/sh
# Builds every package, checks its metadata, and installs the wheels into a fresh environment for each Python of $PYTHONS
# (versions or paths) that this machine has; there, outside of the checkout, they run their commands.
# INSTALLER=pip installs with plain pip, which takes minutes; ASK=1 asks the first question of the README, which takes a
# minute on an idle machine. $WHEELS_TO is a folder to which what was built is copied.
# The package for verifiers is built and checked only: it wants an older openai than everything else here.
set -eu
cd "$(dirname "$0")/../.."

rm -rf .venv-wheels
mkdir .venv-wheels
for package in packages/*/; do
    uv build --quiet --out-dir .venv-wheels/dist "$package"
done
twine check --strict .venv-wheels/dist/*.whl .venv-wheels/dist/*.tar.gz
python tests/environments/wheel_contents.py .venv-wheels/dist/*.whl

if [ -n "${WHEELS_TO:-}" ]; then
    mkdir -p "$WHEELS_TO"
    cp .venv-wheels/dist/* "$WHEELS_TO"
fi
rm .venv-wheels/dist/verifiers_conductor-*
first='^\.venv\/bin\/rl-conductor ask --pool \([^ ]*\) "\(.*\)"$'
pool=$PWD/$(sed -n "s/$first/\1/p" README.md)
question=$(sed -n "s/$first/\2/p" README.md)
[ -f "$pool" ] && [ -n "$question" ] || { echo "the README does not begin with a question to a pool"; exit 1; }

# The wheels, and the core with the extra that its first command needs: older releases of pip want it without, too.
install() {
    core=$(ls .venv-wheels/dist/rl_conductor-*.whl)
    set -- "$1" "$core[local]" .venv-wheels/dist/*.whl
    environment=$1
    shift
    if [ "${INSTALLER:-uv}" = pip ]; then
        "$environment/bin/python" -m ensurepip >/dev/null
        "$environment/bin/python" -m pip install --quiet --disable-pip-version-check --constraint constraints.txt "$@"
    else
        uv pip install --quiet --python "$environment" --constraint constraints.txt "$@"
    fi
}

check_wheels() {
    uv venv --quiet --python "$1" ".venv-wheels/$2"
    install ".venv-wheels/$2"
    (
        bin="$PWD/.venv-wheels/$2/bin"
        cd /
        "$bin/rl-conductor" --version
        "$bin/python" -c "import langchain_conductor, llama_index.llms.conductor, rl_conductor_server, rl_conductor_training"
        "$bin/rl-conductor" bench --help >/dev/null
        "$bin/rl-conductor" serve --help >/dev/null
        [ -z "${ASK:-}" ] ||
            env -u OPENAI_API_KEY -u ANTHROPIC_API_KEY -u GEMINI_API_KEY "$bin/rl-conductor" ask --pool "$pool" "$question" >/dev/null
    ) || { echo "the wheels do not work with Python $2"; return 1; }
    echo "the wheels work with Python $2"
}

for version in ${PYTHONS:-3.11 3.12 3.13}; do
    if python=$(uv python find --no-python-downloads --no-project "$version" 2>/dev/null); then
        check_wheels "$python" "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
    else
        echo "no Python $version here: not checked with it"
    fi
done
