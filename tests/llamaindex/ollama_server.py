"""A loopback server with Ollama's protocol, to test with a vendor's real integration."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class FakeOllama:
    """The server's URL, its replies and the requests that it received."""

    url: str
    replies: list[dict[str, Any]]
    """Messages of its replies, in their order; `{"status": 429, "error": ...}` is an error."""
    answer: Callable[[str], str] | None = None
    """Returns the text of a reply for a model's name, in place of `replies`."""
    requests: list[dict[str, Any]] = field(default_factory=list)


@contextmanager
def ollama(*replies: dict[str, Any], answer: Callable[[str], str] | None = None) -> Iterator[FakeOllama]:
    """Starts a server with these replies. With `answer` it keeps connections open, as the real one does."""
    served = FakeOllama("", list(replies), answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if answer else "HTTP/1.0"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            served.requests.append(request)
            reply = _reply(served, request)
            status = reply.get("status", 200)
            lines = list(_lines(reply, stream=request.get("stream", False))) if status == 200 else [reply]
            body = "\n".join(map(json.dumps, lines)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.block_on_close = False  # some clients never close their connections
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _reply(served: FakeOllama, request: dict[str, Any]) -> dict[str, Any]:
    if served.answer is None:
        return served.replies.pop(0)
    return {"role": "assistant", "content": served.answer(request["model"])}


def _lines(message: dict[str, Any], *, stream: bool) -> Iterator[dict[str, Any]]:
    about = {"model": "tiny", "created_at": "2026-11-21T12:00:00Z"}
    if stream:
        for word in message.get("content", "").split(" "):
            yield {**about, "message": {"role": "assistant", "content": word + " "}, "done": False}
    ends = {"done": True, "done_reason": message.get("done_reason", "stop"), "prompt_eval_count": 40, "eval_count": 5}
    yield {**about, "message": {"role": "assistant", "content": "", **({} if stream else message)}, **ends}
