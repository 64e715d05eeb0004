"""Questions as the theatrical host of a pub quiz would put them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        "Phones in the bucket, pens at the ready: for one glorious point, what is {subject}?",
        (
            "Round four, ladies and gentlemen, and only the brave need apply. "
            "I want {subject}, and I want it before the barman rings his bell."
        ),
    ),
    numbers=("On the card in my trembling hand stands a number, and you shall write it out for me: {subject}.",),
    figures=(
        "Answer in figures, and in figures alone; one stray word and I strike the point off.",
        "Chalk up the bare number in digits, with nothing before it and nothing after it.",
        "My markers read digits and nothing else, so hand them the number in figures only.",
        "Dare to write just the figures: no units, no workings, no pleading.",
    ),
    words=(
        "Write the answer as an English number in words, lower case throughout, and not one syllable more.",
        "I accept the number spelt out in lower-case English words and nothing else; spare me the digits.",
        "Digits are barred from my pub tonight: only the English number word or words, in lower case, will score.",
        "Give me the English number word or words for it, all in small letters, and add nothing whatever to them.",
    ),
    entities={
        "town": (
            "the town of {name}",
            "that fine town {name}",
            "the town they call {name}",
            "the one and only town of {name}",
        ),
        "ship": (
            "the good ship {name}",
            "the celebrated ship {name}",
            "the ship that sails as {name}",
            "the ship they christened {name}",
        ),
    },
    related={
        "town": (
            "the twin town of {name}",
            "the town twinned with the town of {name}",
            "the town that {name} has for its twin",
            "the town to which fair {name} is twinned",
        ),
        "ship": (
            "the home port of the good ship {name}",
            "the town that is home port to the ship {name}",
            "the town where the ship {name} has her home port",
            "the home port to which the ship {name} belongs",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "Hear the tale of our jackpot, counted in pounds: it began the season at {x}. "
                "Since then it has been multiplied by {a}, and tonight the landlord, weeping, adds another {b} pounds. "
                "Share it equally, in whole pounds and as far as it will go, among {m} players. "
                "How many pounds are left lying on the bar?"
            ),
        ),
        lambda n: (n.x * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Here is one to empty the room: square {x}, add {a}, "
                "and tell me the remainder when the result is divided by {m}."
            ),
        ),
        lambda n: (n.x * n.x + n.a) % n.m,
    ),
    Formula(
        (
            (
                "Behold a circular track of {m} squares, numbered in order from 0, with your counter on square 0! "
                "Your stride, in squares, is {x} with {b} added to it. "
                "March the counter forward by one stride, and again, and again, until it has made {a} strides in all. "
                "What is the number of the square it ends on?"
            ),
        ),
        lambda n: ((n.x + n.b) * n.a) % n.m,
    ),
    Formula(
        (
            (
                "Multiply {x} by {a}, if your nerve holds. "
                "Divide that by 13, keep the whole-number quotient and fling its remainder to the dog. "
                "Add {b} to the quotient, divide by {m}, and this time cherish the remainder: what is it?"
            ),
        ),
        lambda n: ((n.x * n.a) // 13 + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Double or nothing, my darlings, and nobody has chosen nothing. Your stake is {x}. "
                "Three times over I double what you hold and then add {a} to it. "
                "Multiply what you hold at the end by {b}, divide by {m}, and name me the remainder."
            ),
        ),
        lambda n: ((((n.x * 2 + n.a) * 2 + n.a) * 2 + n.a) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "The house opens with 10000 points and, to gasps from the snug, loses exactly {x}. "
                "Multiply the points that survive by {b}, then add the square of {a}. "
                "What remains when that total is divided by {m}?"
            ),
        ),
        lambda n: ((10000 - n.x) * n.b + n.a * n.a) % n.m,
    ),
    Formula(
        (
            (
                "Divide {x} by {m} and keep only the remainder. "
                "Square that remainder, multiply the square by {a}, and add {b}. "
                "Now divide by 89: who among you dares to name the remainder?"
            ),
        ),
        lambda n: ((n.x % n.m) ** 2 * n.a + n.b) % 89,
    ),
    Formula(
        (
            (
                "Picture a hall so vast that the number of its rows is {x}, "
                "while each row has {a} more seats than there are rows. "
                "Carry in {b} stools from the cellar, and let every seat and stool be taken by one guest. "
                "If the guests go home in coaches of {m}, as many full coaches as possible, "
                "how many poor souls must walk?"
            ),
        ),
        lambda n: (n.x * (n.x + n.a) + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Tonight's count of paying guests is {x}. Each of them pays {a} pence at the door, "
                "and 37 hecklers are fined {b} pence apiece on top. "
                "The landlord pockets every whole pound of 100 pence; how many odd pence stay in my hat?"
            ),
        ),
        lambda n: (n.x * n.a + 37 * n.b) % 100,
    ),
)
