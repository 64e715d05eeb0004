"""Splits a reply into reasoning and answer: one filter for whole replies and for streams. Pure.

Models write their reasoning in front of the answer, between delimiters that differ from family to family (`FORMATS`).
Some chat templates write the opening delimiter into the prompt, so that the reply holds only the closing one. Then text
alone can't tell, at its first token, whether a closing delimiter will follow. `ReasoningStart` says what is known:

- `outside`: only an opening delimiter at the very start of the reply begins reasoning. Everything else is the answer,
  passed on at once.
- `inside`: the reply begins with reasoning. Nothing is passed on before the closing delimiter. A reply that ends
  without one was an answer without reasoning, unless its limit of tokens cut it off: then all of it is reasoning.
- `unknown`: only for whole replies. A closing delimiter without an opening one ends reasoning where it stands as
  delimiters do (at the start or end of a line, or followed directly by text), outside code and quotation marks, and
  with an answer behind it. A delimiter in the midst of a sentence is a mention, and nothing is taken out.

In no case is a delimiter between quotation marks or backticks one. Blocks of reasoning are only looked for at the start
of a reply, one after the other; later ones are part of the answer. Time is linear in the length of the reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

ReasoningStart = Literal["inside", "outside", "unknown"]
"""Where a model's replies begin: in reasoning that its chat template has opened, outside of it, or that is unknown."""


@dataclass(frozen=True)
class Format:
    """How one family of models delimits its reasoning."""

    openings: tuple[str, ...]
    closing: str
    pattern: str = ""
    """A regular expression in place of `closing`; it matches at most `LONGEST` characters."""
    needs_closing: bool = False
    """Whether the opening is too weak a sign by itself: without a closing delimiter the text is an answer."""
    keeps_opening: bool = False
    """Whether the opening may be part of the closing delimiter as well."""
    ends: tuple[str, ...] = ()
    """Delimiters that may stand at the end of the answer."""


LONGEST = 64
"""Characters of the longest delimiter."""

HARMONY = Format(
    ("<|channel|>", "<|start|>assistant<|channel|>"),
    "<|channel|>final<|message|>",
    pattern=r"<\|channel\|>final ?(?:<\|constrain\|>\w{1,16})?<\|message\|>",
    keeps_opening=True,
    ends=("<|return|>", "<|end|>"),
)
"""Of gpt-oss. What a model writes on other channels than `final` is reasoning."""
FORMATS = (
    Format(("<think>",), "</think>"),  # DeepSeek, GLM, Qwen and most others
    Format(("[THINK]",), "[/THINK]"),  # Mistral
    Format(("<thought>",), "</thought>"),  # Gemini behind Chat Completions
    Format(("<|channel>thought",), "<channel|>"),  # Gemma
    Format(("<seed:think>",), "</seed:think>"),  # Seed-OSS
    Format(("◁think▷",), "◁/think▷"),  # Kimi
    HARMONY,
)
BARE_HARMONY = Format(("analysis",), "assistantfinal", needs_closing=True)
"""What is left of harmony where a server drops special tokens: `analysisWe need to...assistantfinalIt is 4.`"""
SPECIAL_TOKENS = ("[THINK]", "[/THINK]", "<|channel>", "<channel|>", "<|channel|>", "<|message|>")
"""Delimiters that are special tokens to some tokenizers, which leave such tokens out of the text by default."""

_TAGS = {opening: form for form in FORMATS for opening in form.openings}
_OPENINGS = _TAGS | {"analysis": BARE_HARMONY}
_IN_TEMPLATES = (*_TAGS, "<|channel|>analysis<|message|>")
_UNOPENED = Format((), "", pattern="|".join(form.pattern or re.escape(form.closing) for form in FORMATS))
_CLOSINGS = {form: re.compile(form.pattern or form.closing) for form in (HARMONY, BARE_HARMONY, _UNOPENED)} | {
    form: re.compile(re.escape(form.closing)) for form in FORMATS if form is not HARMONY
}
_STRAY = tuple(f"{form.closing}\n" for form in FORMATS)
"""A closing delimiter on the first line: the template opened the block, and the model closed it at once."""
_CANDIDATES = re.compile(
    rf"^[ \t]*(?P<fence>```|~~~)|(?P<line_start>^[ \t]*)?(?P<closing>{_UNOPENED.pattern})"
    r"(?P<delimits>(?=[ \t\r]*(?:\n|\Z))|(?=[^\s.,;:!?)\]}>'\"`’”»<|]))?",
    re.MULTILINE,
)
_QUOTES = frozenset("`'\"‘’“”«»")
_BLANK = re.compile(r"\s*")
_LABELS = re.compile(
    r"<\|channel\|>[^<]{0,64}(?:<\|constrain\|>\w{1,16})?<\|message\|>|<\|start\|>assistant|<\|(?:end|return|call)\|>"
)


@dataclass(frozen=True)
class Split:
    """The two parts of a reply."""

    reasoning: str
    answer: str
    closed_unopened: bool = False
    """Whether the reply closed a block that it had not opened: so will the model's next ones."""


def split_reasoning(text: str, *, start: ReasoningStart = "unknown", truncated: bool = False) -> Split:
    """Splits a whole reply; see `ReasoningFilter`."""
    reply = ReasoningFilter(start)
    answer = reply.add(text) + reply.end(truncated=truncated)
    return Split(reasoning=reply.reasoning, answer=answer, closed_unopened=reply.closed_unopened)


def opening_at_end(prompt: str) -> str:
    """The delimiter by which `prompt` opens the reasoning of the reply to it; empty when it opens none."""
    shown = prompt.rstrip()
    return next((opening for opening in _IN_TEMPLATES if shown.endswith(opening)), "")


class ReasoningFilter:
    """Takes a reply in pieces and returns those of its answer. How it is cut into pieces makes no difference."""

    def __init__(self, start: ReasoningStart = "outside") -> None:
        self.start = start
        self.closed_unopened = False
        """As in `Split`."""
        self._state: Callable[[], str] = self._begin
        self._next: ReasoningStart = start
        self._text = ""
        """What is not decided yet, from `_at` on."""
        self._at = 0
        self._held: list[str] = []
        """Text before `_text` that is reasoning unless it turns out to be an answer."""
        self._blocks: list[str] = []
        self._format = _UNOPENED
        self._ended = self._truncated = False

    def add(self, piece: str) -> str:
        """Takes the next piece of the reply and returns what is certain to be its answer."""
        self._text += piece
        shown = self._run()
        self._text, self._at = self._text[self._at :], 0
        return shown

    def end(self, *, truncated: bool) -> str:
        """Returns the rest of the answer. `truncated`: the reply was cut off by its limit of tokens."""
        self._ended, self._truncated = True, truncated
        return self._run()

    @property
    def reasoning(self) -> str:
        """The reasoning so far, without its delimiters."""
        clean = (_LABELS.sub("\n", block).strip() for block in self._blocks)
        return "\n\n".join(block for block in clean if block)

    # --------------------------------------------------------------------------------------- states

    def _run(self) -> str:
        shown, state = [], None
        while state != self._state:
            state = self._state
            shown.append(state())
        return "".join(shown)

    def _begin(self) -> str:
        """Between blocks: another one opens, or the answer begins."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._hold(blank.end())
            if self._blocks:
                self._held.clear()
            if self._waits():
                return ""
            stray = next((one for one in _STRAY if self._text.startswith(one, self._at)), None)
            if stray is None:
                break
            self._close(self._at, self._at + len(stray), unopened=not self._blocks)
        opening = next((one for one in _OPENINGS if self._text.startswith(one, self._at)), "")
        if opening and self._opens(opening):
            self._open(opening)
        elif self._next == "outside":
            self._state = self._answer
            return self._released()
        else:
            self._format = _UNOPENED
            self._state = self._inside if self._next == "inside" else self._undecided
        return ""

    def _waits(self) -> bool:
        """Whether more text must come to tell what the reply begins with."""
        left = len(self._text) - self._at
        if self._ended or left > LONGEST:
            return False
        rest = self._text[self._at :]
        return any(one.startswith(rest) for one in (*_OPENINGS, *_STRAY))

    def _opens(self, opening: str) -> bool:
        after = self._at + len(opening)
        return opening in _TAGS or "A" <= self._text[after : after + 1] <= "Z"

    def _open(self, opening: str) -> None:
        self._format, self._state = _OPENINGS[opening], self._inside
        if self._format.needs_closing:
            self._hold(self._at + len(opening))
        else:
            self._held.clear()
            self._at += 0 if self._format.keeps_opening else len(opening)

    def _inside(self) -> str:
        """In a block, up to its closing delimiter."""
        known = self._at
        for closing in _CLOSINGS[self._format].finditer(self._text, self._at):
            if closing.end() == len(self._text) and not self._ended:  # what follows tells whether it is quoted
                self._hold(max(closing.start() - 1, self._at))
                return ""
            if not _is_quoted(self._text, closing):
                self._close(closing.start(), closing.end(), unopened=self._format is _UNOPENED)
                self._state = self._begin
                return ""
            known = closing.end()
        if not self._ended:
            self._hold(max(known, len(self._text) - LONGEST - 1))
            return ""
        self._hold(len(self._text))
        if self._format.needs_closing or (self._format is _UNOPENED and not self._truncated):
            return self._released()
        self._close(self._at, self._at, unopened=False)
        return ""

    def _undecided(self) -> str:
        """In a whole reply of which nobody knows where it begins."""
        self._hold(len(self._text))
        if not self._ended:
            return ""
        self._text, self._at = self._released(), 0
        closing = _unopened_closing(self._text)
        if closing is not None and (self._truncated or self._text[closing.end() :].strip()):
            self._close(closing.start(), closing.end(), unopened=True)
            self._state = self._begin
        else:
            self._state = self._answer
        return ""

    def _answer(self) -> str:
        """In the answer."""
        rest = self._text[self._at :]
        if self._ended:
            kept = "" if rest in self._format.ends else rest
        else:
            kept = rest[: len(rest) - _unfinished(rest, self._format.ends)]
        self._at += len(rest) if self._ended else len(kept)
        return kept

    # ------------------------------------------------------------------------------------- movements

    def _hold(self, end: int) -> None:
        if end > self._at:
            self._held.append(self._text[self._at : end])
            self._at = end

    def _released(self) -> str:
        text = "".join(self._held)
        self._held.clear()
        return text

    def _close(self, end: int, after: int, *, unopened: bool) -> None:
        self._hold(end)
        block = self._released()
        self._blocks.append(block.lstrip().removeprefix("analysis") if self._format is BARE_HARMONY else block)
        self._at, self._next = after, "outside"
        self.closed_unopened = self.closed_unopened or unopened


def _is_quoted(text: str, closing: re.Match[str]) -> bool:
    before, after = text[max(closing.start() - 1, 0) : closing.start()], text[closing.end() : closing.end() + 1]
    return before in _QUOTES and after in _QUOTES


def _unopened_closing(text: str) -> re.Match[str] | None:
    """The delimiter that ends reasoning at the start of `text`, which nothing opened."""
    in_code = False
    opened = min((at for opening in _TAGS if (at := text.find(opening)) >= 0), default=len(text))
    for found in _CANDIDATES.finditer(text):
        if found["fence"]:
            in_code = not in_code
        elif not in_code and not _is_quoted(text, found):
            if opened < found.start():  # it speaks of delimiters
                return None
            if found["line_start"] is not None or found["delimits"] is not None:
                return found
    return None


def _unfinished(text: str, ends: tuple[str, ...]) -> int:
    """How many of the last characters could be one of `ends`, or the start of one."""
    sizes = (size for end in ends for size in range(1, len(end) + 1) if text.endswith(end[:size]))
    return max(sizes, default=0)
