"""Questions as the editor of a newsletter would write them."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        (
            "Last month's issue, a reader from the coast tells me in a huff, got a figure badly wrong, "
            "so before I draft my apology: what is {subject}?"
        ),
        (
            "Quiz night is creeping up on us, and I've promised the landlord a question on {subject}. "
            "Could you tell me the correct answer for my crib sheet?"
        ),
    ),
    numbers=(
        (
            "Drumroll for Friday's raffle column: the winning ticket, drawn by my neighbour's very "
            "serious six-year-old, carries the number {subject}."
        ),
    ),
    figures=(
        (
            "Digits only, please, and not a syllable around them; the caption box on my layout is "
            "about as wide as a thumbnail."
        ),
        (
            "My typesetter charges by the letter (the cheek!), which is why I'd like your whole reply "
            "to be the number in figures."
        ),
        (
            "Since I'll paste whatever you send straight into a spreadsheet cell, answer with the bare "
            "number written in numerals and leave everything else out."
        ),
        (
            "No words, no units, no friendly hello: just digits this time, as the last chatty answer "
            "ended up in print by accident."
        ),
    ),
    words=(
        "Our house style spells numbers out, so reply with just the English word for the number, all in lower case.",
        (
            "Could I have that written out as an English number word, small letters throughout and "
            "nothing before or after it? It's going under a hand-lettered cartoon."
        ),
        (
            "The crossword compiler is hovering at my desk and wants the number in English words, "
            "lower case, without any other text."
        ),
        (
            "Spell the number in English for me, please: no capitals, no digits, no commentary, "
            "because the shift key on this old machine has finally given up."
        ),
    ),
    entities={
        "town": (
            "the town of {name}",
            "{name} (the town)",
            "the town by the name of {name}",
            "the town our readers know as {name}",
        ),
        "ship": (
            "the ship {name}",
            "the good ship {name}",
            "the ship christened {name}",
            "the vessel that sails under the name {name}",
        ),
    },
    related={
        "town": (
            "the town twinned with {name}",
            "{name}'s twin town",
            "the place that is twin town to {name}",
            "whichever town {name} has as its twin",
        ),
        "ship": (
            "the home port of the ship {name}",
            "the town where the ship {name} has her home port",
            "the port town that the vessel {name} calls home",
            "whichever town serves as home port to the good ship {name}",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "I'm packing a spring mailing. Suppose the number of subscribers equals {x}; each one is "
                "due {a} sunflower seeds, and one single batch of {b} more seeds is added to the total for "
                "the office windowsill. Once all those seeds are sorted into as many full bags of {m} as "
                "possible, how many seeds are left over?"
            ),
        ),
        lambda n: (n.x * n.a + n.b) % n.m,
    ),
    Formula(
        (
            (
                "My nephew swears he can do this on the bus, and I need to check up on him: square {x}, "
                "add {a} to that square, and divide the sum by {m}. What remainder should he get?"
            ),
        ),
        lambda n: (n.x * n.x + n.a) % n.m,
    ),
    Formula(
        (
            (
                "Here's the puzzle-corner teaser I have to proofread, one step at a time. Start with {x}. "
                "Double it. Multiply the result by {a}. Take away {b}. Now divide what you have by {m}, "
                "and tell me the remainder."
            ),
        ),
        lambda n: (2 * n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "For the summer concert the hall first had a number of rows equal to {x}, and then the "
                "caretaker, bless him, squeezed in {a} extra rows. Every row, old or new, seats {b} "
                "people. With every seat taken, everybody goes home afterwards in coaches of {m} places; "
                "if we fill as many coaches as we completely can, how many people are left for one last "
                "coach?"
            ),
        ),
        lambda n: ((n.x + n.a) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "The paper mill sent us 4000000 sheets by mistake (don't ask). The almanac has a print run "
                "equal to {x} and takes {a} sheets per copy, and a further {b} sheets, in all, become "
                "paper hats. How many of the remaining sheets are left unbundled after I tie up as many "
                "complete bundles of {m} as I can?"
            ),
        ),
        lambda n: (4000000 - n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "An old lighthouse keeper kept a diary, and we're thinking of serialising it. He wrote for "
                "a number of full seven-day weeks equal to {x}, and after those for another {a} days, "
                "always exactly {b} lines a day. With {m} lines to a page and no gaps between days, how "
                "many lines are left once every page that can be filled completely has been filled?"
            ),
        ),
        lambda n: ((n.x * 7 + n.a) * n.b) % n.m,
    ),
    Formula(
        (
            (
                "Harvest special, and the orchard folk want their sums checked! Taking {x} as the number "
                "of trees, each tree gave {a} apples. Those apples are packed into crates of {b}, with any "
                "apples that cannot fill a crate going to the pigs. The full crates are then loaded {m} to "
                "a lorry, and only full lorries drive off; how many full crates stay behind?"
            ),
        ),
        lambda n: (n.x * n.a // n.b) % n.m,
    ),
    Formula(
        (
            (
                "Two secret numbers open the prize cupboard in our office, and I've forgotten the code "
                "that comes from them. The first number is {x}, while the second is larger than the first "
                "by {a}. Multiply the two together, subtract {b} from the product, and the code is what "
                "remains after dividing that difference by {m}. Which code do I dial?"
            ),
        ),
        lambda n: (n.x * (n.x + n.a) - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Treasurer's corner: at our charity tea we sold cups of tea at {a} pence each, their "
                "number being {x}, as well as 213 scones at {b} pence each. With the total takings written "
                "as whole pounds and pence (100 pence to the pound), how many odd pence are there on top "
                "of the whole pounds?"
            ),
        ),
        lambda n: (n.x * n.a + 213 * n.b) % 100,
    ),
)
