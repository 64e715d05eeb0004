"""Creates the grammar of exactly the plans that a `PlanSpace` allows, for constrained decoding.

With it, a model can't generate a forbidden worker, too many steps, a forward reference or a forbidden flow. The grammar
is a finite automaton over the steps: a state contains everything that the rest of the plan depends on, and each rule
is one state.

Flow rules are tracked in bit masks called `closed`: bit `r` is set when reader `r` must not see a reply. In `rows`,
where each worker is written next to its access list, a reader is a kind of worker; in `lists`, where all workers are
written before the first access list, a reader is a later step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from itertools import combinations
from operator import or_
from typing import NamedTuple

from rl_conductor.errors import ConfigError
from rl_conductor.plan_text.forms import ALL, BEFORE, LABELS, Form, dumps, render
from rl_conductor.plan_text.gbnf import GrammarRules, GrammarTooLarge, line_rule, quote_literal, string_rules
from rl_conductor.plan_text.json_schema import plan_schema
from rl_conductor.types import Grammar, JsonFormat
from rl_conductor.workflow.plan_space import PlanSpace

PLAN_FORMAT_NAME = "plan"
"""Name of the JSON format of plans; adapters return a reply to such a request as it is, since its parser repairs it."""
REASONING_CHARS = 300
"""Maximum length of the reasoning before a plan, so that a model that doesn't stop still reaches the plan."""
MAX_STATES = 30_000
"""Maximum states and access lists that are examined for one grammar, which bounds the time to about a second."""
MAX_STEPS = 12
"""Maximum steps of a grammar: the subsets of earlier steps double with each step."""

__all__ = ["PLAN_FORMAT_NAME", "REASONING_CHARS", "GrammarTooLarge", "constraint"]


def constraint(
    space: PlanSpace,
    form: Form,
    *,
    reasoning_chars: int = REASONING_CHARS,
    counted: bool = True,
    array_bounds: bool = True,
) -> Grammar | JsonFormat:
    """Creates the constraint that limits decoding to the plans of `space` in `form`.

    A `Grammar` matches exactly the texts that `parse` accepts strictly, after at most one line of reasoning. The
    `JsonFormat` of `object` is less exact; `PlanSpace.check` rejects the rest.

    Args:
        space: the allowed plans.
        form: the form of plan text.
        reasoning_chars: the maximum length of the reasoning; 0 for none.
        counted: whether the grammar limits the length of reasoning and subtasks; otherwise only the check does.
            XGrammar takes up to half a second per token for this, and near the limit offers tokens that it rejects.
        array_bounds: whether the `JsonFormat` limits the number of steps; otherwise only the check does.

    Raises:
        ConfigError: no plan is allowed.
        GrammarTooLarge: the grammar would be too large; use `relaxed_constraint` and rely on `PlanSpace.check`.
    """
    result = _cached_constraint(space, form, reasoning_chars, counted, array_bounds)
    if isinstance(result, ConfigError):
        raise type(result)(*result.args)
    return result


def relaxed_constraint(space: PlanSpace, form: Form, *, counted: bool = True) -> tuple[Grammar | None, str]:
    """Creates a grammar for a space with too many rules for an exact one, and names those that are left to the check.

    Returns:
        The grammar without the rules of flow, or `None` if that is too large as well; and the sentence that says so.
    """
    without_flows = space.model_copy(update={"forbidden_flows": frozenset()})
    try:
        grammar = constraint(without_flows, form, counted=counted)
    except GrammarTooLarge as error:
        return None, f"plans are not constrained while they are generated ({error}); they are checked afterwards"
    assert isinstance(grammar, Grammar)
    count = len(space.forbidden_flows)
    return grammar, (
        f"policy.forbid closes {count} flows between workers, too many for the grammar of plans; plans that break one "
        "are rejected after they are generated"
    )


@lru_cache(maxsize=256)
def _cached_constraint(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat | ConfigError:
    """Returns the constraint or the error; errors are cached, too, as they take longest."""
    try:
        return _create_constraint(space, form, reasoning_chars, counted, array_bounds)
    except ConfigError as error:
        return error.with_traceback(None)


def _create_constraint(
    space: PlanSpace, form: Form, reasoning_chars: int, counted: bool, array_bounds: bool
) -> Grammar | JsonFormat:
    if not space.choices:
        raise ConfigError(f"no plan is possible: no worker of the roster ({', '.join(space.roster)}) is allowed")
    if form == "object":
        return JsonFormat(name=PLAN_FORMAT_NAME, json_schema=plan_schema(space, array_bounds=array_bounds))
    if space.max_steps > MAX_STEPS:
        raise GrammarTooLarge(f"plans of up to {space.max_steps} steps; a grammar is written for at most {MAX_STEPS}")
    return Grammar(gbnf=_Writer(space).write(form, reasoning_chars, counted))


class _Kind(NamedTuple):
    """A group of workers that the flow rules treat identically."""

    ids: tuple[int, ...]
    last_ids: tuple[int, ...]
    """The ids of those that may do the last step."""
    closed: int
    """Mask of the kinds that must not see their replies."""


class _Read(NamedTuple):
    """One possible access list of a step."""

    text: str
    closed: int
    """Mask of the readers that must not see the reply of a step with this access list. A binary space leaves out the
    readers that are closed to the steps in the list, since readers of the reply read all of these steps too."""
    reads_all: bool
    """Whether the list includes every earlier step."""


class _Writer:
    """Writes the rules of one space; the rule of a state without any valid continuation is `None`."""

    def __init__(self, space: PlanSpace) -> None:
        self.space = space
        worker_groups = _group_workers(space)
        self.kinds = tuple(_kind(space, worker_groups, workers) for workers in worker_groups)
        self.closed_to_recall = None if space.recallable is None else _closed(space, worker_groups, space.recallable)
        """Mask of the kinds that must not see the earlier rounds; `None` in the first round."""
        self.rules = GrammarRules()
        self._rule_names: dict[tuple[object, ...], str | None] = {}
        self._states = 0

    def write(self, form: Form, reasoning_chars: int, counted: bool) -> str:
        """Writes the grammar in GBNF."""
        start = self._start() if form == "lists" else self._row(0, ())
        opening = f"{quote_literal(f'{LABELS[0]} = [')} " if form == "lists" else ""
        plans = [opening + start] if start else []
        if self.space.may_accept:
            plans.append(quote_literal(render(None, self.space, form)))
        if not plans:
            raise ConfigError("no plan is possible: the rules of this space contradict one another")
        strings = string_rules(self.space.subtask_chars if counted else None)
        first = {"root": "plan", "plan": " | ".join(plans), **strings}
        if reasoning_chars:
            reasoning = line_rule(reasoning_chars if counted else None, not_first="[" if form == "rows" else "")
            first |= {"root": "reasoning? plan", "reasoning": reasoning}
        return self.rules.text(first)

    def _start(self) -> str | None:
        """Adds the rules of the form `lists`."""
        return self._binary_workers(0, ()) if self.space.access == "binary" else self._workers(())

    # ------------------------------------------------------------------- the form `lists`, binary access

    def _binary_workers(self, closed: int, readable: tuple[bool, ...]) -> str | None:
        """Adds the rule for the rest of a plan after some workers, in a space where a step reads all or nothing.

        Args:
            closed: mask of the kinds that must not see the reply of one of these workers.
            readable: for each of them, whether its step may read all earlier steps.
        """
        if (key := ("binary", closed, readable)) not in self._rule_names:
            self._count()
            self._rule_names[key] = self.rules.add(self._next_binary_workers(closed, readable))
        return self._rule_names[key]

    def _next_binary_workers(self, closed: int, readable: tuple[bool, ...]) -> Iterator[str]:
        count, ids = len(readable) + 1, defaultdict[str, list[int]](list)
        for number, kind in enumerate(self.kinds):
            flags = (*readable, self._may_read_all(number, closed, is_first=not readable))
            if count < self.space.max_steps and (more := self._binary_workers(closed | kind.closed, flags)):
                ids[f'", " {more}'] += kind.ids
            if count >= self.space.min_steps and kind.last_ids and (end := self._binary_lists(flags)):
                ids[end] += kind.last_ids
        return (f"{self._ids(tuple(sorted(workers)))} {after}" for after, workers in ids.items())

    def _may_read_all(self, number: int, closed: int, *, is_first: bool) -> bool:
        """Returns whether a worker of this kind may read all that precedes its step, if there is anything."""
        if closed >> number & 1:
            return False
        return not is_first if self.closed_to_recall is None else not self.closed_to_recall >> number & 1

    def _binary_lists(self, readable: tuple[bool, ...]) -> str | None:
        """Adds the rule for the second and third list."""
        nothing, everything = quote_literal("[]"), quote_literal(dumps([ALL]))
        reads = [[nothing, everything] if may_read else [nothing] for may_read in readable]
        if self.space.last_reads_all and len(readable) > 1:
            reads[-1] = reads[-1][1:]
        if not reads[-1]:
            return None
        access = ' ", " '.join(str(self.rules.add(choices)) for choices in reads)
        return self.rules.add([f'{self._strings(len(readable))} {access} "]"'])

    # --------------------------------------------------------------- the form `lists`, positional access

    def _workers(self, prefix: tuple[int, ...]) -> str | None:
        """Adds the rule for the rest of a plan after a first list that starts with workers of the kinds `prefix`."""
        self._count()
        return self.rules.add(self._next_workers(prefix))

    def _next_workers(self, prefix: tuple[int, ...]) -> Iterator[str]:
        count = len(prefix) + 1
        for number, kind in enumerate(self.kinds):
            if count < self.space.max_steps and (more := self._workers((*prefix, number))):
                yield f'{self._ids(kind.ids)} ", " {more}'
            if count >= self.space.min_steps and kind.last_ids and (end := self._subtasks((*prefix, number))):
                yield f"{self._ids(kind.last_ids)} {end}"

    def _subtasks(self, prefix: tuple[int, ...]) -> str | None:
        """Adds the rule for the second and third list after a first list of workers of the kinds `prefix`."""
        self._count()
        own = tuple(_by_step(self.kinds[number].closed, prefix) >> step for step, number in enumerate(prefix))
        recalled = None if self.closed_to_recall is None else _by_step(self.closed_to_recall, prefix)
        access = self._access(0, (), own, recalled)
        return self.rules.add([f"{self._strings(len(prefix))} {access}"]) if access else None

    def _strings(self, count: int) -> str:
        """Renders the end of the first list, the second with this number of subtasks, and the start of the third."""
        strings = ' ", " '.join(["string"] * count)
        opening, closing = quote_literal(f"]\n{LABELS[1]} = ["), quote_literal(f"]\n{LABELS[2]} = [")
        return f"{opening} {strings} {closing}"

    def _access(self, index: int, past: tuple[int, ...], own: tuple[int, ...], recalled: int | None) -> str | None:
        """Adds the rule for the access lists from step `index` on; bit 0 of every mask is that step."""
        if (key := ("access", index, past, own, recalled)) not in self._rule_names:
            self._count()
            self._rule_names[key] = self.rules.add_grouped(self._next_access(index, past, own, recalled))
        return self._rule_names[key]

    def _next_access(
        self, index: int, past: tuple[int, ...], own: tuple[int, ...], recalled: int | None
    ) -> Iterator[tuple[str, str | None]]:
        later = None if recalled is None else recalled >> 1
        for read in self._reads(index, past, reader=0, own=own[0], recalled=recalled):
            if len(own) > 1:
                rest = self._access(index + 1, tuple(mask >> 1 for mask in self._after(past, read)), own[1:], later)
                yield read.text, rest and f'", " {rest}'
            elif read.reads_all or not self.space.last_reads_all:
                yield read.text, '"]"'

    # -------------------------------------------------------------------------------- the form `rows`

    def _row(self, index: int, past: tuple[int, ...]) -> str | None:
        """Adds the rule for the rows from step `index` on."""
        if (key := ("row", index, past)) not in self._rule_names:
            self._count()
            tail = self.rules.add(self._row_ends(index, past))
            self._rule_names[key] = tail and self.rules.add([f'"[" {tail}'])
        return self._rule_names[key]

    def _row_ends(self, index: int, past: tuple[int, ...]) -> Iterator[str]:
        for number, kind in enumerate(self.kinds):
            inner = tuple(i for i in kind.ids if i not in kind.last_ids)
            for ids, may_end in ((inner, False), (kind.last_ids, True)):
                reads = self._reads(index, past, reader=number, own=kind.closed, recalled=self.closed_to_recall)
                access = self.rules.add_grouped(
                    (read.text, self._after_row(index, past, read, may_end)) for read in reads
                )
                if ids and access:
                    yield f'{self._ids(ids)} ", " string ", " {access}'

    def _after_row(self, index: int, past: tuple[int, ...], read: _Read, may_end: bool) -> str | None:
        count = index + 1
        more = self._row(count, self._after(past, read)) if count < self.space.max_steps else None
        ends = may_end and count >= self.space.min_steps and (read.reads_all or not self.space.last_reads_all)
        inputs = self._inputs()
        if more:
            return f'{inputs}"]" ("\\n" {more})?' if ends else f'{inputs}"]\\n" {more}'
        return f'{inputs}"]"' if ends else None

    def _inputs(self) -> str:
        """Renders the list of inputs before the end of a row: all, or any subset in the order of the space."""
        if not self.space.inputs:
            return ""
        rest: str | None = None
        subsets: list[str] = []
        for name in reversed(self.space.inputs):
            subsets.append(quote_literal(dumps(name)) + (f' (", " {rest})?' if rest else ""))
            rest = self.rules.add(reversed(subsets))
        return f'", [" ("\\"{ALL}\\"" | {rest})? "]" '

    # ---------------------------------------------------------------------------------------- all forms

    def _reads(
        self, index: int, past: tuple[int, ...], *, reader: int, own: int, recalled: int | None
    ) -> Iterator[_Read]:
        """Yields the access lists that step `index` may have; `past` has the `closed` mask of each earlier step."""
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
                    self._count()
                    closed = own | _union(past[step] for step in steps) | ((recalled or 0) if recall else 0)
                    yield _Read(dumps([BEFORE] * recall + list(steps)), closed, count == index)

    def _after(self, past: tuple[int, ...], read: _Read) -> tuple[int, ...]:
        """Returns the `closed` masks of the earlier steps after a step with `read`; a binary space has one mask."""
        return (_union(past) | read.closed,) if self.space.access == "binary" else (*past, read.closed)

    def _ids(self, ids: tuple[int, ...]) -> str | None:
        return self.rules.add(quote_literal(str(i)) for i in ids)

    def _count(self) -> None:
        self._states += 1
        if self._states > MAX_STATES:
            raise GrammarTooLarge(f"the rules of this space take more than {MAX_STATES} states")


def _group_workers(space: PlanSpace) -> tuple[tuple[str, ...], ...]:
    """Groups the allowed workers by identical flow rules, as readers and as sources."""
    sources = [*space.choices, *sorted(space.recallable or ())]
    groups: dict[object, list[str]] = {}
    for worker in space.choices:
        reads = tuple(space.may_read(worker, source) for source in sources)
        read_by = tuple(space.may_read(reader, worker) for reader in space.choices)
        groups.setdefault((reads, read_by), []).append(worker)
    return tuple(tuple(group) for group in groups.values())


def _kind(space: PlanSpace, worker_groups: tuple[tuple[str, ...], ...], workers: tuple[str, ...]) -> _Kind:
    return _Kind(
        ids=tuple(space.roster.index(worker) for worker in workers),
        last_ids=tuple(space.roster.index(worker) for worker in workers if worker in space.final_workers),
        closed=_closed(space, worker_groups, workers[:1]),
    )


def _closed(space: PlanSpace, worker_groups: tuple[tuple[str, ...], ...], sources: Iterable[str]) -> int:
    """Returns the mask of the kinds that must not see content of any of `sources`."""
    return _union(
        1 << number
        for number, group in enumerate(worker_groups)
        for source in sources
        if not space.may_read(group[0], source)
    )


def _by_step(closed: int, kinds: tuple[int, ...]) -> int:
    """Converts a mask over kinds into a mask over steps; `kinds` has the kind of each step's worker."""
    return _union(1 << step for step, kind in enumerate(kinds) if closed >> kind & 1)


def _union(masks: Iterable[int]) -> int:
    return reduce(or_, masks, 0)
