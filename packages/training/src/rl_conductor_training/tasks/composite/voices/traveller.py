"""Questions as a traveller would write them from the road."""

from __future__ import annotations

from rl_conductor_training.tasks.composite.templates import Formula, Phrases

PHRASES = Phrases(
    facts=(
        (
            "Scribbling this on a ferry deck with my hat in my lap (wind, you know), and I simply must ask: "
            "what is {subject}?"
        ),
        (
            "Half the pages have dropped out of my guidebook, somewhere between the goats and the second bus. "
            "Do you happen to know {subject}?"
        ),
    ),
    numbers=(
        (
            "My aunt keeps all my postcards and likes her numbers spelled out, bless her. "
            "The one I owe her today is {subject}."
        ),
    ),
    figures=(
        "Just the number in figures, please, and not a thing besides; my bus is already hooting.",
        "Send me figures and nothing more, there being no room left on this card.",
        "Digits only, if you would: the bare number, without a single word around it.",
        "The signal here is dreadful, so reply with nothing but the number, in figures.",
    ),
    words=(
        (
            "Spell it out in English, all in small letters, and send only the number itself; I lost my "
            "spectacles in a lake."
        ),
        "I want it as English number words in lower case, and nothing else (no greetings, we can do those at home).",
        "Reply only with the number written out in lower-case English words, the way my diary has it.",
        "No digits, mind you: the bare number in English words, no capitals, nothing before it and nothing after.",
    ),
    entities={
        "town": (
            "the town my map calls {name}",
            "the town signposted {name}",
            "that town by the name of {name}",
            "the town people here know as {name}",
        ),
        "ship": (
            "the good ship {name}",
            "the ship with {name} painted on her bow",
            "that ship they call {name}",
            "the ship listed on the quay as {name}",
        ),
    },
    related={
        "town": (
            "the town that is twinned with {name}",
            "the town {name} has for its twin",
            "the twin town named on the welcome sign of {name}",
            "whichever town is the twin of {name}",
        ),
        "ship": (
            "the town that is home port to the ship {name}",
            "the town the ship {name} calls her home port",
            "the home port of that ship {name}",
            "whichever town is the home port of the good ship {name}",
        ),
    },
)

FORMULAS = (
    Formula(
        (
            (
                "Suppose the number of day-trippers on the quay is {x}, and then {b} more tumble off a late train. "
                "Each of them, old and new, carries {a} sandwiches (islanders do not travel hungry). "
                "If all the sandwiches are packed into hampers of exactly {m}, how many are left without a full hamper?"
            ),
        ),
        lambda n: ((n.x + n.b) * n.a) % n.m,
    ),
    Formula(
        (
            (
                "There is a round path here with {m} milestones, numbered from 0 to one less than {m}, "
                "and I set off at stone 0. Let the number of mornings I walk be {x}; every morning I go {a} "
                "stones onward, "
                "always the same way round. Then I notice that I left my scarf behind (again!) "
                "and go {b} stones back the other way. What number is on the stone where I end up?"
            ),
        ),
        lambda n: (n.x * n.a - n.b) % n.m,
    ),
    Formula(
        (
            (
                "Let the number of nights I stay be {x}. The landlady, a terror, charges {a} crowns for every "
                "full week "
                "of seven nights and {b} crowns for each night beyond the full weeks. I count the whole bill out "
                "in piles of {m} crowns; how many crowns remain that do not make a pile?"
            ),
        ),
        lambda n: (n.x // 7 * n.a + n.x % 7 * n.b) % n.m,
    ),
    Formula(
        (
            (
                "My train, a wheezing old thing, started at 17 minutes past the hour. Let the number of stops be {x}: "
                "each one takes {a} minutes, travel included, and at every fourth stop (the fourth, the eighth "
                "and so on) "
                "a cow on the line costs us {b} minutes more. When all that time has gone by, "
                "how many minutes past the hour does the station clock show, from 0 to 59?"
            ),
        ),
        lambda n: (17 + n.x * n.a + n.x // 4 * n.b) % 60,
    ),
    Formula(
        (
            (
                "A stranger on the night boat taught me this trick: think of {x}, add {a} to it for one number, "
                "add {b} to it instead for another, multiply those two together, and divide by 100; "
                "what is the remainder?"
            ),
        ),
        lambda n: ((n.x + n.a) * (n.x + n.b)) % 100,
    ),
    Formula(
        (
            (
                "To open the hostel locker (who thinks these things up?) one takes {x}, doubles it, adds {a}, "
                "multiplies the sum by {b} and takes away 11. What remains when that is divided by {m}?"
            ),
        ),
        lambda n: ((2 * n.x + n.a) * n.b - 11) % n.m,
    ),
    Formula(
        (
            (
                "Let the number of stalls at the market be {x}, and say I win {a} cowrie shells at each of them, "
                "which never happens. The bank gives one crown for every 13 shells and keeps the odd shells for "
                "itself. "
                "With the {b} crowns already in my boot I then buy tickets, together with the new crowns, "
                "at {m} crowns each, as many as I can. How many crowns have I left?"
            ),
        ),
        lambda n: (n.x * n.a // 13 + n.b) % n.m,
    ),
    Formula(
        (
            (
                "A desert story, told to me over mint tea. Let the number of camels be {x}, "
                "and let them go in caravans of {b}, as many full ones as can be made; the rest are stragglers. "
                "At the gate each full caravan pays {a} coins, and each straggler pays as many coins as there "
                "are stragglers. "
                "The gatekeeper ties all the coins up in bags of {m}: how many coins do not fill a bag?"
            ),
        ),
        lambda n: (n.x // n.b * n.a + (n.x % n.b) ** 2) % n.m,
    ),
    Formula(
        (
            (
                "On day one of the trip I wrote 1 page, on day two 2 pages, on day three 3, and so on (I get "
                "chattier), "
                "and the number of days was {x}. Say every page holds {a} lines and a postscript to the lot has {b}. "
                "Copied out in notebooks of {m} lines each, how many lines spill over after the last full notebook?"
            ),
        ),
        lambda n: (n.x * (n.x + 1) // 2 * n.a + n.b) % n.m,
    ),
)
