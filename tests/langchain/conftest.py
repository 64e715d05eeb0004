"""Says at the end how many of `langchain-tests`' standard tests ran, and which did not and why."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator

import pytest
from langchain_openai.chat_models import _client_utils

STANDARD = "test_standard_"
"""The prefix of the files with standard tests."""

TEXT_ONLY = "the tiny models read text only; it runs over vendors' protocols instead"
ABSENT = {
    "test_audio_inputs": "the core has no audio",
    "test_stream_time": "it measures recorded HTTP, and there is no vendor of ours to record",
    "test_image_inputs": TEXT_ONLY,
    "test_image_tool_message": TEXT_ONLY,
    "test_pdf_inputs": TEXT_ONLY,
    "test_pdf_tool_message": TEXT_ONLY,
}
"""The standard tests that can't count, with the reason."""


@pytest.fixture(scope="session", autouse=True)
def _vendor_clients_go_silently() -> Iterator[None]:
    """langchain-openai keeps its asynchronous clients until the process ends and closes none of them."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        _client_utils._cached_async_httpx_client.cache_clear()
        gc.unfreeze()  # clients of earlier modules
        gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The count, and a line for each test that did not run or is known to fail."""
    ran = len(_standard(terminalreporter, "passed", "failed"))
    others = [(item, _reason(item)) for item in _standard(terminalreporter, "skipped", "xfailed")]
    if not ran:
        return
    terminalreporter.section("standard tests of langchain-tests")
    terminalreporter.line(f"{ran} ran, {len(others)} did not count:")
    for report, reason in others:
        suite = report.nodeid.partition(STANDARD)[2].partition(".")[0]
        terminalreporter.line(f"  {suite}, {report.nodeid.rpartition('::')[2]}: {reason}")


def _standard(reporter: pytest.TerminalReporter, *outcomes: str) -> list[pytest.TestReport]:
    reports: Iterable[pytest.TestReport] = (item for outcome in outcomes for item in reporter.stats.get(outcome, ()))
    return [report for report in reports if STANDARD in report.nodeid]


def _reason(report: pytest.TestReport) -> str:
    test = report.nodeid.rpartition("::")[2]
    skip_reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    return getattr(report, "wasxfail", None) or ABSENT.get(test, skip_reason)
