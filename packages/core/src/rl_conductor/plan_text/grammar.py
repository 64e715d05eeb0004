"""What can be said: a grammar of exactly the plans that a `PlanSpace` allows.

A model that is held to it can't write a forbidden worker, a step too many, a forward reference or an edge that the
policy closes. The grammar is a finite automaton over the steps: a state is what the rest of the plan still depends
on, and each rule stands for one state.

What flow rules forbid is carried in bit masks called `closed`: bit `r` is set when reader `r` must not see a reply.
In `lines`, where each worker stands beside its access, a reader is a kind of worker; in `lists`, where all workers
are known before the first access, a reader is a later step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import ALL, BEFORE, LABELS, Form, dumps, render
from rl_conductor.plan_text.gbnf import GrammarTooLarge, Rules, line_rule, quoted, string_rules
from rl_conductor.plan_text.json_schema import plan_schema
from rl_conductor.types import Grammar, JsonFormat
from rl_conductor.workflow.workflow import PlanSpace

REASONING_CHARS = 300
"""Longest reasoning before a plan, so that even a model that never learnt to stop gets to the plan."""
MOST_STATES = 20_000
"""Most states we walk to write one grammar."""
MOST_STEPS = 12
"""Longest plan we write a grammar for: the subsets of earlier steps double with each step."""

__all__ = ["REASONING_CHARS", "GrammarTooLarge", "constraint"]


def constraint(
    space: PlanSpace,
    form: Form,
    *,
    reasoning_chars: int = REASONING_CHARS,
    counted: bool = True,
    array_bounds: bool = True,
) -> Grammar | JsonFormat:
    """What holds a model to the plans of `space`, written in `form`.

    A `Grammar` admits exactly what `parse` accepts strictly, after at most one line of `reasoning_chars` characters
    (0 for none). The `JsonFormat` of `object` can say less: `PlanSpace.check` finds the rest. Unless `counted`,
    reasoning and subtasks may have any length, which the check finds, too. XGrammar takes up to half a second to count
    for one token, and near the limit it offers tokens that it then refuses. Without `array_bounds`, the `JsonFormat`
    leaves the number of steps to the check.

    Raises:
        ConfigError: no plan at all is allowed.
        GrammarTooLarge: decode without one, and let the check find what breaks the rules.
    """
    made = _made(space, form, reasoning_chars, counted, array_bounds)
    if isinstance(made, ConfigError):
        raise type(made)(*made.args)
    return made


@lru_cache(maxsize=256)
def _made(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat | ConfigError:
    """The constraint, or why there is none: to find that a grammar is too large takes longest of all."""
    try:
        return _make(space, form, reasoning_chars, counted, array_bounds)
    except ConfigError as error:
        return error.with_traceback(None)


def _make(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat:
    if not space.choices:
        raise ConfigError(f"no plan is possible: no worker of the roster ({', '.join(space.roster)}) is allowed")
    if form == "object":
        return JsonFormat(name="plan", json_schema=plan_schema(space, array_bounds=array_bounds))
    if space.max_steps > MOST_STEPS:
        raise GrammarTooLarge(f"plans of up to {space.max_steps} steps; a grammar is written for at most {MOST_STEPS}")
    return Grammar(gbnf=_Writer(space).write(form, reasoning_chars, counted))


class _Kind(NamedTuple):
    """Workers that the flow rules treat alike."""

    ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    """Those of them that may do the last step."""
    closed: int
    """The kinds that must not see their replies."""


class _Read(NamedTuple):
    """One access list that a step may write."""

    text: str
    closed: int
    """The readers that must not see the reply of a step that has read this. In a binary space those closed to what is
    read are left out, since who reads that reply reads all of it too."""
    whole: bool
    """It names every earlier step."""


class _Writer:
    """Writes the rules of one space; the rule of a state that leads nowhere is `None`."""

    def __init__(self, space: PlanSpace) -> None:
        self.space = space
        alike = _alike(space)
        self.kinds = tuple(_kind(space, alike, workers) for workers in alike)
        self.recalled = None if space.recalled is None else _closed(space, alike, space.recalled)
        """The kinds that must not see the earlier rounds; `None` when there are none."""
        self.rules = Rules()
        self._known: dict[tuple[object, ...], str | None] = {}
        self._states = 0

    def write(self, form: Form, reasoning_chars: int, counted: bool) -> str:
        """The whole grammar."""
        start = self._workers(()) if form == "lists" else self._line(0, ())
        opening = f"{quoted(f'{LABELS[0]} = [')} " if form == "lists" else ""
        plans = [opening + start] if start else []
        if self.space.may_accept:
            plans.append(quoted(render(None, self.space, form)))
        if not plans:
            raise ConfigError("no plan is possible: the rules of this space contradict one another")
        strings = string_rules(self.space.subtask_chars if counted else None)
        first = {"root": "plan", "plan": " | ".join(plans), **strings}
        if reasoning_chars:
            first |= {"root": "reasoning? plan", "reasoning": line_rule(reasoning_chars if counted else None)}
        return self.rules.text(first)

    # -------------------------------------------------------------------------------- the form `lists`

    def _workers(self, chosen: tuple[int, ...]) -> str | None:
        """The rest of a plan whose first list has named workers of the kinds `chosen`."""
        self._count()
        return self.rules.add(self._next_workers(chosen))

    def _next_workers(self, chosen: tuple[int, ...]) -> Iterator[str]:
        count = len(chosen) + 1
        for number, kind in enumerate(self.kinds):
            if count < self.space.max_steps and (more := self._workers((*chosen, number))):
                yield f'{self._ids(kind.ids)} ", " {more}'
            if count >= self.space.min_steps and kind.last_ids and (end := self._subtasks((*chosen, number))):
                yield f"{self._ids(kind.last_ids)} {end}"

    def _subtasks(self, chosen: tuple[int, ...]) -> str | None:
        """The second and third list, when the first has named workers of the kinds `chosen`."""
        own = tuple(_by_step(self.kinds[number].closed, chosen) >> step for step, number in enumerate(chosen))
        recalled = None if self.recalled is None else _by_step(self.recalled, chosen)
        access = self._access(0, (), own, recalled)
        strings = ' ", " '.join(["string"] * len(chosen))
        opening, closing = quoted(f"]\n{LABELS[1]} = ["), quoted(f"]\n{LABELS[2]} = [")
        return self.rules.add([f"{opening} {strings} {closing} {access}"]) if access else None

    def _access(self, index: int, past: tuple[int, ...], own: tuple[int, ...], recalled: int | None) -> str | None:
        """The access lists from step `index` on. In every mask bit 0 is that step, and `own` starts with its own."""
        if (key := ("access", index, past, own, recalled)) not in self._known:
            self._count()
            self._known[key] = self.rules.grouped(self._next_access(index, past, own, recalled))
        return self._known[key]

    def _next_access(
        self, index: int, past: tuple[int, ...], own: tuple[int, ...], recalled: int | None
    ) -> Iterator[tuple[str, str | None]]:
        later = None if recalled is None else recalled >> 1
        for read in self._reads(index, past, reader=0, own=own[0], recalled=recalled):
            if len(own) > 1:
                rest = self._access(index + 1, tuple(mask >> 1 for mask in self._after(past, read)), own[1:], later)
                yield read.text, rest and f'", " {rest}'
            elif read.whole or not self.space.last_reads_all:
                yield read.text, '"]"'

    # -------------------------------------------------------------------------------- the form `lines`

    def _line(self, index: int, past: tuple[int, ...]) -> str | None:
        """The lines from step `index` on."""
        if (key := ("line", index, past)) not in self._known:
            self._count()
            tail = self.rules.add(self._line_ends(index, past))
            self._known[key] = tail and self.rules.add([f'"{{\\"subtask\\": " string ", \\"worker\\": " {tail}'])
        return self._known[key]

    def _line_ends(self, index: int, past: tuple[int, ...]) -> Iterator[str]:
        for number, kind in enumerate(self.kinds):
            inner = tuple(i for i in kind.ids if i not in kind.last_ids)
            for ids, may_end in ((inner, False), (kind.last_ids, True)):
                reads = self._reads(index, past, reader=number, own=kind.closed, recalled=self.recalled)
                access = self.rules.grouped((read.text, self._after_line(index, past, read, may_end)) for read in reads)
                if ids and access:
                    yield f'{self._ids(ids)} ", \\"access\\": " {access}'

    def _after_line(self, index: int, past: tuple[int, ...], read: _Read, may_end: bool) -> str | None:
        count = index + 1
        more = self._line(count, self._after(past, read)) if count < self.space.max_steps else None
        ends = may_end and count >= self.space.min_steps and (read.whole or not self.space.last_reads_all)
        if more:
            return f'"}}" ("\\n" {more})?' if ends else f'"}}\\n" {more}'
        return '"}"' if ends else None

    # --------------------------------------------------------------------------------------- both forms

    def _reads(
        self, index: int, past: tuple[int, ...], *, reader: int, own: int, recalled: int | None
    ) -> Iterator[_Read]:
        """What step `index` may read, when `past` says to whom each earlier step is closed."""
        before = recalled is not None and not recalled >> reader & 1
        seen = [step for step, closed in enumerate(past) if not closed >> reader & 1]
        if self.space.access == "binary":
            yield _Read("[]", own, index == 0)
            if len(seen) == len(past) and (before or (index > 0 and recalled is None)):
                yield _Read(dumps([ALL]), own, True)
            return
        for recall in (False, True)[: 1 + before]:
            for count in range(len(seen) + 1):
                for steps in combinations(seen, count):
                    closed = own | _union(past[step] for step in steps) | ((recalled or 0) if recall else 0)
                    yield _Read(dumps([BEFORE] * recall + list(steps)), closed, count == index)

    def _after(self, past: tuple[int, ...], read: _Read) -> tuple[int, ...]:
        """To whom each earlier step is closed, once one has read `read`; in a binary space they count as one."""
        return (_union(past) | read.closed,) if self.space.access == "binary" else (*past, read.closed)

    def _ids(self, ids: tuple[int, ...]) -> str | None:
        return self.rules.add(quoted(str(i)) for i in ids)

    def _count(self) -> None:
        self._states += 1
        if self._states > MOST_STATES:
            raise GrammarTooLarge(f"the rules of this space take more than {MOST_STATES} states")


def _alike(space: PlanSpace) -> tuple[tuple[str, ...], ...]:
    """The allowed workers, those together that read alike and are read alike."""
    sources = [*space.choices, *sorted(space.recalled or ())]
    groups: dict[object, list[str]] = {}
    for worker in space.choices:
        reads = tuple(space.may_read(worker, source) for source in sources)
        read_by = tuple(space.may_read(reader, worker) for reader in space.choices)
        groups.setdefault((reads, read_by), []).append(worker)
    return tuple(tuple(group) for group in groups.values())


def _kind(space: PlanSpace, alike: tuple[tuple[str, ...], ...], workers: tuple[str, ...]) -> _Kind:
    return _Kind(
        ids=tuple(space.roster.index(worker) for worker in workers),
        last_ids=tuple(space.roster.index(worker) for worker in workers if worker in space.last_choices),
        closed=_closed(space, alike, workers[:1]),
    )


def _closed(space: PlanSpace, alike: tuple[tuple[str, ...], ...], sources: Iterable[str]) -> int:
    """The kinds whose workers must not see anything from one of `sources`."""
    return _union(
        1 << number for number, group in enumerate(alike) for source in sources if not space.may_read(group[0], source)
    )


def _by_step(closed: int, chosen: tuple[int, ...]) -> int:
    """A mask over kinds as a mask over the steps that workers of the kinds `chosen` do."""
    return _union(1 << step for step, kind in enumerate(chosen) if closed >> kind & 1)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
