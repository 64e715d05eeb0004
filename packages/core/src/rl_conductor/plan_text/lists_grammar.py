"""The grammar of plans in the form `lists`: all workers, then all subtasks, then all access lists. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from rl_conductor.plan_text.forms import ALL, LABELS, dumps
from rl_conductor.plan_text.gbnf import quote_literal
from rl_conductor.plan_text.plan_states import Masks, PlanStates, is_closed, state, union


class BinaryListsGrammar(PlanStates):
    """Adds the rules of plans in `lists` where a step reads all earlier steps or none.

    Whether a step may read the earlier ones depends on their workers only, so it is known before the access lists.
    """

    def start(self) -> str | None:
        """Adds the rule for a whole plan."""
        workers = self._workers(0, ())
        return workers and f"{_opening(0)} {workers}"

    @state
    def _workers(self, closed_to: int, may_read: tuple[bool, ...]) -> str | None:
        """Adds the rule for the rest of a plan after some workers.

        Args:
            closed_to: mask of the kinds that must not see the reply of one of these workers.
            may_read: for each of them, whether its step may read all earlier steps.
        """
        return self.rules.add(self._next_workers(closed_to, may_read))

    def _next_workers(self, closed_to: int, may_read: tuple[bool, ...]) -> Iterator[str]:
        count, ids = len(may_read) + 1, defaultdict[str, list[int]](list)
        for number, kind in enumerate(self.kinds):
            flags = (*may_read, self._may_read_all(number, closed_to, is_first=not may_read))
            if count < self.space.max_steps and (more := self._workers(closed_to | kind.closed_to, flags)):
                ids[f'", " {more}'] += kind.ids
            if count >= self.space.min_steps and kind.last_ids and (end := self._access_lists(flags)):
                ids[end] += kind.last_ids
        for after, workers in ids.items():
            yield f"{self.worker_ids(tuple(sorted(workers)))} {after}"

    def _may_read_all(self, number: int, closed_to: int, *, is_first: bool) -> bool:
        """Returns whether a worker of this kind may read all that precedes its step, if there is anything."""
        if is_closed(closed_to, number):
            return False
        return not is_first if self.recall_closed_to is None else not is_closed(self.recall_closed_to, number)

    def _access_lists(self, may_read: tuple[bool, ...]) -> str | None:
        """Adds the rule for the second and third list."""
        nothing, everything = quote_literal("[]"), quote_literal(dumps([ALL]))
        choices = [[nothing, everything] if is_allowed else [nothing] for is_allowed in may_read]
        if self.space.last_reads_all and len(may_read) > 1:
            choices[-1] = choices[-1][1:]
        if not choices[-1]:
            return None
        access = ' ", " '.join(str(self.rules.add(alternatives)) for alternatives in choices)
        return self.rules.add([f'{_subtasks(len(may_read))} {access} "]"'])


class PositionalListsGrammar(PlanStates):
    """Adds the rules of plans in `lists` where a step reads any earlier steps. A reader is a later step."""

    def start(self) -> str | None:
        """Adds the rule for a whole plan."""
        workers = self._workers(())
        return workers and f"{_opening(0)} {workers}"

    @state
    def _workers(self, prefix: tuple[int, ...]) -> str | None:
        """Adds the rule for the rest of a plan after a first list that starts with workers of the kinds `prefix`."""
        return self.rules.add(self._next_workers(prefix))

    def _next_workers(self, prefix: tuple[int, ...]) -> Iterator[str]:
        count = len(prefix) + 1
        for number, kind in enumerate(self.kinds):
            if count < self.space.max_steps and (more := self._workers((*prefix, number))):
                yield f'{self.worker_ids(kind.ids)} ", " {more}'
            if count >= self.space.min_steps and kind.last_ids and (end := self._second_list((*prefix, number))):
                yield f"{self.worker_ids(kind.last_ids)} {end}"

    @state
    def _second_list(self, kinds: tuple[int, ...]) -> str | None:
        """Adds the rule for the second and third list after a first list of workers of these kinds."""
        closed_to = tuple(_by_step(self.kinds[number].closed_to, kinds) >> step for step, number in enumerate(kinds))
        recall_closed_to = None if self.recall_closed_to is None else _by_step(self.recall_closed_to, kinds)
        access = self._access(0, (), closed_to, recall_closed_to)
        return self.rules.add([f"{_subtasks(len(kinds))} {access}"]) if access else None

    @state
    def _access(self, index: int, replies: Masks, closed_to: Masks, recall_closed_to: int | None) -> str | None:
        """Adds the rule for the access lists from step `index` on. Bit 0 of every mask is that step.

        Args:
            index: position of the step, from 0.
            replies: the masks of the earlier replies.
            closed_to: for this step and each later one, the steps that must not see a reply of its worker.
            recall_closed_to: the steps that must not see the earlier rounds; `None` in the first round.
        """
        return self.rules.add_grouped(self._next_access(index, replies, closed_to, recall_closed_to))

    def _next_access(
        self, index: int, replies: Masks, closed_to: Masks, recall_closed_to: int | None
    ) -> Iterator[tuple[str, str | None]]:
        later_recall = None if recall_closed_to is None else recall_closed_to >> 1
        for access in self.access_lists(
            index, replies, reader=0, closed_to=closed_to[0], recall_closed_to=recall_closed_to
        ):
            if len(closed_to) > 1:
                later_replies = tuple(mask >> 1 for mask in self.with_reply(replies, access))
                rest = self._access(index + 1, later_replies, closed_to[1:], later_recall)
                yield access.text, rest and f'", " {rest}'
            elif access.reads_all or not self.space.last_reads_all:
                yield access.text, '"]"'


def _opening(number: int) -> str:
    """Renders the start of a list, after the end of the one before."""
    return quote_literal(("]\n" if number else "") + f"{LABELS[number]} = [")


def _subtasks(count: int) -> str:
    """Renders the end of the first list, the second with this number of subtasks, and the start of the third."""
    strings = ' ", " '.join(["string"] * count)
    return f"{_opening(1)} {strings} {_opening(2)}"


def _by_step(closed_to: int, kinds: tuple[int, ...]) -> int:
    """Converts a mask of kinds into a mask of steps; `kinds` has the kind of each step's worker."""
    return union(1 << step for step, kind in enumerate(kinds) if is_closed(closed_to, kind))
