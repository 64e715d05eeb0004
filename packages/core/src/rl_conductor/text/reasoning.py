"""Splits a reply into reasoning and answer: one filter for whole replies and for streams. Pure.

Models write their reasoning in front of the answer, between delimiters that differ from family to family (`FORMATS`).
Some chat templates write the opening delimiter into the prompt, so that the reply holds only the closing one. Then text
alone can't show, at its first token, whether a closing delimiter will follow. `ReasoningStart` is the prior knowledge:

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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

ReasoningStart = Literal["inside", "outside", "unknown"]
"""Whether a model's replies start inside reasoning (opened by its chat template), outside of it, or unknown."""


@dataclass(frozen=True)
class Format:
    """The delimiters of one model family's reasoning."""

    openings: tuple[str, ...]
    closing: str
    pattern: str = ""
    """A regular expression in place of `closing`; it matches at most `MAX_DELIMITER_CHARS` characters."""
    needs_closing: bool = False
    """Whether text without a closing delimiter is an answer, because the opening alone is ambiguous."""
    keeps_opening: bool = False
    """Whether the opening may be part of the closing delimiter as well."""
    ends: tuple[str, ...] = ()
    """Delimiters that may stand at the end of the answer."""


MAX_DELIMITER_CHARS = 64
"""Length of the longest delimiter."""

HARMONY = Format(
    ("<|channel|>", "<|start|>assistant<|channel|>"),
    "<|channel|>final<|message|>",
    pattern=r"<\|channel\|>final ?(?:<\|constrain\|>\w{1,16})?<\|message\|>",
    keeps_opening=True,
    ends=("<|return|>", "<|end|>"),
)
"""The format of gpt-oss: every channel but `final` is reasoning."""
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
"""Harmony without its special tokens, which some servers drop: `analysisWe need to...assistantfinalIt is 4.`"""
SPECIAL_TOKENS = ("[THINK]", "[/THINK]", "<|channel>", "<channel|>", "<|channel|>", "<|message|>")
"""Delimiters that are special tokens in some tokenizers, which omit them from decoded text by default."""

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
_SIGN = re.compile("think|THINK|thought|channel|analysis")
"""Occurs in every delimiter, so a reply without it is all answer."""
_QUOTES = frozenset("`'\"‘’“”«»")
_BLANK = re.compile(r"\s*")
_LABELS = re.compile(
    r"<\|channel\|>[^<]{0,64}(?:<\|constrain\|>\w{1,16})?<\|message\|>|<\|start\|>assistant|<\|(?:end|return|call)\|>"
)


@dataclass(frozen=True)
class SplitReply:
    """The two parts of a reply."""

    reasoning: str
    answer: str
    closed_unopened: bool = False
    """Whether the reply closed a block that it had not opened; the model's later replies will then do so too."""


def split_reasoning(text: str, *, start: ReasoningStart = "unknown", truncated: bool = False) -> SplitReply:
    """Splits a whole reply; see `ReasoningFilter`."""
    if not (truncated and start == "inside") and not may_contain_reasoning(text):
        return SplitReply(reasoning="", answer=text)
    reply = ReasoningFilter(start)
    answer = reply.add(text) + reply.end(truncated=truncated)
    return SplitReply(reasoning=reply.reasoning, answer=answer, closed_unopened=reply.closed_unopened)


def may_contain_reasoning(text: str) -> bool:
    """Returns whether a reply may contain a delimiter of reasoning; `False` is certain."""
    return _SIGN.search(text) is not None


def opening_at_end(prompt: str) -> str:
    """Returns the opening delimiter at the end of `prompt`; empty when there is none."""
    stripped = prompt.rstrip()
    return next((opening for opening in _IN_TEMPLATES if stripped.endswith(opening)), "")


class ReasoningFilter:
    """Extracts the answer from a streamed reply; the result does not depend on how the reply is split into chunks."""

    def __init__(self, start: ReasoningStart = "outside") -> None:
        self.start = start
        self.closed_unopened = False
        """As in `SplitReply`."""
        self._state: Callable[[], str] = self._begin
        self._next: ReasoningStart = start
        self._text = ""
        """Undecided text, from `_at` on."""
        self._at = 0
        self._pending: list[str] = []
        """Text before `_text` that is reasoning unless it turns out to be the answer."""
        self._blocks: list[str] = []
        self._format = _UNOPENED
        self._ended = self._truncated = False

    def add(self, chunk: str) -> str:
        """Adds a chunk of the reply and returns the text that is certainly part of the answer."""
        self._text += chunk
        answer = self._run()
        self._text, self._at = self._text[self._at :], 0
        return answer

    def end(self, *, truncated: bool) -> str:
        """Returns the rest of the answer; `truncated` says that the reply hit its token limit."""
        self._ended, self._truncated = True, truncated
        return self._run()

    @property
    def reasoning(self) -> str:
        """The reasoning so far, without its delimiters."""
        clean = (_LABELS.sub("\n", block).strip() for block in self._blocks)
        return "\n\n".join(block for block in clean if block)

    # --------------------------------------------------------------------------------------- states

    def _run(self) -> str:
        answer, state = [], None
        while state != self._state:
            state = self._state
            answer.append(state())
        return "".join(answer)

    def _begin(self) -> str:
        """State between blocks: another block opens, or the answer begins."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            assert blank is not None
            self._defer(blank.end())
            if self._blocks:
                self._pending.clear()
            if self._is_ambiguous():
                return ""
            stray = next((tag for tag in _STRAY if self._text.startswith(tag, self._at)), None)
            if stray is None:
                break
            self._close(self._at, self._at + len(stray), unopened=not self._blocks)
        opening = next((tag for tag in _OPENINGS if self._text.startswith(tag, self._at)), "")
        if opening and self._opens(opening):
            self._open(opening)
        elif self._next == "outside":
            self._state = self._answer
            return self._release()
        else:
            self._format = _UNOPENED
            self._state = self._inside if self._next == "inside" else self._undecided
        return ""

    def _is_ambiguous(self) -> bool:
        """Returns whether the text so far could still become a delimiter."""
        if self._ended or len(self._text) - self._at > MAX_DELIMITER_CHARS:
            return False
        rest = self._text[self._at :]
        return any(tag.startswith(rest) for tag in (*_OPENINGS, *_STRAY))

    def _opens(self, opening: str) -> bool:
        after = self._at + len(opening)
        return opening in _TAGS or "A" <= self._text[after : after + 1] <= "Z"

    def _open(self, opening: str) -> None:
        self._format, self._state = _OPENINGS[opening], self._inside
        if self._format.needs_closing:
            self._defer(self._at + len(opening))
        else:
            self._pending.clear()
            self._at += 0 if self._format.keeps_opening else len(opening)

    def _inside(self) -> str:
        """State inside a block, up to its closing delimiter."""
        searched = self._at
        for closing in _CLOSINGS[self._format].finditer(self._text, self._at):
            if closing.end() == len(self._text) and not self._ended:  # the next character decides whether it is quoted
                self._defer(max(closing.start() - 1, self._at))
                return ""
            if not _is_quoted(self._text, closing):
                self._close(closing.start(), closing.end(), unopened=self._format is _UNOPENED)
                self._state = self._begin
                return ""
            searched = closing.end()
        if not self._ended:
            self._defer(max(searched, len(self._text) - MAX_DELIMITER_CHARS - 1))
            return ""
        self._defer(len(self._text))
        if self._format.needs_closing or (self._format is _UNOPENED and not self._truncated):
            return self._release()
        self._close(self._at, self._at, unopened=False)
        return ""

    def _undecided(self) -> str:
        """State for `unknown`: waits for the end of the reply."""
        self._defer(len(self._text))
        if not self._ended:
            return ""
        self._text, self._at = self._release(), 0
        closing = _unopened_closing(self._text)
        if closing is not None and (self._truncated or self._text[closing.end() :].strip()):
            self._close(closing.start(), closing.end(), unopened=True)
            self._state = self._begin
        else:
            self._state = self._answer
        return ""

    def _answer(self) -> str:
        """State inside the answer."""
        rest = self._text[self._at :]
        if self._ended:
            answer = "" if rest in self._format.ends else rest
        else:
            answer = rest[: len(rest) - unfinished_length(rest, self._format.ends)]
        self._at += len(rest) if self._ended else len(answer)
        return answer

    # ------------------------------------------------------------------------------------- movements

    def _defer(self, end: int) -> None:
        if end > self._at:
            self._pending.append(self._text[self._at : end])
            self._at = end

    def _release(self) -> str:
        text = "".join(self._pending)
        self._pending.clear()
        return text

    def _close(self, end: int, after: int, *, unopened: bool) -> None:
        self._defer(end)
        block = self._release()
        self._blocks.append(block.lstrip().removeprefix("analysis") if self._format is BARE_HARMONY else block)
        self._at, self._next = after, "outside"
        self.closed_unopened = self.closed_unopened or unopened


def _is_quoted(text: str, closing: re.Match[str]) -> bool:
    before, after = text[max(closing.start() - 1, 0) : closing.start()], text[closing.end() : closing.end() + 1]
    return before in _QUOTES and after in _QUOTES


def _unopened_closing(text: str) -> re.Match[str] | None:
    """Finds the closing delimiter of reasoning that starts at the beginning of `text` without an opening one."""
    in_code = False
    opened = min((at for opening in _TAGS if (at := text.find(opening)) >= 0), default=len(text))
    for match in _CANDIDATES.finditer(text):
        if match["fence"]:
            in_code = not in_code
        elif not in_code and not _is_quoted(text, match):
            if opened < match.start():  # the text mentions delimiters
                return None
            if match["line_start"] is not None or match["delimits"] is not None:
                return match
    return None


def unfinished_length(text: str, delimiters: Iterable[str]) -> int:
    """Returns how many of the last characters could be one of `delimiters` or its beginning."""
    sizes = (size for end in delimiters for size in range(1, len(end) + 1) if text.endswith(end[:size]))
    return max(sizes, default=0)
