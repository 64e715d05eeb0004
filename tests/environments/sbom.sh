#!/bin/sh
# Writes what the installed core, server and training package consist of as CycloneDX: `sbom.sh DIST TARGET`.
# Each is one installation of wheels with the versions of constraints.txt, without extras.
set -eu
cd "$(dirname "$0")/../.."
export PATH="$PWD/.venv/bin:$PATH"
dist=$1
target=$2

mkdir -p "$target"
for name in rl-conductor rl-conductor-server rl-conductor-training; do
    folder=$(mktemp -d)
    uv venv --quiet "$folder/venv"
    uv pip install --quiet --python "$folder/venv" --constraint constraints.txt --find-links "$dist" "$name"
    uv tool run --quiet --from cyclonedx-bom==7.5.0 cyclonedx-py environment --output-reproducible --spec-version 1.6 \
        --output-format JSON --output-file "$target/$name.cdx.json" "$folder/venv/bin/python"
    rm -r "$folder"
done
