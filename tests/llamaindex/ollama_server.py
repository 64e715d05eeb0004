"""A loopback server that speaks Ollama's protocol, for a vendor's real integration to talk to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Served:
    """Where it listens, what it was asked, and what it answers."""

    url: str
    replies: list[dict[str, Any]]
    """The messages that it answers with, one after the other."""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def ollama(*replies: dict[str, Any]) -> Iterator[Served]:
    """A server that answers so."""
    served = Served("", list(replies))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append(request)
            lines = list(_lines(served.replies.pop(0), stream=request.get("stream", False)))
            body = "\n".join(map(json.dumps, lines)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _lines(message: dict[str, Any], *, stream: bool) -> Iterator[dict[str, Any]]:
    about = {"model": "tiny", "created_at": "2026-11-21T12:00:00Z"}
    if stream:
        for word in message.get("content", "").split(" "):
            yield {**about, "message": {"role": "assistant", "content": word + " "}, "done": False}
    ends = {"done": True, "done_reason": "stop", "prompt_eval_count": 40, "eval_count": 5}
    yield {**about, "message": {"role": "assistant", "content": "", **({} if stream else message)}, **ends}
