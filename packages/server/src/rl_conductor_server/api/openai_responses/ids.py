"""Ids of responses and of their messages, which contain that of the run."""

from __future__ import annotations

import re

from rl_conductor_server.store.runs.run_id import PREFIX, RANDOM_PART, random_part, run_in

RESPONSE_ID = re.compile(rf"resp_({RANDOM_PART})")
MAX_ID_CHARS = 64
"""Characters of an unknown id that an error quotes."""


def response_id(run: str) -> str:
    """Returns the id of a run's response; see `run_of_response`."""
    return f"resp_{random_part(run)}" if run.startswith(PREFIX) else run


def run_of_response(response: str) -> str:
    """Returns the run of a response's id; an id in another format belongs to no run."""
    return run_in(RESPONSE_ID, response) or response[:32]
