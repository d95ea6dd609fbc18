"""Prompts for evaluation: a fact at a chosen depth of a haystack of an exact number of tokens.

Used by evaluate.py. Reads needle_templates.json and haystack.txt of the model directory, as the
engine's own needle command does, so both ask the same kind of question.
"""

import json
import random
import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

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


class PromptMaker:
    """Builds prompts around facts that training never saw; deterministic for a seed."""

    def __init__(self, model: Path, tokenizer, seed: int):
        templates = json.loads((model / "needle_templates.json").read_text())
        self.kinds = {kind["name"]: kind for kind in templates["kinds"]}
        self.prompt = templates["prompt"]
        self.tokenizer = tokenizer
        self.rng = random.Random(seed)
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
