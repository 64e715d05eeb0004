"""A real browser without a window, for tests that look at pages as people do.

It is the machine's own Chromium, or the one that `playwright install chromium` brings; where neither is there, the
tests that ask for a browser are skipped and say so.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Playwright, async_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncGenerator[Browser, None]:
    """Chromium, started once for a module, whose tests share an event loop."""
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(executable_path=_program(playwright))
        yield started
        await started.close()


def _program(playwright: Playwright) -> str:
    brought = playwright.chromium.executable_path
    known = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES), brought if Path(brought).exists() else None]
    found = next((path for path in known if path), None)
    if found is None:
        pytest.skip("no Chromium here: run `sh tests/environments/chromium.sh`, or set CHROMIUM to one")
    return found
