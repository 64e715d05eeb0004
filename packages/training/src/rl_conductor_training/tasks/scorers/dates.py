"""The scorer of dates in any common notation, such as `2026-03-05`, `5 March 2026`, `05.03.2026`, `2026年3月5日`."""

from __future__ import annotations

import re
from datetime import date

from rl_conductor.scoring import Sample, Score, compared, wrong
from rl_conductor_training.tasks.scorers.answers import extract_final_answer

_MONTHS = ("jan", "feb", "m[aä]r", "apr", "ma[yi]", "jun", "jul", "aug", "sep", "o[ck]t", "nov", "de[cz]")
"""The beginnings of the English and German names."""
_MONTH = rf"(?P<{{}}>{'|'.join(_MONTHS)})[a-zä]{{{{0,6}}}}\.?"
_ORDINAL = r"(?:st|nd|rd|th|\.)?"
_DATE = re.compile(
    r"(?<!\d)(?:"
    r"(?P<y1>\d{4})(?P<separator>[-/.])(?P<m1>\d{1,2})(?P=separator)(?P<d1>\d{1,2})"
    r"|(?P<d2>\d{1,2})\. ?(?P<m2>\d{1,2})\. ?(?P<y2>\d{4})"
    r"|(?P<first>\d{1,2})(?P<slash>[/-])(?P<second>\d{1,2})(?P=slash)(?P<y3>\d{4})"
    r"|(?P<y6>\d{4})年 ?(?P<m6>\d{1,2})月 ?(?P<d6>\d{1,2})日"
    rf"|(?P<d4>\d{{1,2}}){_ORDINAL}(?: of)?[ -]?{_MONTH.format('m4')},?[ -]?(?P<y4>\d{{4}})"
    r")(?!\d)"
    rf"|(?<!\w){_MONTH.format('m5')} (?P<d5>\d{{1,2}}){_ORDINAL},? (?P<y5>\d{{4}})(?!\d)",
    re.IGNORECASE,
)


async def same_date(sample: Sample, text: str) -> Score:
    """Compares the last date of the announced answer, else of the reply."""
    readings = find_dates(extract_final_answer(text)) or find_dates(text)
    if len(readings) == 2:
        both = " or ".join(sorted(map(str, readings)))
        return wrong(both, f"the date can be read as {both}; ask for one like {sample.answer}")
    (expected,) = find_dates(sample.answer)
    answer = next(map(str, readings), None)
    return compared(right=answer == str(expected), answer=answer, expected=str(expected))


def find_dates(text: str) -> frozenset[date]:
    """Returns the readings of the last date in a text: none, one, or two if month and day of `5/3/2026` are unclear."""
    readings = [dates for match in _DATE.finditer(text) if (dates := _read(match))]
    return readings[-1] if readings else frozenset()


def is_date(text: str) -> bool:
    """Whether a text is a date with a single reading, and nothing else."""
    text = text.strip()
    return _DATE.fullmatch(text) is not None and len(find_dates(text)) == 1


def _read(match: re.Match[str]) -> frozenset[date]:
    """Returns the readings of a date that exist in the calendar."""
    parts = {name: value for name, value in match.groupdict().items() if value is not None}
    if "first" in parts:
        orders = [(parts["second"], parts["first"]), (parts["first"], parts["second"])]
        year = parts["y3"]
    else:
        number = next(name[1] for name in parts if name[0] == "y")
        orders, year = [(parts[f"m{number}"], parts[f"d{number}"])], parts[f"y{number}"]
    days = (_day(int(year), month, int(day)) for month, day in orders)
    return frozenset(filter(None, days))


def _day(year: int, month: str, day: int) -> date | None:
    """Returns the day of a month, given by number or name; `None` if there is no such day."""
    number = int(month) if month.isdecimal() else _month_number(month)
    try:
        return date(year, number, day)
    except ValueError:
        return None


def _month_number(name: str) -> int:
    return next(number for number, pattern in enumerate(_MONTHS, start=1) if re.match(pattern, name, re.IGNORECASE))
