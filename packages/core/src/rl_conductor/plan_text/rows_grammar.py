"""The grammar of plans in the form `rows`, a line for each step: `[worker, "subtask", access]`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from rl_conductor.plan_text.forms import ALL, dumps
from rl_conductor.plan_text.gbnf import quote_literal
from rl_conductor.plan_text.plan_states import AccessList, Masks, PlanStates, state


class RowsGrammar(PlanStates):
    """Adds the rules of plans in `rows`. A reader is a kind of worker."""

    def start(self) -> str | None:
        """Adds the rule for a whole plan."""
        return self._row(0, ())

    @state
    def _row(self, index: int, replies: Masks) -> str | None:
        """Adds the rule for the rows from step `index` on."""
        after_bracket = self.rules.add(self._row_ends(index, replies))
        return after_bracket and self.rules.add([f'"[" {after_bracket}'])

    def _row_ends(self, index: int, replies: Masks) -> Iterator[str]:
        for number, kind in enumerate(self.kinds):
            inner_ids = tuple(i for i in kind.ids if i not in kind.last_ids)
            for ids, may_end in ((inner_ids, False), (kind.last_ids, True)):
                access_lists = self.access_lists(
                    index, replies, reader=number, closed_to=kind.closed_to, recall_closed_to=self.recall_closed_to
                )
                access = self.rules.add_grouped(
                    (each.text, self._after_access(index, replies, each, may_end)) for each in access_lists
                )
                if ids and access:
                    yield f'{self.worker_ids(ids)} ", " string ", " {access}'

    def _after_access(self, index: int, replies: Masks, access: AccessList, may_end: bool) -> str | None:
        """Renders the rest of the row and of the plan; `None` if it can neither go on nor end here."""
        count = index + 1
        more = self._row(count, self.with_reply(replies, access)) if count < self.space.max_steps else None
        ends = may_end and count >= self.space.min_steps and (access.reads_all or not self.space.last_reads_all)
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
