"""Questions as an engineer would write them in short messages and tickets."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        "Ticket 418, blocked: one field in the record is empty. What is {subject}?",
        "Type: lookup. Requested value: {subject}.",
    ),
    numbers=("Input: {subject}. Task: convert this number to words.",),
    figures=(
        "Output: one integer, digits only, no unit.",
        "Reply with the figures only; the parser fails on anything else.",
        "Return just the number in digits.",
        "Format: a single number in figures, no text around it.",
    ),
    words=(
        "Output: English number words, lower case, nothing else.",
        "Reply with the number spelled out in lower-case English words only; no digits, no comment.",
        "The label printer has no digits, so send only the English number word or words, in lower case.",
        "Format: the number in English words, all lower case, no other text.",
    ),
    entities={
        "town": (
            "the town {name}",
            "the town of {name}",
            "the town listed as {name}",
            "the town with the name {name}",
        ),
        "ship": (
            "the ship {name}",
            "the ship named {name}",
            "the ship registered as {name}",
            "the ship with the name {name}",
        ),
    },
    related={
        "town": (
            "the twin town of {name}",
            "the town twinned with {name}",
            "the twin of the town {name}",
            "the town on record as the twin of {name}",
        ),
        "ship": (
            "the home port of the ship {name}",
            "the home port of {name} (ship)",
            "the town on record as home port of the ship {name}",
            "the town that serves as home port for the ship {name}",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "Input: {x}. Step 1: double it. Step 2: add {b}. Step 3: multiply by {a}. Step 4: subtract 19. "
                "Step 5: divide by {m} and keep the remainder. Report the result of step 5."
            ),
        ),
        lambda n: ((2 * n.x + n.b) * n.a - 19) % n.m,
    ),
    Formula(
        (
            (
                "Ring buffer, {m} slots, indices start at 0. "
                "The write pointer is at index 17 and moves forward {a} slots per cycle, wrapping around at the end. "
                "Number of cycles: {x}. At which index is the pointer after the last cycle?"
            ),
        ),
        lambda n: (17 + n.a * n.x) % n.m,
    ),
    Formula(
        ("Let v be {x}. What is the remainder of v * v + {a} * v + {b} after division by {m}?",),
        lambda n: (n.x * n.x + n.a * n.x + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Sensor count: {x}. Each sensor sends {a} bytes, and the log header adds {b} bytes once. "
                "The total is cut into blocks of 16 bytes; an incomplete block at the end is dropped. "
                "Pack the blocks into frames of {m} blocks, as many full frames as possible: how many blocks remain?"
            ),
        ),
        lambda n: ((n.x * n.a + n.b) // 16) % n.m,
    ),
    Formula(
        (
            (
                "Burn-in test. Number of cycles: {x}. Each cycle takes {a} seconds, "
                "then 11 pauses of {b} seconds each follow at the very end. "
                "By how many seconds does the total run time exceed the last full minute?"
            ),
        ),
        lambda n: (n.x * n.a + 11 * n.b) % 60,
    ),
    Formula(
        (
            (
                "Register check: subtract {x} from 65535. Integer-divide the difference by {a}, rounding down. "
                "Add the square of {b}, then take the sum modulo {m}. Which value should I see?"
            ),
        ),
        lambda n: ((65535 - n.x) // n.a + n.b * n.b) % n.m,
    ),
    Formula(
        (
            (
                "Pseudorandom generator under test. Start state: {x}. "
                "Each step multiplies the state by {a}, adds {b} and replaces it with the remainder modulo {m}. "
                "State after exactly 3 steps?"
            ),
        ),
        lambda n: ((((n.x * n.a + n.b) % n.m) * n.a + n.b) % n.m * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Divide {x} by 100 to get a whole-number quotient q and a remainder r; "
                "the hash is q * {a} + r * {b}, reduced modulo {m}. Need the hash."
            ),
        ),
        lambda n: ((n.x // 100) * n.a + (n.x % 100) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "Full mesh, cable order. Take {x} and add {a}: that is the node count. "
                "Every pair of nodes gets exactly one cable. Cables are packed in boxes of {m}; "
                "how many are left over once no further box can be filled?"
            ),
        ),
        lambda n: ((n.x + n.a) * (n.x + n.a - 1) // 2) % n.m,
    ),
)
