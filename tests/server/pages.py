"""Settings, plans and runs for tests of the web pages."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from core.runs import plan
from rl_conductor.types import Price
from rl_conductor_server.auth.key_secrets import hash_key
from server.chat_requests import post
from server.conftest import At

ADMIN = "the-administrators-key"
GUARDED: Any = {"keys": {"red": {"sha256": hash_key("red-key")}}, "admins": {"admin": {"sha256": hash_key(ADMIN)}}}
CENT = Price(input=Decimal(0), output=Decimal(0), per_call=Decimal("0.01"))
FOUR = plan((0, "Draft.", []), (1, "Draft too.", []), (0, "Join.", ["all"]), (1, "Check.", ["all"]))
NASTY = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'--></title></style></textarea><svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}<%= 1 %>&lt;b>",
    "<a href='javascript:alert(1)'>x</a>",
    "\u202e<iframe srcdoc='&lt;script&gt;alert(1)&lt;/script&gt;'>",
    "]]><!--<form action=https://evil.example>",
]


async def ask(at: At, question: str = "Say something.", **more: Any) -> str:
    """Runs a request to its end and returns the run's id."""
    body = {"messages": [{"role": "user", "content": question}]} | more
    reply = await post(at, {"authorization": "Bearer red-key"}, **body)
    await at.service.store.write_queue.flush()
    return str(reply.headers["x-conductor-run"])
