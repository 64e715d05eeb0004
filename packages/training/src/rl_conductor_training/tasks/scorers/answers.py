"""Extracts answers from replies and compares them: text, numbers, letters. Pure functions.

The extracted answer is kept in the `Score`, so that a wrong grade can be seen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from decimal import Decimal, InvalidOperation

from rl_conductor_training.tasks.scorers.scripts import NO_WORD_AFTER, NO_WORD_BEFORE, normalize_width, whole_words

_MINUS_SIGN = "\N{MINUS SIGN}"
_THIN_BLANKS = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
_APOSTROPHES = "'\N{RIGHT SINGLE QUOTATION MARK}"
_DECIMAL_COMMA = (
    rf"(?<![\d.,])(?:\d{{1,3}}(?:[.{_THIN_BLANKS}{_APOSTROPHES}]\d{{3}})+,\d+|\d{{1,3}}(?:\.\d{{3}}){{2,}}"
    r"|0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?![.,]?\d)"
)
"""A number whose comma can't stand between thousands, or whose points do: `3,5`, `0,125`, `1.234,50`, `1.234.567`, but
not `1,290`, `1.290` or a list."""
_NUMBER = re.compile(
    rf"[-+{_MINUS_SIGN}]?(?:(?P<decimal_comma>{_DECIMAL_COMMA})"
    rf"|(?:\d{{1,3}}(?:[,{_THIN_BLANKS}{_APOSTROPHES}]\d{{3}})+|\d{{1,2}}(?:,\d\d)+,\d{{3}}|\d+)(?:\.\d+)?"
    r"|(?<![\w.])\.\d+)(?:[eE][-+]?\d+)?"
)
"""Thousands may be separated as in India (`12,34,567`) or Switzerland (`1'234'567`)."""
_ARABIC_SEPARATORS = str.maketrans("\N{ARABIC DECIMAL SEPARATOR}\N{ARABIC THOUSANDS SEPARATOR}", ".,")
_DIGIT_GROUPS = re.compile(r"\D*\d{1,3}(?: \d{3})+(?:\.\d+|,\d{1,2})?\D*")
_TO_ASCII = str.maketrans(_MINUS_SIGN, "-", f",{_THIN_BLANKS}{_APOSTROPHES}")
# Possessive, since a reply may hold thousands of blanks after "answer" and must not make us try every split of them.
_ANSWER = "(?:answer|antwort|答案|答え|正解|उत्तर|الجواب|الإجابة)"
_IS = "is|ist|lautet|是|为|為|は|هو|هي|[:：]"
_FINAL = re.compile(rf"{_ANSWER}\s*+(?:{_IS})[\s:：*]*+(.+)", re.IGNORECASE)
_LABEL = re.compile(rf"{_ANSWER}\s*+[:：]", re.IGNORECASE)
_MAX_DIGITS = 100_000
"""Before the point of a number: arithmetic with more of them fails."""
_LATEX_DELIMITER = re.compile(r"\$|\\[()\[\]]")
_LATEX_FONT = re.compile(r"\\(?:text|textbf|textrm|mathrm|mathbf|mathsf|boldsymbol|bf|rm)\s*+\{([^{}]*+)\}")
_INNER_PUNCTUATION = "#%&()-/@[\\]_{}\N{PER MILLE SIGN}"
"""Punctuation that is part of an answer where it begins or ends with it: `-5`, `50%`, `C#`, `[0, 1)`."""
_ONES: tuple[str, ...] = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_ONES += ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


# ---------------------------------------------------------------------------------------- extracting


def extract_boxed(text: str) -> str | None:
    r"""Returns the content of the last `\boxed{...}`, or `None`."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for index in range(begin, len(text)):
        if text[index] == "}" and depth == 0:
            return text[begin:index].strip()
        depth += {"{": 1, "}": -1}.get(text[index], 0)
    return None


def extract_final_answer(text: str) -> str:
    """Extracts the announced answer: boxed, after "answer is" or "answer:" in some languages, else its last line."""
    box = extract_boxed(text)
    if box is not None:
        return box
    announced = _FINAL.findall(text)
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return (announced[-1] if announced else lines[-1] if lines else "").strip().strip("*`")


def extract_final_lines(text: str) -> str:
    """Extracts an answer of several lines: boxed, else all that follows the last "answer:", else the whole reply."""
    box = extract_boxed(text)
    return _LABEL.split(text)[-1].strip("*`\n ") if box is None else box


def extract_last_number(text: str) -> Decimal | None:
    """Extracts the last number in `text`, accepting thousands separators and decimal commas; `None` without one."""
    matches = list(_NUMBER.finditer(normalize_width(text).translate(_ARABIC_SEPARATORS)))
    if not matches:
        return None
    digits = matches[-1][0]
    if matches[-1]["decimal_comma"]:
        digits = digits.replace(".", "").replace(",", ".")
    try:
        number = Decimal(digits.translate(_TO_ASCII))
    except InvalidOperation:  # an exponent beyond the range of Decimal
        return None
    return number if number.adjusted() < _MAX_DIGITS else None


def join_digit_groups(text: str) -> str:
    """Removes the blanks between the thousands of the only number of a text, as in `1 000 000 km`."""
    return text.replace(" ", "") if _DIGIT_GROUPS.fullmatch(text) else text


def extract_choice(text: str, letters: str) -> str | None:
    """Extracts the letter of `letters` that a reply chooses, preferably in a box; `None` without a clear one."""
    text = normalize_width(text)
    box = extract_boxed(text)
    boxed = None if box is None else _boxed_choice(letters).match(_remove_latex(box))
    text = _remove_latex(text)
    whole_reply = re.fullmatch(rf"\W*([{letters}])\W*", text, re.IGNORECASE)
    choices = _choice_pattern(letters).findall(text)
    announced = [letter for label, letter in choices if label] or [letter for _, letter in choices]
    prefix = re.match(rf"[\s*(]*([{letters}])[).:*。、]", text)
    match = boxed or whole_reply
    letter = match[1] if match else announced[-1] if announced else prefix[1] if prefix else None
    return None if letter is None else letter.upper()


def extract_label(text: str, labels: Sequence[str]) -> str | None:
    """Extracts the label that a reply chooses; `None` if it names none, or several.

    A label that is the final answer counts first, then labels alone in a line or after a colon, then those anywhere in
    the final answer, then in the reply. Letters are searched in upper case and in the final answer only, where `A`
    before a word is an article.
    """
    by_name = {normalize_text(label): label for label in labels}
    final = extract_final_answer(text)
    alone = [normalize_text(part) for line in text.splitlines() for part in (line, line.rpartition(":")[2])]
    choices: list[list[str]]
    if all(re.fullmatch("[A-Za-z]", label) for label in labels):
        letters = "".join(labels).upper()
        letter = rf"(?!A (?!or |and )[a-z]){NO_WORD_BEFORE}[{letters}]{NO_WORD_AFTER}"
        in_final = re.findall(letter, normalize_width(final))
        choices = [[extract_choice(text, letters) or ""], alone, in_final]
    else:
        choices = [[normalize_text(final)], alone, _find_names(final, by_name), _find_names(text, by_name)]
    for names in choices:
        if matches := {by_name[name.lower()] for name in names if name.lower() in by_name}:
            return matches.pop() if len(matches) == 1 else None
    return None


def _find_names(text: str, names: Iterable[str]) -> list[str]:
    """Finds normalized names in a text as whole words; of two that begin at the same word, the longer one."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.findall("|".join(map(whole_words, longest_first)), normalize_text(text))


def _remove_latex(text: str) -> str:
    r"""Removes LaTeX's markup of letters: dollar signs, `\(` and `\)`, and commands such as `\text{...}`."""
    return _LATEX_FONT.sub(r"\1", _LATEX_DELIMITER.sub("", text))


def _boxed_choice(letters: str) -> re.Pattern[str]:
    """Matches a letter that is alone in a box or labels an option, as in `(C) 12`, but not `A = 12`."""
    return re.compile(rf"\W*([{letters}])(?:\W*\Z|\s*[).:])", re.IGNORECASE)


def _choice_pattern(letters: str) -> re.Pattern[str]:
    """Matches a letter after "answer is", "answer:" or "answer" alone; "a" before another word is an article."""
    announced = rf"(?i:{_ANSWER}[\s*]*+({_IS})?)[\s:*(]*+"
    return re.compile(rf"{announced}([{letters}]{NO_WORD_AFTER}|[{letters.lower()}]{NO_WORD_AFTER}(?! +\w))")


# -------------------------------------------------------------------------------------- comparing


def normalize_text(text: str) -> str:
    """Removes case, punctuation at the ends, repeated blanks, and other encodings of accents and widths.

    The point of `.5` is part of the number.
    """
    text = " ".join(unicodedata.normalize("NFC", normalize_width(text).casefold()).split())
    edges = "".join(filter(_is_edge, set(text)))
    words = text.rstrip(edges)
    bare = words.lstrip(edges)
    point = "." if bare[:1].isdigit() and words.removesuffix(bare).endswith(".") else ""
    return point + bare


def _is_edge(char: str) -> bool:
    """Whether a character at an end of a text is not part of the answer: a blank, or punctuation of any script."""
    category = unicodedata.category(char)
    is_outer = category.startswith("P") and category != "Pd"
    return char in " `" or (is_outer and unicodedata.normalize("NFKC", char) not in _INNER_PUNCTUATION)


def contains_words(text: str, expected: str) -> bool:
    """Whether a text contains another as whole words or numbers, ignoring case: `30 Euro` but not `130 euros`."""
    words = normalize_text(expected)
    return bool(words) and re.search(whole_words(words), normalize_text(text)) is not None


def numbers_match(first: Decimal, second: Decimal, *, tolerance: float = 1e-6) -> bool:
    """Whether two numbers differ by at most `tolerance` times the larger one."""
    if not (first.is_finite() and second.is_finite()):
        return False
    return abs(first - second) <= Decimal(tolerance) * max(abs(first), abs(second))


def words_match(answer: str, expected: str) -> bool:
    """Whether two texts are equal up to hyphens, quotes and a full stop; case counts."""
    return answer.strip(" .\n'\"`*").replace("-", " ").split() == expected.replace("-", " ").split()


def number_to_words(number: int) -> str:
    """Spells a number from 0 to 999 in English words."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_ONES[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_ONES[hundreds]} hundred" + (f" and {number_to_words(rest)}" if rest else "")
