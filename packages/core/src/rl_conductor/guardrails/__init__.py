"""Guardrails: checks of the request, of prompts and replies, and of the answer, which may change or refuse them.

In: the texts of one stage of a run. Out: the texts to use instead, and a `GuardrailCheck` for the trace.
"""

from rl_conductor.guardrails.base import Allow, Content, Guardrail, Redact, Refuse, Replace, Verdict
from rl_conductor.guardrails.groundedness import GroundednessGuardrail
from rl_conductor.guardrails.messages import check_messages
from rl_conductor.trace.checks import GuardrailCheck, Stage

__all__ = [
    "Allow",
    "Content",
    "GroundednessGuardrail",
    "Guardrail",
    "GuardrailCheck",
    "Redact",
    "Refuse",
    "Replace",
    "Stage",
    "Verdict",
    "check_messages",
]
