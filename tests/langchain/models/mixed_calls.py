"""A user's program that mixes all ways to call a model; OPENAI_BASE_URL names the vendor."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from operator import add

from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from langchain_conductor import ChatConductor

workers = {"drafter": ChatOpenAI(model="gpt-4o"), "writer": ChatOpenAI(model="gpt-4o-mini", temperature=0)}
chat = ChatConductor(workers, planner=ChatOpenAI(model="gpt-4o-mini"), max_tokens=500)


def invoke() -> AIMessage:
    return chat.invoke("hi")


def stream() -> AIMessage:
    return reduce(add, chat.stream("hi"))


async def astream() -> AIMessage:
    return reduce(add, [chunk async for chunk in chat.astream("hi")])


def run_ainvoke() -> AIMessage:
    return asyncio.run(chat.ainvoke("hi"))


def run_astream() -> AIMessage:
    return asyncio.run(astream())


async def main() -> list[AIMessage]:
    loop, messages = asyncio.get_running_loop(), list[AIMessage]()
    with ThreadPoolExecutor(4) as threads:
        for _ in range(25):  # 8 calls each: 2 in threads, 2 in loops of their own, 2 on this loop, 2 that block it
            calls = [loop.run_in_executor(threads, call) for call in (invoke, stream, run_ainvoke, run_astream)]
            messages += [*await asyncio.gather(*calls, chat.ainvoke("hi"), astream()), invoke(), stream()]
    return messages


for key, count in Counter(
    (message.response_metadata["conductor"]["rounds"][0]["plan"]["source"], message.text)
    for message in asyncio.run(main())
).items():
    print(*key, count)  # noqa: T201
