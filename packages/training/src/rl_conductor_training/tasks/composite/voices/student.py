"""Questions as a student in a hurry would write them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        "hey quick one, what's {subject}?",
        "class starts in five minutes and i still have one blank to fill in: {subject}. tell me please.",
    ),
    numbers=("ok so the number on my worksheet is {subject}.",),
    figures=(
        "just the digits pls, nothing else.",
        "Reply in figures only: no explanation, no units, no working.",
        "all i want to see back is the number typed with digits.",
        "don't write a sentence, i'm pasting this into a form that takes digits and no other text.",
    ),
    words=(
        "spell the number out in english, all lowercase, and leave out everything else.",
        "No digits!! An English number word in small letters is all I need back.",
        "can you answer with only the english word for the number (lower case)? thanks",
        "my teacher wants it as a lowercase English number word, so send that and not a bit more.",
    ),
    entities={
        "town": (
            "the town {name}",
            "{name} (the town)",
            "the place they call {name}",
            "the town that goes by {name}",
        ),
        "ship": (
            "the vessel {name}",
            "the {name} (a ship)",
            "a ship called {name}",
            "the boat with the name {name}",
        ),
    },
    related={
        "town": (
            "the twin town of {name}",
            "{name}'s twin town",
            "the town that {name} has as its twin",
            "the place listed as twin town for {name}",
        ),
        "ship": (
            "the home port of the ship {name}",
            "the town that the {name} (a ship) calls its home port",
            "the town where the vessel {name} has its home port",
            "the home port town belonging to the boat {name}",
        ),
    },
)

FORMULAS = (
    Formula(
        ("multiply {x} by {a}, then add {b} to the product. what's the remainder when you divide that total by {m}?",),
        lambda n: (n.x * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "What do I have left over if I square {x}, add {a} to the square, and then divide the sum "
                "by {m} (whole-number division)?"
            ),
        ),
        lambda n: (n.x * n.x + n.a) % n.m,
    ),
    Formula(
        (
            (
                "stuck on this: double {x}, multiply the doubled value by {b}, and subtract {a} from what "
                "you get. now reduce it modulo {m} and tell me the result."
            ),
        ),
        lambda n: (2 * n.x * n.b - n.a) % n.m,
    ),
    Formula(
        ("in my code s is {x} plus {b}, t is s times {a}, and then it prints t % {m}. Which value gets printed?",),
        lambda n: ((n.x + n.b) * n.a) % n.m,
    ),
    Formula(
        (
            (
                "we start from 5000000. From that we take away the product of {a} and {x}, and the "
                "difference is divided by {m}. Need the remainder, asap."
            ),
        ),
        lambda n: (5000000 - n.a * n.x) % n.m,
    ),
    Formula(
        (
            (
                "orchard problem, ugh. the number of apples picked per day equals {x}, and the picking "
                "goes on for {a} days. over the whole time {b} apples in total turn out rotten and get "
                "thrown out; the others are packed {m} to a crate, full crates only. How many good apples "
                "end up in no crate?"
            ),
        ),
        lambda n: (n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "A copy shop prints every single day for {a} weeks, and its daily output in pages equals "
                "{x}. All the pages together get bound into booklets of exactly {m} pages, as many "
                "booklets as possible. how many pages stay unbound?"
            ),
        ),
        lambda n: (n.x * 7 * n.a) % n.m,
    ),
    Formula(
        (
            (
                "Step 1: triple {x}. Step 2: add {a}. Step 3: multiply the result of step 2 by {b}. Step "
                "4: add 1000. Step 5: divide by {m} and keep only the remainder. so what is it after step "
                "5?"
            ),
        ),
        lambda n: ((3 * n.x + n.a) * n.b + 1000) % n.m,
    ),
    Formula(
        (
            (
                "add {a} to {x} and call that p. add {b} to {x}, that one is q. a pile has p times q "
                "pebbles. sort it into heaps of exactly {m} till there aren't enough for another full "
                "heap; give me the count of pebbles that remain."
            ),
        ),
        lambda n: ((n.x + n.a) * (n.x + n.b)) % n.m,
    ),
)
