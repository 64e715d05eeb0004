"""Questions as a teacher of mathematics would write them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        "Exercise: determine {subject}.",
        "Let q denote {subject}. What is the value of q?",
    ),
    numbers=("Consider the whole number {subject}.",),
    figures=(
        "Give the result in digits, with no further text.",
        "Form of the answer: figures only.",
        "No working, units or explanation may accompany the number, which must be written in numerals.",
        "Your entire reply should be made up of the digits 0 to 9, without separators, and nothing besides.",
    ),
    words=(
        "Express the number as an English number word in lower case, and add nothing to it.",
        "Required notation: the English number word, entirely in small letters, unaccompanied by any other text.",
        "Digits are not admissible here; what is wanted is the number spelled out in lower-case English, alone.",
        (
            "In your reply, which must contain no comment or working, the number is to appear solely "
            "as an English word without capital letters."
        ),
    ),
    entities={
        "town": (
            "the town that bears the name {name}",
            "{name} (the town so called)",
            "the municipality of {name}",
            "the town listed in the national register as {name}",
        ),
        "ship": (
            "the vessel {name}",
            'the ship whose name is "{name}"',
            "{name} (a ship of the national fleet)",
            "the ship that sails under the name {name}",
        ),
    },
    related={
        "town": (
            "the town assigned to {name} as its twin",
            "the unique twin town of {name}",
            "{name}'s twin town",
            "the town which is recorded as being the twin of {name}",
        ),
        "ship": (
            "the town that serves as home port to the ship {name}",
            "the home port of the vessel {name}",
            "the town in which the ship {name} is registered as having its home port",
            "the ship {name}'s home port",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "The product of {a} and {x} is formed, and {b} is then added to this product. What "
                "remainder does the resulting sum leave on division by {m}?"
            ),
        ),
        lambda n: (n.x * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Denote {x} by n. Square n, multiply the square by {a}, and increase the outcome by {b}; "
                "find the least non-negative residue of the total modulo {m}."
            ),
        ),
        lambda n: (n.a * n.x**2 + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Start from {x}. Multiply by {a}. Double what you have obtained. Subtract {b}. Divide by "
                "{m}, discarding the whole-number quotient. Which remainder is kept?"
            ),
        ),
        lambda n: (2 * n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Given that s is the sum of {b} and {x}, and that p is the product of {a} and s, calculate "
                "the remainder of p when {m} is the divisor."
            ),
        ),
        lambda n: ((n.x + n.b) * n.a) % n.m,
    ),
    Formula(
        (
            (
                "If {a} times {x} is taken away from 5,000,000, and {m} is subtracted from the difference "
                "again and again until a number smaller than {m} is reached, what is that number?"
            ),
        ),
        lambda n: (5000000 - n.a * n.x) % n.m,
    ),
    Formula(
        (
            (
                "A printer produces {a} sheets of paper on each working day, and the number of working "
                "days equals {x}. Of all the sheets produced, {b} are spoiled and thrown away; the others "
                "are bound into exercise books of exactly {m} sheets, as many books as possible being "
                "made. How many good sheets remain unbound?"
            ),
        ),
        lambda n: (n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Two warehouses store tiles. In the first, the number of crates is equal to {x}, with {a} "
                "tiles in every crate; in the second there are 250 crates, each containing {b} tiles. "
                "Suppose that all these tiles are brought together and laid in complete rows of {m}, until "
                "too few are left for another row. State the number of tiles left."
            ),
        ),
        lambda n: (n.x * n.a + 250 * n.b) % n.m,
    ),
    Formula(
        (
            (
                "On every one of the seven days of a week, a machine makes {a} buttons, and at the end of "
                "the week it makes {b} more. This is repeated week after week, the total number of weeks "
                "being {x}. When the whole output has been packed into as many full boxes of {m} buttons "
                "as it will fill, how many buttons have no box?"
            ),
        ),
        lambda n: ((7 * n.a + n.b) * n.x) % n.m,
    ),
    Formula(
        (
            (
                "Two factors are defined as follows: the first exceeds {x} by {a}, while the second "
                "exceeds {x} by {b}. Multiply the two factors together, then reduce their product modulo "
                "{m} to an integer that is at least 0 and less than {m}."
            ),
        ),
        lambda n: ((n.x + n.a) * (n.x + n.b)) % n.m,
    ),
)
