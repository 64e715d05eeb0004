"""Questions as an accountant would write them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        "For the purposes of the year-end file, please state {subject}.",
        "One entry in the schedule of particulars is blank. What is {subject}?",
    ),
    numbers=("The following is to be entered in words on the face of a cheque: {subject}.",),
    figures=(
        "Answer in figures; no text, unit or punctuation is to accompany them.",
        "The column accepts digits only, so give the number and nothing further.",
        "State the number in figures alone. Workings are not required.",
        "Kindly confine your reply to the number itself, in figures.",
    ),
    words=(
        "Answer in English number words, in lower case; nothing else is to appear in the reply.",
        "As on a cheque, the amount is to be in words: English, lower case, the number only.",
        "Write the number out in lower-case English words. Omit figures, units and explanations.",
        "Your reply must consist solely of the number in English words, without capital letters.",
    ),
    entities={
        "town": (
            "the town of {name}",
            "the town registered as {name}",
            "the town entered in our books as {name}",
            "the municipality (town) of {name}",
        ),
        "ship": (
            "the ship {name}",
            "the ship registered as {name}",
            "the vessel (ship) {name}",
            "the ship insured under the name {name}",
        ),
    },
    related={
        "town": (
            "the twin town of {name}",
            "the town with which {name} is twinned",
            "the town recorded as the twin of {name}",
            "the town party to the twinning agreement with {name}",
        ),
        "ship": (
            "the home port of the ship {name}",
            "the town recorded as home port of the ship {name}",
            "the town in which the ship {name} has its home port",
            "the town entered as home port in the papers of the ship {name}",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "Proceed as follows. 1. Take {x}. 2. Increase it by 250. 3. Multiply the result by {a}. "
                "4. Deduct {b}. 5. Divide by {m}. What is the remainder at step 5?"
            ),
        ),
        lambda n: ((n.x + 250) * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Let the quantity invoiced be {x}, at {a} pence per unit. Carriage is {b} pence per dozen units, "
                "a part of a dozen being charged as a full one. The total is stated in pounds and pence, "
                "at 100 pence to the pound. How many pence stand after the whole pounds?"
            ),
        ),
        lambda n: (n.x * n.a + (n.x + 11) // 12 * n.b) % 100,
    ),
    Formula(
        (
            (
                "The control number of an account is found by multiplying {x} by {a}, adding {b}, "
                "dividing by 97 and subtracting the remainder from 97. What is the control number?"
            ),
        ),
        lambda n: 97 - (n.x * n.a + n.b) % 97,
    ),
    Formula(
        (
            (
                "The cost of an asset, in crowns, is {x} multiplied by {a}. The annual depreciation is one "
                "eighth of the cost, "
                "rounded down to whole crowns, and it has been charged for exactly three years. "
                "The remaining book value is divided by {m}. What is the remainder of that division?"
            ),
        ),
        lambda n: (n.x * n.a - 3 * (n.x * n.a // 8)) % n.m,
    ),
    Formula(
        ("Square {x}, add {a}, multiply the sum by {b}, and divide by {m}: what is the remainder?",),
        lambda n: ((n.x**2 + n.a) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "1. Let the number of hours billed be {x}, at {a} crowns an hour. "
                "2. Add a fixed fee of {b} crowns; this gives the net amount. "
                "3. Compute the tax as one fifth of the net amount, discarding any fraction of a crown. "
                "4. Add the tax to the net amount. The sum is paid in equal instalments of {m} crowns for as "
                "long as possible; "
                "how many crowns are then outstanding?"
            ),
        ),
        lambda n: (n.x * n.a + n.b + (n.x * n.a + n.b) // 5) % n.m,
    ),
    Formula(
        (
            (
                "Two ledgers do not agree. The first shows {x} multiplied by {a}; the second shows the square of {b}. "
                "Subtract the smaller total from the larger and divide the difference by {m}. What is the remainder?"
            ),
        ),
        lambda n: abs(n.x * n.a - n.b**2) % n.m,
    ),
    Formula(
        (
            (
                "A voucher is checked twice. For the first check, {x} is multiplied by {a} and the product "
                "divided by 997; "
                "only the remainder is kept. For the second, that remainder is multiplied by {b} "
                "and the product divided by {m}. What remainder does the second check leave?"
            ),
        ),
        lambda n: (n.x * n.a % 997 * n.b) % n.m,
    ),
    Formula(
        (
            (
                "A debt is repaid in {a} instalments. Let the first, in crowns, be {x}; "
                "each later instalment exceeds the one before it by {b} crowns. "
                "The total repaid is divided by {m}. What is the remainder, in crowns?"
            ),
        ),
        lambda n: (n.a * n.x + n.b * n.a * (n.a - 1) // 2) % n.m,
    ),
)
