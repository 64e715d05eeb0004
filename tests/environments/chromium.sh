#!/bin/sh
# A Chromium for the tests that look at pages: the machine's own, else the system's package, else Playwright's.
# Where none is to be had the tests say so and are skipped.
set -eu

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null && exit
done

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null && exit
fi
python -m playwright install chromium || echo "no Chromium: tests that look at pages will be skipped"
