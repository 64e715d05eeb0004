"""Freely worded questions about the islands, written by hand once; no template and no training has them.

Their entities are those of the held-out split. Answers are computed from the facts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rl_conductor.scoring import Sample, Task
from rl_conductor_training.tasks.composite.islands import Entity, islands
from rl_conductor_training.tasks.composite.questions import score_answer
from rl_conductor_training.tasks.composite.templates import CALC, LOOK, WORD, Skill
from rl_conductor_training.tasks.scorers.answers import number_to_words

Find = Callable[[str], Entity]


@dataclass(frozen=True)
class Question:
    """A question with the skills that it needs and its answer."""

    skills: tuple[Skill, ...]
    text: str
    answer: Callable[[Find, Find], int]
    """Computes the answer from functions that find an entity and its related town by the entity's name."""


QUESTIONS = (
    Question(
        (LOOK,),
        "How many bridges would I cross if I visited every one in Roston? Just the figure.",
        lambda of, _: of("Roston").facts["bridges"],
    ),
    Question(
        (LOOK,),
        "when was Quenoby founded? only give me the year",
        lambda of, _: of("Quenoby").facts["year of foundation"],
    ),
    Question(
        (LOOK,),
        "We are berthing Noble Otter next week. What's her length in metres? Figure only.",
        lambda of, _: of("Noble Otter").facts["length in metres"],
    ),
    Question(
        (CALC,),
        "I owe 37 people 146 coins each and have 2219 already. How many more coins do I need? Number only.",
        lambda _of, _to: 37 * 146 - 2219,
    ),
    Question(
        (CALC,),
        "4173 plus 88 times 29, what does that come to? Answer with the number, please.",
        lambda _of, _to: 4173 + 88 * 29,
    ),
    Question(
        (CALC,),
        "If I pack 5837 apples into crates of 64, how many apples are left over? Digits only.",
        lambda _of, _to: 5837 % 64,
    ),
    Question(
        (WORD,),
        "I'm filling in a cheque for 83 pounds. How is the amount written out? Only the words for the number.",
        lambda _of, _to: 83,
    ),
    Question((WORD,), "Spell 47 for me, all lower case and nothing else.", lambda _of, _to: 47),
    Question((WORD,), "How would one say 92 in English? Give just the words.", lambda _of, _to: 92),
    Question(
        (LOOK, CALC),
        "Each bridge in Galraton gets 36 new lamps. How many lamps must the council order? Number only.",
        lambda of, _: of("Galraton").facts["bridges"] * 36,
    ),
    Question(
        (LOOK, CALC),
        "How old did Distant Gull turn in 2026, counting from her year of launch? Just the number.",
        lambda of, _: 2026 - of("Distant Gull").facts["year of launch"],
    ),
    Question(
        (LOOK, CALC),
        "The people of Dunastead form teams of 23. How many people are left without a team? Figure only.",
        lambda of, _: of("Dunastead").facts["population"] % 23,
    ),
    Question(
        (LOOK, CALC),
        "Hidden Jackdaw has cabins that sleep 4 each, and 57 beds more on deck. How many beds is that in "
        "all? Reply with a number.",
        lambda of, _: of("Hidden Jackdaw").facts["cabins"] * 4 + 57,
    ),
    Question(
        (LOOK, WORD),
        "For the brochure: how many windmills has Corilwick got? In words please, lower case, no sentence.",
        lambda of, _: of("Corilwick").facts["windmills"],
    ),
    Question(
        (LOOK, WORD),
        "What is the size of Merry Comet's crew, spelled out? Words only, lower case.",
        lambda of, _: of("Merry Comet").facts["crew"],
    ),
    Question(
        (LOOK, WORD),
        "Number of bridges in Pelradale - write it the way you would on an invitation, as words and nothing more.",
        lambda of, _: of("Pelradale").facts["bridges"],
    ),
    Question(
        (LOOK, WORD),
        "How many lifeboats does Hidden Anchor carry? Don't use digits, only the words of the number.",
        lambda of, _: of("Hidden Anchor").facts["lifeboats"],
    ),
    Question(
        (CALC, WORD),
        "Take 3178 sheep, drive them off in herds of 97: how many stay behind? Only words, lower case.",
        lambda _of, _to: 3178 % 97,
    ),
    Question(
        (CALC, WORD),
        "9251 minus 38 times 241 is what? Write the result out as words, and nothing else.",
        lambda _of, _to: 9251 - 38 * 241,
    ),
    Question(
        (CALC, WORD),
        "I cut a 6400 cm rope into 84 cm pieces. How many cm are left? Spell it, lower case, words only.",
        lambda _of, _to: 6400 % 84,
    ),
    Question(
        (CALC, WORD),
        "What's the remainder of 57 times 89 after splitting it among 71 people? As English words only.",
        lambda _of, _to: 57 * 89 % 71,
    ),
    Question(
        (LOOK, CALC, WORD),
        "The people of Uldenholm line up in rows of 68. How many stand in the last, incomplete "
        "row? Words only, lower case.",
        lambda of, _: of("Uldenholm").facts["population"] % 68,
    ),
    Question(
        (LOOK, CALC, WORD),
        "By how many years does the launch of Kindly Badger miss 2000? Write the number in words, nothing else.",
        lambda of, _: 2000 - of("Kindly Badger").facts["year of launch"],
    ),
    Question(
        (LOOK, CALC, WORD),
        "Take the height of Istwidale in metres and split it into 59 m stretches: how many metres "
        "remain? Spelled out please, only that.",
        lambda of, _: of("Istwidale").facts["height in metres"] % 59,
    ),
    Question(
        (LOOK, CALC, WORD),
        "If 3 sailors leave and the rest of Kindly Eagle's crew is counted, how many are aboard? "
        "Lower-case words only.",
        lambda of, _: of("Kindly Eagle").facts["crew"] - 3,
    ),
    Question(
        (LOOK, CALC, WORD),
        "Every one of Alomouth's bridges has 5 arches. How many arches are there? Only the number, in words.",
        lambda of, _: of("Alomouth").facts["bridges"] * 5,
    ),
    Question(
        (LOOK, LOOK, CALC),
        "Wenrawick has a twin town. Each bridge over there costs 430 a year to keep up. What is "
        "their yearly bill? Number only.",
        lambda _, to: to("Wenrawick").facts["bridges"] * 430,
    ),
    Question(
        (LOOK, LOOK, CALC),
        "How old was the home port of Brave Comet in the year 2000? I only want the number.",
        lambda _, to: 2000 - to("Brave Comet").facts["year of foundation"],
    ),
    Question(
        (LOOK, LOOK, CALC),
        "Which population would the twin of Torton have if 1250 people moved in? Just the figure.",
        lambda _, to: to("Torton").facts["population"] + 1250,
    ),
    Question(
        (LOOK, LOOK, CALC),
        "Calm Lantern comes home. Its port has windmills with 4 sails each: how many sails can the "
        "crew see at most? Figure only.",
        lambda _, to: to("Calm Lantern").facts["windmills"] * 4,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "Our partner town is the twin of Maraby. If its people queue in lines of 77, how "
        "many are in the short last line? Only words, lower case.",
        lambda _, to: to("Maraby").facts["population"] % 77,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "Take the year in which the home port of Amber Anchor was founded and throw away "
        "everything but the remainder by 86. Write that in words, nothing else.",
        lambda _, to: to("Amber Anchor").facts["year of foundation"] % 86,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "How many metres does the height of Keldenburg's twin exceed a multiple of 61? "
        "Spelled out, lower case, only the words.",
        lambda _, to: to("Keldenburg").facts["height in metres"] % 61,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "The town where Merry Ibis is registered, her home port, doubles its bridges, then "
        "loses 9. What's the count modulo 53? In words only.",
        lambda _, to: (2 * to("Merry Ibis").facts["bridges"] - 9) % 53,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "In the town twinned with Ulholm everybody is put on buses of 58. How many people "
        "sit on the last, partly filled bus? Words, lower case, nothing more.",
        lambda _, to: to("Ulholm").facts["population"] % 58,
    ),
    Question(
        (LOOK, LOOK, CALC, WORD),
        "The home port of Lucky Anchor gives each of its windmills 11 sacks, and packs the "
        "sacks in carts of 65. How many sacks don't fill a cart? Spell the number, only that.",
        lambda _, to: to("Lucky Anchor").facts["windmills"] * 11 % 65,
    ),
)


def handwritten() -> Task:
    """Returns 36 questions of people's wordings that need one to four skills."""
    country = islands()
    entities = {entity.name: entity for entity in (*country.towns, *country.ships)}

    def related(name: str) -> Entity:
        return entities[entities[name].related_town]

    return Task(
        "handwritten",
        tuple(
            _sample(number, question, question.answer(entities.__getitem__, related))
            for number, question in enumerate(QUESTIONS)
        ),
        score_answer,
    )


def _sample(number: int, question: Question, value: int) -> Sample:
    in_words = WORD in question.skills
    return Sample(
        id=f"handwritten-{number}",
        question=question.text,
        answer=number_to_words(value) if in_words else str(value),
        domain="+".join(question.skills),
        depth=len(question.skills),
        details={"form": "words" if in_words else "figures", "group": f"question {number}"},
    )
