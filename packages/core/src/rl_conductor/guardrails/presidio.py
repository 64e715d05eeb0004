"""`PresidioGuardrail`: finds personal data with Microsoft Presidio, on this machine, and redacts or refuses it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Literal

from rl_conductor.errors import ConfigError
from rl_conductor.guardrails.base import Allow, Content, Guardrail, Redact, Refuse, Stages, Verdict

try:
    import spacy
    import tldextract
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry, RecognizerResult
    from presidio_analyzer.nlp_engine import SpacyNlpEngine
    from presidio_analyzer.predefined_recognizers import EmailRecognizer
    from presidio_anonymizer import AnonymizerEngine
    from presidio_anonymizer.entities import OperatorConfig
    from presidio_anonymizer.entities import RecognizerResult as Finding
except ImportError as missing:
    raise ConfigError("the library 'presidio' is not installed: pip install 'rl-conductor[presidio]'") from missing

DEFAULT_ENTITIES = (
    "CREDIT_CARD",
    "CRYPTO",
    "EMAIL_ADDRESS",
    "IBAN_CODE",
    "IP_ADDRESS",
    "MAC_ADDRESS",
    "PHONE_NUMBER",
    "US_SSN",
)
"""Entities that are found by their pattern or check digits, without a language model. Names and places are not."""
DEFAULT_THRESHOLD = 0.4


@dataclass(kw_only=True, eq=False)
class PresidioGuardrail(Guardrail):
    """Replaces personal data by `<EMAIL_ADDRESS>` and the like, or refuses texts that contain any.

    Text in images and files is not read; see `attachments`.
    """

    rewrites: ClassVar[bool] = True

    name: str = "pii"
    stages: Stages = ("input", "reply", "answer")
    action: Literal["redact", "refuse"] = "redact"
    entities: Sequence[str] = DEFAULT_ENTITIES
    """Kinds of data, by Presidio's names."""
    threshold: float = DEFAULT_THRESHOLD
    """Lowest confidence, from 0 to 1."""
    language: str = "en"
    attachments: Literal["allow", "refuse"] = "allow"
    """Whether requests with images and files, which are not read, may pass."""
    operators: Mapping[str, OperatorConfig] | None = None
    """How to replace each entity, such as `{"PHONE_NUMBER": OperatorConfig("mask", ...)}`."""
    analyzer: AnalyzerEngine | None = field(default=None, repr=False)
    """Your own engine, for instance one with a spaCy model that finds names; by default one that needs no model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.action not in ("redact", "refuse"):
            raise ConfigError(f"action is {self.action!r}; write 'redact' or 'refuse'")
        if self.attachments not in ("allow", "refuse"):
            raise ConfigError(f"attachments is {self.attachments!r}; write 'allow' or 'refuse'")
        self.analyzer = self.analyzer or _pattern_analyzer(self.language)
        supported = self.analyzer.get_supported_entities(self.language)
        if unknown := sorted(set(self.entities).difference(supported)):
            raise ConfigError(
                f"entities has {', '.join(unknown)}, which the analyzer does not find; write some of "
                f"{', '.join(sorted(supported))}, or pass an analyzer=... that does"
            )

    async def check(self, content: Content) -> Verdict:
        """Redacts or refuses personal data; the reason names its kinds."""
        if self.attachments == "refuse" and (content.images or content.files):
            return Refuse("images and files can't be checked for personal data")
        return await asyncio.to_thread(self._check, content.texts)

    def _check(self, texts: Sequence[str]) -> Verdict:
        redacted, kinds = [], set[str]()
        for text in texts:
            findings = self._find(text)
            kinds.update(finding.entity_type for finding in findings)
            redacted.append(self._redact(text, findings) if findings else text)
        if not kinds:
            return Allow()
        reason = f"found {', '.join(sorted(kinds))}"
        return Refuse(reason) if self.action == "refuse" else Redact(tuple(redacted), reason)

    def _find(self, text: str) -> list[RecognizerResult]:
        assert self.analyzer is not None
        return self.analyzer.analyze(text, self.language, entities=list(self.entities), score_threshold=self.threshold)

    def _redact(self, text: str, findings: Sequence[RecognizerResult]) -> str:
        results = [Finding(each.entity_type, each.start, each.end, each.score) for each in findings]
        return str(_anonymizer().anonymize(text, results, operators=dict(self.operators or {}) or None).text)


@cache
def _anonymizer() -> Any:
    return AnonymizerEngine()  # type: ignore[no-untyped-call]


@cache
def _pattern_analyzer(language: str) -> AnalyzerEngine:
    """Creates an engine that recognizes by patterns and check digits, and needs neither a model nor the network."""
    registry = RecognizerRegistry(supported_languages=[language])
    registry.load_predefined_recognizers(languages=[language])
    registry.remove_recognizer("EmailRecognizer")
    registry.remove_recognizer("SpacyRecognizer")  # it would find no names without a model
    registry.add_recognizer(_OfflineEmailRecognizer(supported_language=language))
    return AnalyzerEngine(registry=registry, nlp_engine=_Tokenizer(language), supported_languages=[language])


class _Tokenizer(SpacyNlpEngine):
    """Splits text into words without a trained model."""

    def __init__(self, language: str) -> None:
        super().__init__(models=[{"lang_code": language, "model_name": "blank"}])
        self.nlp = {language: spacy.blank(language)}  # type: ignore[assignment]


class _OfflineEmailRecognizer(EmailRecognizer):
    """Checks the domain against the packaged list of suffixes; Presidio's own downloads one."""

    _suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

    def validate_result(self, pattern_text: str) -> bool:
        return bool(self._suffixes(pattern_text).fqdn)
