"""Questions as a harbour clerk would write them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        (
            "I am bringing the harbour register up to date and one entry is still missing, namely "
            "{subject}; what should I put down?"
        ),
        "Would you kindly look up {subject}, since that line in my ledger has been left blank?",
    ),
    numbers=("The figure pencilled in the margin of the manifest is {subject}.",),
    figures=(
        "Digits only, please, with no unit and no remark.",
        "The column takes numerals alone, so send just those.",
        "Write it in figures and leave everything else out.",
        "I need nothing back but the number itself, set down in digits.",
    ),
    words=(
        "Spell that number out in English, all in lower case, and add nothing to it.",
        (
            "The customs sheet wants it as an English number word in small letters, and no other text "
            "belongs in your reply."
        ),
        "No digits this time: your whole reply should be the English word for that number, uncapitalised.",
        "For the tally card, give me just the number in English words without any capital letters.",
    ),
    entities={
        "town": (
            "the town of {name}",
            "the place entered in our books as {name}",
            "the municipality known as {name}",
            "the town that goes by the name {name}",
        ),
        "ship": (
            "the vessel {name}",
            "the ship registered as {name}",
            "the craft sailing under the name {name}",
            "the ship that our berth list shows as {name}",
        ),
    },
    related={
        "town": (
            "the twin town of {name}",
            "the town twinned with {name}",
            "the place that {name} has as its twin town",
            "the town to which {name} is joined by a twinning agreement",
        ),
        "ship": (
            "the home port of {name}",
            "the town in which {name} has her home port",
            "the town listed as home port for {name}",
            "the place that {name} calls her home port",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "Take {x}, multiply it by {a}, and add {b} to the product. When the sum is divided by {m}, "
                "what is the whole-number remainder?"
            ),
        ),
        lambda n: (n.x * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "As a check on the books, I square {x} and then add {b} to that square. Please work out "
                "what remainder the total leaves on division by {m}."
            ),
        ),
        lambda n: (n.x * n.x + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Double {x}, then multiply the result by {a}. From that product strike off {b}, divide "
                "what is left by {m}, and let me have the remainder."
            ),
        ),
        lambda n: (2 * n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "To make a berth code, our office adds {a} to {x} and multiplies the sum by {b}. The code "
                "is whatever remainder that product leaves when divided by {m}, and I would like to know "
                "it."
            ),
        ),
        lambda n: ((n.x + n.a) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "Our granary opened the season with 5000000 sacks and sent out {a} shipments, each with a "
                "number of sacks equal to {x}. The rest was taken to the quay, where a cart only leaves "
                "with exactly {m} sacks on it. Once every cart that can be filled has gone, how many sacks "
                "are still standing there?"
            ),
        ),
        lambda n: (5000000 - n.x * n.a) % n.m,
    ),
    Formula(
        (
            (
                "Picture a yard in which the number of rows equals {x}, and every row holds {a} more "
                "barrels than there are rows. The barrels are collected in lots of {m} until too few "
                "remain for another lot. How many barrels stay behind in the yard?"
            ),
        ),
        lambda n: (n.x * (n.x + n.a)) % n.m,
    ),
    Formula(
        (
            (
                "For {a} full weeks of seven days, the ferry carried the same number of passengers every "
                "day, and that number was {x}. One extra excursion brought in another {b} passengers. If I "
                "bundle the ticket stubs, one per passenger, in packets of {m}, how many stubs are left "
                "outside the full packets?"
            ),
        ),
        lambda n: (n.x * 7 * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "Start with {x}. Add {a}. Square what you have. Subtract {b} from the square. Divide by "
                "{m}, and report the remainder instead of the quotient."
            ),
        ),
        lambda n: ((n.x + n.a) ** 2 - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Two gangs are unloading casks, and each gang makes a number of trips equal to {x}. The "
                "first brings ashore {a} casks per trip and the second brings {b}. All the casks together "
                "are stacked in piles of {m}, so tell me how many are left over once no further pile can "
                "be completed."
            ),
        ),
        lambda n: (n.x * (n.a + n.b)) % n.m,
    ),
)
