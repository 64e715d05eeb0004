"""`ModerationGuardrail`: refuses content that a vendor's moderation endpoint flags, through the vendor's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import InitVar, dataclass, field

from rl_conductor.errors import ConfigError
from rl_conductor.guardrails.base import Allow, Content, Guardrail, Refuse, Stages, Verdict
from rl_conductor.models.openai.moderation import Classification, Classifications, ModerationModel
from rl_conductor.types import Card, Message, Request, TextPart


@dataclass(kw_only=True, eq=False)
class ModerationGuardrail(Guardrail):
    """Sends texts and images to OpenAI's `/v1/moderations`, or a compatible one, and refuses content that it flags."""

    name: str = "moderation"
    stages: Stages = ("input", "answer")
    model: str = "omni-moderation-latest"
    thresholds: Mapping[str, float] | None = None
    """The lowest score that is refused, by category, such as `violence`; other categories are allowed. By default, the
    vendor decides."""
    base_url: InitVar[str | None] = None
    api_key: InitVar[str | None] = None
    """The API key, by default from `OPENAI_API_KEY`."""
    _endpoint: ModerationModel = field(init=False, repr=False)

    def __post_init__(self, base_url: str | None, api_key: str | None) -> None:
        super().__post_init__()
        for category, threshold in (self.thresholds or {}).items():
            if not 0 <= threshold <= 1:
                raise ConfigError(f"thresholds has {category!r}: {threshold!r}; write a score from 0 to 1")
        self._endpoint = ModerationModel(self.model, base_url=base_url, api_key=api_key)
        if self.card is None:
            self.card = Card(name=self.name, tags=frozenset({"external", "openai"}))

    async def check(self, content: Content) -> Verdict:
        """Refuses texts or images that are flagged, and names the categories."""
        parts = (*(TextPart(text=text) for text in content.texts), *content.images)
        if not parts:
            return Allow("nothing to check")
        request = Request(messages=(Message(role="user", content=parts),), timeout=self.timeout)
        reply = await content.call(self._endpoint, request)
        results = Classifications.model_validate_json(reply.text).results
        flagged = sorted({category for result in results for category in self._flagged(result)})
        return Refuse(f"flagged as {', '.join(flagged)}") if flagged else Allow()

    def _flagged(self, result: Classification) -> list[str]:
        if self.thresholds is None:
            categories = [category for category, is_flagged in result.categories.items() if is_flagged]
            return categories or (["unspecified"] if result.flagged else [])
        scores = result.category_scores
        return [category for category, limit in self.thresholds.items() if (scores.get(category) or 0.0) >= limit]

    async def aclose(self) -> None:
        """Closes the connections of the running event loop."""
        await self._endpoint.aclose()
