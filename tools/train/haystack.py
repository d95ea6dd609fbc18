"""Prompts for evaluation: a fact at a chosen depth of a haystack of an exact number of tokens.

Used by evaluate.py. Reads needle_templates.json and haystack.txt of the model directory, as the
engine's own needle command does, so both ask the same kind of question; ruler.py has the kinds that
every model has.
"""

import json
import random
import re
from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path

import ruler
from needles import FactMaker

ANSWER_ROOM = 96  # tokens kept free for the answer


@dataclass
class Item:
    """One prompt and the answer expected."""

    kind: str
    haystack: str  # natural or repeated
    length: int
    depth: int
    messages: list[dict]
    expected: str
    values: list[str] = field(default_factory=list)  # of a kind of ruler.py, which counts shares

    def score(self, answer: str) -> float:
        return ruler.score(self.values, answer) if self.values else float(answer == self.expected)


class PromptMaker:
    """Builds prompts around facts that training never saw; deterministic for a seed."""

    def __init__(self, model: Path, tokenizer, seed: int):
        templates = json.loads((model / "needle_templates.json").read_text())
        self.kinds = {kind["name"]: kind for kind in templates["kinds"]}
        self.prompt = templates["prompt"]
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
        # Generators of their own: the items of templates stay those of the seed.
        self.facts = FactMaker(random.Random(seed), [], [], evaluation=True)
        self.facts.num_digits = 7
        self.names = ruler.Names(random.Random(seed), evaluation=True)
        text = " ".join((model / "haystack.txt").read_text().split())
        self.sentences = {
            "natural": re.split(r"(?<=[a-z][.!?]) (?=[A-Z])", text),
            "repeated": re.split(r"(?<=\.) ", templates["repeated_haystack"]),
        }
        self.sizes = {
            name: [len(self.encode(" " + s)) for s in sentences]
            for name, sentences in self.sentences.items()
        }

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def value(self, kind: dict) -> str:
        if "values" in kind:
            return self.rng.choice(kind["values"])
        digits = kind["value_digits"]
        return str(self.rng.randint(10 ** (digits - 1), 10**digits - 1))

    def draw(self, kind_name: str, num_keys: int, num_values: int):
        """Needles of the asked key, needles of other keys, question, answer."""
        kind = self.kinds[kind_name]
        keys = self.rng.sample(kind["keys"], num_keys)
        values = [self.value(kind) for _ in range(num_values)]
        asked = [kind["needle"].format(key=keys[0], value=value) for value in values]
        others = [kind["needle"].format(key=key, value=self.value(kind)) for key in keys[1:]]
        answer = kind["answer"].format(key=keys[0], value=kind.get("separator", "").join(values))
        return asked, others, kind["question"].format(key=keys[0]), answer

    def filler(self, haystack: str, num_tokens: int) -> list[str]:
        """Whole sentences of num_tokens at most, natural ones from a random place on."""
        sentences, sizes = self.sentences[haystack], self.sizes[haystack]
        start = self.rng.randrange(len(sentences)) if haystack == "natural" else 0
        chosen, left = [], num_tokens
        while sizes[start % len(sizes)] <= left:
            chosen.append(sentences[start % len(sizes)])
            left -= sizes[start % len(sizes)]
            start += 1
        return chosen

    def item(
        self, kind: str, haystack: str, length: int, depth: int, num_keys=1, num_values=1
    ) -> Item:
        """Prompt and answer take at most `length` tokens; depth is that of the (first) needle."""
        asked, others, question, answer = self.draw(kind, num_keys, num_values)
        used = len(self.encode(" ".join([*asked, *others, question]))) + ANSWER_ROOM
        chosen = self.filler(haystack, length - used - 24)
        ends = list(accumulate(len(sentence) + 1 for sentence in chosen))
        depths = [depth / 100] + [self.rng.uniform(depth / 100, 1) for _ in asked[1:]]
        places = sorted(bisect_right(ends, d * ends[-1]) for d in depths)
        inserts = list(zip(places, asked))
        inserts += [(self.rng.randint(0, len(chosen)), other) for other in others]
        for place, needle in sorted(inserts, key=lambda pair: pair[0], reverse=True):
            chosen.insert(place, needle)
        # Needles of one key at one place were inserted last first: put them back in order.
        order = iter(asked)
        chosen = [next(order) if sentence in asked else sentence for sentence in chosen]
        text = self.prompt.format(haystack=" ".join(chosen), question=question)
        return Item(kind, haystack, length, depth, [{"role": "user", "content": text}], answer)

    def ruler_item(self, kind: str, length: int, depth: int) -> Item:
        """A prompt of a kind of ruler.py; the asked fact or its first sentence is at the depth."""
        make = self.word_message if kind in ruler.WORD_KINDS else self.text_message
        message, values = make(kind, length, depth)
        return Item(
            kind,
            "natural",
            length,
            depth,
            [{"role": "user", "content": ruler.HEADS[kind] + message}],
            ", ".join(values),
            values,
        )

    def ruler_facts(self, kind: str) -> tuple[list, list[str]]:
        """Facts, the first of which is asked for, and its values."""
        if kind == "vt":
            facts = [
                ruler.chain_fact(self.facts, self.names, ruler.NUM_HOPS)
                for _ in range(ruler.NUM_CHAINS)
            ]
            return facts, facts[0].answer_value.split(", ")
        num_values = ruler.NUM_VALUES if kind == "multivalue" else 1
        facts = []
        while len(facts) < (1 if kind == "multivalue" else ruler.NUM_KEYS):
            facts += filter(None, [ruler.number_fact(self.facts, num_values)])
        return facts, facts[0].answer_value.rstrip(".").split(", ")

    def text_message(self, kind: str, length: int, depth: int) -> tuple[str, list[str]]:
        facts, values = self.ruler_facts(kind)
        needles = [needle for fact in facts for needle in fact.needles]
        used = len(self.encode(" ".join([*needles, facts[0].question, ruler.HEADS[kind]])))
        chosen = self.filler("natural", length - used - ANSWER_ROOM - 24)
        ends = list(accumulate(len(sentence) + 1 for sentence in chosen))
        places = []
        for number, fact in enumerate(facts):
            num = len(fact.needles)
            shares = [depth / 100 + (1 - depth / 100) * i / num for i in range(num)]
            if number:
                shares = sorted(self.facts.rng.random() for _ in range(num))
            places += [bisect_right(ends, share * ends[-1]) for share in shares]
        # Stable and from the last on, so that needles at one place stay in order.
        for place, needle in reversed(sorted(zip(places, needles), key=lambda pair: pair[0])):
            chosen.insert(place, needle)
        return " ".join(chosen) + "\n\n" + facts[0].question, values

    def word_message(self, kind: str, length: int, _depth: int) -> tuple[str, list[str]]:
        def size(text: str) -> int:
            return len(self.encode(" " + text))

        num_tokens = length - ANSWER_ROOM - 24 - len(self.encode(ruler.HEADS[kind]))
        if kind == "fwe":
            question = ruler.FREQUENT_QUESTION
            values = [self.names.coded_word() for _ in range(ruler.NUM_FREQUENT)]
            make = ruler.frequent_words
        else:
            question = ruler.COMMON_QUESTION.format(num=ruler.NUM_COMMON)
            values = [self.names.list_word() for _ in range(ruler.NUM_COMMON)]
            make = ruler.common_words
        words = make(self.names, values, num_tokens - len(self.encode(question)), size)
        assert words, f"{length} tokens have no room for the words of {kind}"
        return ruler.word_text(kind, words) + "\n\n" + question, values
