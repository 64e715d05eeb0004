"""An MCP server over stdio that breaks the protocol in the way that its argument names."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

TOOL = {"name": "clock", "inputSchema": {"type": "object"}}
PAGES = 4
INVALID = [
    {"name": "gong"},
    {"name": "bell", "inputSchema": {"type": "string"}},
    {"name": "horn", "inputSchema": {"type": "object", "properties": {"tone": {"type": "tone"}}}},
    {"name": "book", "inputSchema": {"type": "object", "description": "x" * 30_000}},
    {"name": "", "inputSchema": {"type": "object"}},
    7,
]
OLD = {
    "name": "old",
    "inputSchema": {"type": "object", "properties": {"hour": {"minimum": 0, "exclusiveMinimum": True}}},
}
DEEP = {"name": "deep", "inputSchema": {"type": "object", "not": json.loads('{"not": ' * 150 + "{}" + "}" * 150)}}
LISTS = {"no schema": INVALID[:1], "invalid tools": [*INVALID, TOOL, OLD, DEEP]}


def reply(fault: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request, or the error for a method that it does not have."""
    match method:
        case "initialize":
            server = {"name": "clock", "version": "1"}
            version = params["protocolVersion"]
            return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}}
        case "tools/list" if fault == "slow pages":
            time.sleep(0.2)
            page = int(params.get("cursor") or 1)
            tool = TOOL | {"name": f"clock{page}"}
            return {"result": {"tools": [tool]} | ({"nextCursor": str(page + 1)} if page < PAGES else {})}
        case "tools/list" if fault == "invalid pages":
            pages = {None: ([], "2"), "2": (INVALID[:1], "3"), "3": ([TOOL], "4"), "4": (INVALID[1:2], "4")}
            tools, cursor = pages[params.get("cursor")]
            return {"result": {"tools": tools, "nextCursor": cursor}}
        case "tools/list":
            return {"result": {"tools": LISTS.get(fault, [TOOL])}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def write(line: str) -> None:
    """Writes a line to stdout at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    write("Welcome to the clock!")
    for request in map(json.loads, sys.stdin):
        if request["method"] == "tools/call" and sys.argv[1] == "Latin-1":
            sys.stdout.buffer.write("Schöne Grüße\n".encode("latin-1"))
            write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": {"content": []}}))
        elif request["method"] == "tools/call":
            write('{"jsonrpc": "2.0", "result": ')
        elif "id" in request:
            answer = reply(sys.argv[1], request["method"], request.get("params", {}))
            write(json.dumps({"jsonrpc": "2.0", "id": request["id"]} | answer))
