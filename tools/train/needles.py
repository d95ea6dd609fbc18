"""Facts to hide in a text ("needles"), the questions about them and their answers.

Used by data.py (training), templates.py (the file that evaluation and the engine read) and
tokenize_corpus.py; ruler.py has the program's built-in kinds. Pure functions of a random.Random; no
files besides words.json. Keys whose CRC-32 is divisible by eight are reserved for evaluation, and
so are those of the built-in kinds: training never sees them.
"""

import json
import random
import zlib
from dataclasses import dataclass
from pathlib import Path

WORDS = json.loads((Path(__file__).parent / "words.json").read_text())
WORDS = {k: v.split("|") if "|" in v else v.split() for k, v in WORDS.items()}

BEST_THING = "best thing to do in"

# Statement and question of facts that are not of the form "The X of Y is Z".
VERB_FACTS = [
    ("{name} lives in", "Where does {name} live?", "{city}"),
    ("{name} was born in", "Where was {name} born?", "{city}"),
    ("{name} was born on", "When was {name} born?", "{date}"),
    ("{name} works as", "What does {name} work as?", "a {adjective} {noun} keeper"),
    ("{name} likes to", "What does {name} like to do?", "{activity}"),
    ("{name} wants to", "What does {name} want to do?", "{activity}"),
    ("{name} keeps {thing}", "Where does {name} keep {thing}?", "{place}"),
    ("{name} lost {thing}", "Where did {name} lose {thing}?", "{place}"),
    ("{name} bought {thing} for", "How much did {name} pay for {thing}?", "{number} coins"),
    ("{name} wrote", "What did {name} write?", "{phrase}"),
    ("{name} said that", "What did {name} say?", "{phrase}"),
    ("{name} likes", "What does {name} like?", "{words}"),
    ("{name} needs", "What does {name} need?", "{words}"),
    ("{name} carries", "What does {name} carry?", "a {adjective} {noun}"),
    ("{name} arrives on", "When does {name} arrive?", "{date}"),
    ("{name} sleeps", "Where does {name} sleep?", "{place}"),
    ("{Thing} is kept in", "Where is {thing} kept?", "{city}"),
    ("{Thing} is", "Where is {thing}?", "{place}"),
    ("{Thing} is hidden", "Where is {thing} hidden?", "{place}"),
    ("{Thing} is on", "When is {thing}?", "{date}"),
    ("{Thing} starts on", "When does {thing} start?", "{date}"),
    ("{Thing} was moved to", "Where was {thing} moved to?", "room {number}"),
    ("{Thing} was found", "Where was {thing} found?", "{place}"),
    ("{Thing} belongs to", "Who does {thing} belong to?", "{name}"),
    ("{Thing} was made by", "Who made {thing}?", "{name}"),
    ("{Thing} costs", "How much does {thing} cost?", "{number} coins"),
    ("{Thing} weighs", "How much does {thing} weigh?", "{number} grams"),
    ("{Thing} was built in the year", "When was {thing} built?", "{number}"),
    ("{Thing} means", "What does {thing} mean?", "{phrase}"),
    ("{Thing} needs", "What does {thing} need?", "{words}"),
    ("{name} will meet the", "Who will {name} meet?", "{adjective} {noun}"),
]

QUESTIONS = [
    "What is {x}?",
    "What is {x}?",
    "What is {x}?",
    "What's {x}?",
    "what is {x}?",
    "what is {x}",
    "Tell me {x}.",
    "Please tell me {x}.",
    "Can you tell me {x}?",
    "Do you know {x}?",
    "According to the text, what is {x}?",
    "What is {x} mentioned in the text?",
    "What does the text say about {x}?",
    "Find {x}.",
    "Question: What is {x}?",
    "I forgot {x}. What is it?",
    "What was {x} again?",
    "{X}?",
]
QUESTIONS_PLURAL = [
    "What are all {x}?",
    "What are all {x}?",
    "What are {x}?",
    "List all {x}.",
    "Tell me all {x}.",
    "According to the text, what are {x}?",
]
OWNERS = ["my", "our", "your", "his", "her", "their"]
MONTHS = (
    "January February March April May June July August September October November December".split()
)
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
LEAD_INS = [
    "Remember this: ",
    "Please note: ",
    "By the way, ",
    "It is worth knowing that ",
    "Note that ",
    "Everybody knows that ",
    "Remember that ",
    "Here is a fact: ",
    "It so happens that ",
]
# The keys of the built-in kinds: default_needle_templates() in eval/templates.cc.
BUILT_IN_KEYS = {
    f"{adjective} {noun}"
    for adjective in "amber bold calm dusty early frozen grand icy jolly quiet rapid silver".split()
    for noun in "anchor bridge canyon dragon falcon garden harbour lantern meadow otter piano "
    "tower".split()
}
BARE = [" Answer with the value only.", " Give only the value.", " Just the value, please."]


@dataclass
class Fact:
    """One thing to remember: the sentences to hide, what to ask, what to answer."""

    needles: list[str]  # one sentence per value, each ends with a full stop, in order of appearance
    question: str
    answer_start: str  # up to the value; empty where the bare value is asked for
    answer_value: str  # the value or the comma-separated values, with the final full stop if any

    @property
    def answer(self) -> str:
        return self.answer_start + self.answer_value


def reserved(key: str) -> bool:
    """True for an eighth of all keys, kept out of training."""
    return zlib.crc32(key.encode()) % 8 == 0


def held_out(key: str) -> bool:
    """True for all keys kept out of training."""
    return reserved(key) or key in BUILT_IN_KEYS


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


class FactMaker:
    """Draws random facts; one object per conversation, so keys are similar but never equal."""

    def __init__(
        self, rng: random.Random, words: list[str], phrases: list[str], evaluation: bool = False
    ):
        self.rng = rng
        self.evaluation = evaluation  # draws only keys that training never sees, not others
        self.words = words  # frequent words of the corpus, for open wording
        self.phrases = phrases  # parts of sentences of the corpus, for long values
        self.used = set()
        # A small pool makes near misses likely: "amber falcon", "amber wolf", "silver falcon".
        size = 200 if evaluation else rng.choice([6, 12, 100, 200])
        self.adjectives = rng.sample(WORDS["adjectives"], min(size, len(WORDS["adjectives"])))
        self.nouns = rng.sample(WORDS["nouns"], min(size, len(WORDS["nouns"])))
        self.relation = rng.choice(WORDS["number_relations"])
        self.same_relation = rng.random() < 0.6
        self.num_digits = rng.choice([7, 7, 7, 7, rng.randint(2, 10)])
        self.lead_in_share = rng.choice([0, 0, 0.3])

    def adjective_noun(self) -> str:
        while True:
            key = f"{self.rng.choice(self.adjectives)} {self.rng.choice(self.nouns)}"
            if held_out(key) == self.evaluation:
                return key

    def name(self) -> str:
        while True:
            name = self.rng.choice(WORDS["names"])
            if self.rng.random() < 0.5:
                name += " " + self.rng.choice(WORDS["surnames"])
            if held_out(name) == self.evaluation:
                return name

    def city(self) -> str:
        while True:
            city = self.rng.choice(WORDS["cities"])
            if held_out(city) == self.evaluation:
                return city

    def activity(self) -> str:
        while True:
            activity = f"{self.rng.choice(WORDS['activities'])} {self.rng.choice(WORDS['places'])}"
            if held_out(activity) == self.evaluation:
                return activity

    def number(self, digits: int | None = None) -> str:
        digits = digits or self.num_digits
        return str(self.rng.randint(10 ** (digits - 1), 10**digits - 1))

    def open_words(self, low: int, high: int) -> str:
        return " ".join(self.rng.choice(self.words) for _ in range(self.rng.randint(low, high)))

    def date(self) -> str:
        month = self.rng.choice(MONTHS)
        day = self.rng.randint(1, 31)
        return self.rng.choice(
            [f"{day} {month}", f"the {day}th of {month}", f"{month} {day}", self.rng.choice(DAYS)]
        )

    def code(self) -> str:
        """Things like 7741-ALPHA, 10.20.30.40, hunter2, x9k2-77q."""
        rng, word = self.rng, self.rng.choice(self.words)
        letters = "".join(
            rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(rng.randint(2, 6))
        )
        return rng.choice(
            [
                f"{self.number(4)}-{word.upper()}",
                f"{word}{rng.randint(1, 99)}",
                ".".join(str(rng.randint(0, 255)) for _ in range(4)),
                f"{letters.upper()}-{self.number(3)}-{self.number(2)}",
                f"{letters}{rng.randint(1, 999)}",
                "-".join(rng.choice(self.words) for _ in range(rng.randint(2, 4))),
                f"{rng.randint(1, 99)}.{rng.randint(1, 99)}",
                f"{word}@{letters}.org",
                f"{rng.randint(0, 23)}:{rng.randint(10, 59)}",
                f"${rng.randint(2, 9999)}",
            ]
        )

    def phrase(self) -> str:
        return self.rng.choice(self.phrases)

    def long_activity(self) -> str:
        draw = self.rng.random()
        if draw < 0.55:
            return self.activity()
        if draw < 0.8:
            return f"{self.activity()} and {self.activity()}"
        return f"{self.rng.choice(WORDS['activities'])} and {self.phrase()}"

    def thing(self) -> str:
        draw = self.rng.random()
        if draw < 0.08:
            owner = self.rng.choice(["my", "our", "your", "the", self.name() + "'s"])
            return f"{owner} {self.open_words(1, 2)}"
        if draw < 0.12:
            return f"the {self.open_words(1, 1)}'s {self.open_words(1, 1)}"
        if draw < 0.6:
            return "the " + self.adjective_noun()
        if draw < 0.8:
            return self.name()
        return ("the " if draw < 0.95 else "") + self.open_words(1, 3)

    def fill(self, template: str, thing: str) -> str:
        return template.format(
            name=self.name(),
            city=self.city(),
            thing=thing,
            Thing=capitalised(thing),
            activity=self.activity(),
            adjective=self.rng.choice(self.adjectives),
            noun=self.rng.choice(self.nouns),
            place=self.rng.choice(WORDS["places"]),
            number=self.number(),
            date=self.date(),
            phrase=self.phrase(),
            words=self.open_words(1, 4),
        )

    def value(self) -> str:
        draw = self.rng.random()
        if draw < 0.3:
            return self.number()
        if draw < 0.45:
            return self.long_activity()
        if draw < 0.52:
            return self.adjective_noun()
        if draw < 0.57:
            return self.name()
        if draw < 0.7:
            return self.open_words(1, 6)
        return self.phrase() if draw < 0.85 else self.code()

    def relation_and_value(self) -> tuple[str, str]:
        """A noun phrase such as "secret number of the amber falcon", and a value for it."""
        draw = self.rng.random()
        if draw < 0.55:
            if not self.same_relation:
                self.relation = self.rng.choice(WORDS["number_relations"])
            preposition = "of" if self.rng.random() < 0.8 else "for"
            return f"{self.relation} {preposition} {self.thing()}", self.number()
        if draw < 0.68:
            return f"{BEST_THING} {self.city()}", self.long_activity()
        if draw < 0.82:
            return self.fill(self.rng.choice(WORDS["phrase_relations"]), self.thing()), self.value()
        if draw < 0.86:
            return self.open_words(1, 3), self.value()
        preposition = self.rng.choice(["of", "of", "for", "in", "from", "at", "to"])
        return f"{self.open_words(1, 2)} {preposition} {self.thing()}", self.value()

    def needle(self, start: str, value: str) -> str:
        if self.rng.random() < self.lead_in_share:
            lead_in = self.rng.choice(LEAD_INS)
            start = (
                lead_in + start[:1].lower() + start[1:]
                if start.startswith(("The ", "One "))
                else start
            )
        return f"{start} {value}."

    def verb_fact(self) -> Fact | None:
        thing = self.thing()
        start, question, value = self.rng.choice(VERB_FACTS)
        names = {"name": self.name(), "thing": thing, "Thing": capitalised(thing)}
        start, question = start.format(**names), question.format(**names)
        if question in self.used:
            return None
        self.used.add(question)
        value = self.fill(value, thing)
        return Fact([f"{start} {value}."], question, start + " ", value + ".")

    def single(self) -> Fact | None:
        """One key, one value; None when the key was drawn before."""
        if self.rng.random() < 0.2:
            return self.verb_fact()
        subject, value = self.relation_and_value()
        if subject in self.used:
            return None
        self.used.add(subject)
        question = self.rng.choice(QUESTIONS)
        owner = self.rng.choice(OWNERS) if self.rng.random() < 0.1 else "the"
        question = question.format(x=f"{owner} {subject}", X=capitalised(f"{owner} {subject}"))
        start = capitalised(f"{owner} {subject} is")
        needles = [self.needle(start, value)]
        if self.rng.random() < 0.15 and question[-1] in ".?":
            return Fact(needles, question + self.rng.choice(BARE), "", value)
        return Fact(needles, question, start + " ", value + ".")

    def several(self, num_values: int) -> Fact | None:
        """One key, several values: the answer lists all in order of appearance."""
        relation = self.rng.choice(WORDS["number_relations"])
        thing = self.thing()
        subject = f"{relation}s of {thing}"
        if subject in self.used or f"{relation} of {thing}" in self.used:
            return None
        self.used |= {subject, f"{relation} of {thing}"}
        if self.rng.random() < 0.8:
            values = [self.number() for _ in range(num_values)]
        else:
            values = [self.adjective_noun() for _ in range(num_values)]
        if len(set(values)) < num_values:
            return None
        needles = [self.needle(f"One of the {subject} is", value) for value in values]
        question = self.rng.choice(QUESTIONS_PLURAL).format(x="the " + subject)
        return Fact(needles, question, f"The {subject} are ", ", ".join(values) + ".")
