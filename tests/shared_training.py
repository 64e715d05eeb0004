"""One of several processes that share a warm start and a step: prints the results of both as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from accelerate import PartialState

from shared_step import step
from shared_warm_start import warm_start

if __name__ == "__main__":
    sys.stdout.write(json.dumps({"warm_start": warm_start(Path(sys.argv[1])), "step": step()}))
    PartialState().destroy_process_group()
