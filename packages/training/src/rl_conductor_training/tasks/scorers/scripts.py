"""Word boundaries and character widths in scripts for which regular expressions know none. Pure."""

from __future__ import annotations

import re
import unicodedata

_KATAKANA = "\u30a1-\u30fa\u30fc"
_HANGUL = "\uac00-\ud7af"
_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_UNSPACED = f"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u30ff{_HAN}{_HANGUL}"
"""Thai, Lao, Burmese, Khmer, kana, Chinese characters: words follow one another without spaces. In Korean, endings and
particles follow a word so."""
_INDIC = "\u0900-\u0963\u0966-\u0dff"
"""Letters and vowel signs from Devanagari to Sinhala; `\\w` does not match the signs."""
_WIDTH_VARIANTS = re.compile("[\u3000\uff01-\uffee]+")

NO_WORD_BEFORE = rf"(?<![^\W{_UNSPACED}])(?<![{_INDIC}])"
"""Matches where no word of a script with spaces ends."""
NO_WORD_AFTER = rf"(?![^\W{_UNSPACED}])(?![{_INDIC}])"
"""Matches where no word of a script with spaces begins."""


def whole_words(words: str) -> str:
    """Returns the pattern of words that are not part of longer words, or of numbers such as `1.30` or `30,5`.

    Of Chinese and other scripts without spaces, only katakana and the beginning of Korean words have boundaries.
    """
    return _boundary_before(words[0]) + re.escape(words) + _boundary_after(words[-1])


def _boundary_before(char: str) -> str:
    for alphabet in (_KATAKANA, _HANGUL):
        if re.match(f"[{alphabet}]", char):
            return f"(?<![{alphabet}])"
    if re.match(f"[{_UNSPACED}]", char):
        return ""
    return NO_WORD_BEFORE + (r"(?<!\d[.,])" if char.isdecimal() else "")


def _boundary_after(char: str) -> str:
    if re.match(f"[{_KATAKANA}]", char):
        return f"(?![{_KATAKANA}])"
    if re.match(f"[{_UNSPACED}]", char):
        return ""
    return NO_WORD_AFTER + (r"(?![.,]\d)" if char.isdecimal() else "")


def normalize_width(text: str) -> str:
    """Replaces full-width letters, digits and punctuation, and half-width katakana, by those of the usual width."""
    return _WIDTH_VARIANTS.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
