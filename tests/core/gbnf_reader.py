"""A small reader of GBNF, independent of the writer: recognises texts and draws random ones."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field

TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:\\.|[^"\\])*")|(?P<chars>\[(?:\\.|[^\]\\])*\])|(?P<name>\w+)|(?P<sign>[()|?]|\{\d+,\d+\}))'
)
ESCAPES = {"n": "\n", "t": "\t", "b": "\b", "f": "\f", "r": "\r"}
CHARACTER = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\(.)|(.)", re.DOTALL)


def characters(text: str) -> list[str]:
    """The characters of a literal or a class, escapes read."""
    return [
        chr(int(m[1] or m[2], 16)) if m[1] or m[2] else ESCAPES.get(m[3], m[3]) if m[3] else m[4]
        for m in CHARACTER.finditer(text)
    ]


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Chars:
    ranges: tuple[tuple[str, str], ...]
    negated: bool

    def has(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self.ranges) != self.negated


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Repeat:
    item: Node
    least: int
    most: int


@dataclass(frozen=True)
class Choice:
    options: tuple[tuple[Node, ...], ...]


Node = Text | Chars | Name | Repeat | Choice


@dataclass
class Gbnf:
    """A grammar that can be asked."""

    rules: dict[str, Choice] = field(default_factory=dict)

    @classmethod
    def read(cls, gbnf: str) -> Gbnf:
        grammar = cls()
        for line in gbnf.splitlines():
            name, _, body = line.partition(" ::= ")
            assert name not in grammar.rules, f"{name} is defined twice"
            tokens = [(m.lastgroup or "", m[0].strip()) for m in TOKEN.finditer(body)]
            assert "".join(t for _, t in tokens).replace(" ", "") == body.replace(" ", ""), f"unread: {body}"
            grammar.rules[name] = _choice(tokens)
            assert not tokens, f"left over in {name}: {tokens}"
        return grammar

    def admits(self, text: str) -> bool:
        """Whether `text` is in the language."""
        return len(text) in self._ends(Name("root"), text, 0, {})

    def _ends(self, node: Node, text: str, at: int, known: dict[tuple[int, int], frozenset[int]]) -> frozenset[int]:
        key = (id(node) if not isinstance(node, Name) else id(self.rules[node.name]), at)
        if key not in known:
            known[key] = frozenset(self._find(node, text, at, known))
        return known[key]

    def _find(self, node: Node, text: str, at: int, known: dict[tuple[int, int], frozenset[int]]) -> set[int]:
        if isinstance(node, Text):
            return {at + len(node.text)} if text.startswith(node.text, at) else set()
        if isinstance(node, Chars):
            return {at + 1} if at < len(text) and node.has(text[at]) else set()
        if isinstance(node, Name):
            return set(self._ends(self.rules[node.name], text, at, known))
        if isinstance(node, Repeat):
            found, reached = set[int](), {at}
            for count in range(node.most + 1):
                found |= reached if count >= node.least else set()
                reached = {end for start in reached for end in self._ends(node.item, text, start, known)}
                if not reached:
                    break
            return found
        found = set()
        for option in node.options:
            reached = {at}
            for part in option:
                reached = {end for start in reached for end in self._ends(part, text, start, known)}
            found |= reached
        return found

    def draw(self, rng: random.Random, node: Node = Name("root")) -> str:
        """A random text of the language."""
        if isinstance(node, Text):
            return node.text
        if isinstance(node, Chars):
            return self._character(rng, node)
        if isinstance(node, Name):
            return self.draw(rng, self.rules[node.name])
        if isinstance(node, Repeat):
            count = rng.choice((node.least, node.most, rng.randint(node.least, node.most)))
            return "".join(self.draw(rng, node.item) for _ in range(count))
        return "".join(self.draw(rng, part) for part in rng.choice(node.options))

    def _character(self, rng: random.Random, node: Chars) -> str:
        while True:
            span = rng.choice(((0x20, 0x7F), (0x00, 0xFF), (0x1680, 0x3001), (0xE000, 0x10FFFF), (0x61, 0x7A)))
            low, high = span if node.negated else map(ord, rng.choice(node.ranges))
            char = chr(rng.randint(low, high))
            if node.has(char):
                return char


def _choice(tokens: list[tuple[str, str]]) -> Choice:
    options: list[list[Node]] = [[]]
    while tokens and tokens[0][1] != ")":
        kind, text = tokens.pop(0)
        if kind == "text":
            options[-1].append(Text("".join(characters(text[1:-1]))))
        elif kind == "chars":
            options[-1].append(_chars(text[1:-1]))
        elif kind == "name":
            options[-1].append(Name(text))
        elif text == "|":
            options.append([])
        elif text == "(":
            options[-1].append(_choice(tokens))
            assert tokens.pop(0)[1] == ")"
        else:
            least, most = (0, 1) if text == "?" else map(int, text[1:-1].split(","))
            options[-1].append(Repeat(options[-1].pop(), least, most))
    return Choice(tuple(tuple(option) for option in options))


def _chars(text: str) -> Chars:
    negated = text.startswith("^")
    ranges: list[tuple[str, str]] = []
    parts = [m[0] for m in CHARACTER.finditer(text[1:] if negated else text)]
    while parts:
        low = characters(parts.pop(0))[0]
        if len(parts) > 1 and parts[0] == "-":
            parts.pop(0)
            ranges.append((low, characters(parts.pop(0))[0]))
        else:
            ranges.append((low, low))
    return Chars(tuple(ranges), negated)
