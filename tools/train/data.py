"""Training rows: conversations about long texts with facts hidden in them, packed to one length.

A row is [length + 1] token ids with a class for each, which selects its weight in the loss.
Used by train.py through a DataLoader; every worker owns one RowMaker. A sentence may be inserted
where the previous token is exactly ".", "!" or "?" and the next one starts with a space: there
the tokens of the pieces, put side by side, are the tokens of the whole text.
"""

import random
from pathlib import Path

import numpy as np
import torch

from needles import FactMaker
from vocabulary import CachedEncoder

CONTEXT, TEXT, ANSWER, VALUE = 0, 1, 2, 3  # classes: no loss, language model, answer, its value

RULER_NOISE = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
)
INTROS = [
    "",
    "",
    "",
    "",
    "Read the text and answer the question at the end.\n\n",
    "Text:\n",
    "Text:\n\n",
    "Some facts are hidden in the following text. Remember them.\n\n",
    "Here is a long text.\n\n",
    "Please read this carefully.\n\n",
]
SYSTEMS = [
    "You are a helpful assistant.",
    "You answer questions about a text.",
    "Answer the question from the text.",
    "You are a careful reader.",
]
BEFORE_QUESTION = ["\n\n", "\n\n", "\n\n", "\n\n", "\n\nQuestion: ", "\n", "\n\nNow answer: ", " "]


class Text:
    """A token stream with the places where a sentence or a paragraph ends."""

    def __init__(self, path: Path, encoder: CachedEncoder):
        self.tokens = np.fromfile(path, np.uint16)
        vocab = encoder.tokenizer.get_vocab()
        size = encoder.tokenizer.get_vocab_size()
        opens_word, ends_paragraph = np.zeros(size, bool), np.zeros(size, bool)
        for token, index in vocab.items():
            opens_word[index] = token.startswith("Ġ") and token[1:2].isalpha()
            ends_paragraph[index] = token.endswith("ĊĊ")
        self.stop_text = {vocab[c]: c for c in ".!?"}
        after_stop = np.isin(self.tokens[:-1], list(self.stop_text)) & opens_word[self.tokens[1:]]
        self.sentence_ends = np.flatnonzero(after_stop) + 1
        self.paragraph_starts = np.flatnonzero(ends_paragraph[self.tokens[:-1]]) + 1

    def chunk(
        self, rng: random.Random, num_tokens: int, start_at_sentence: bool
    ) -> tuple[int, int]:
        """Start and end of a chunk of about num_tokens: two sentences or more, whole at the end."""
        starts = self.sentence_ends if start_at_sentence else self.paragraph_starts
        last = np.searchsorted(starts, len(self.tokens) - num_tokens - 1000)
        start = int(starts[rng.randrange(max(1, int(last)))])
        first, behind = np.searchsorted(
            self.sentence_ends, [start, start + num_tokens], side="right"
        )
        return start, int(self.sentence_ends[max(first + 1, behind - 1)])


def within(positions: np.ndarray, start: int, end: int) -> np.ndarray:
    """The positions in (start, end], counted from start."""
    low, high = np.searchsorted(positions, [start, end], side="right")
    return positions[low:high] - start


class RowMaker:
    """Makes rows of any length; deterministic for a seed."""

    def __init__(self, model: Path, tokens: Path, seed: int):
        self.rng = random.Random(seed)
        self.encode = CachedEncoder(model)
        self.text = Text(tokens / "train.bin", self.encode)
        self.words = (tokens / "words.txt").read_text().split()
        self.phrases = (tokens / "phrases.txt").read_text().splitlines()

    def facts(self, budget: int) -> list:
        """Facts whose needles, questions and answers fit into the budget of tokens."""
        maker = FactMaker(self.rng, self.words, self.phrases)
        shape, most = self.rng.random(), max(1.0, np.log2(budget / 16))
        limit = 1 if shape < 0.1 else 2 ** self.rng.uniform(0 if shape < 0.4 else most - 2, most)
        several_share = self.rng.choice([0, 0, 0.3, 0.6])
        facts = []
        while len(facts) < limit and budget > 0:
            if self.rng.random() < several_share:
                fact = maker.several(self.rng.randint(2, 4))
            else:
                fact = maker.single()
            if fact is None:
                continue
            # 3 characters a token on the safe side: words are longer, digits are single tokens.
            budget -= (
                (len(fact.question) + len(fact.answer)) // 3 + sum(map(len, fact.needles)) // 3 + 12
            )
            if budget > 0 or not facts:
                facts.append(fact)
        return facts

    def repeated_haystack(self, num_tokens: int) -> np.ndarray:
        """The same few sentences again and again; starts with a space, ends with a sentence."""
        if self.rng.random() < 0.4:
            unit = self.encode(" " + RULER_NOISE)
        else:
            unit = []
            for _ in range(self.rng.randint(1, 6)):
                index = self.rng.randrange(len(self.text.sentence_ends) - 1)
                start, end = self.text.sentence_ends[index : index + 2]
                if 5 < end - start < 40:
                    unit += self.text.tokens[start:end].tolist()
            unit = unit or self.encode(" " + RULER_NOISE)
        return np.tile(np.array(unit, np.uint16), max(2, num_tokens // len(unit)))

    def repeated_with_ends(self, num_tokens: int, opens: bool) -> tuple[np.ndarray, np.ndarray]:
        """A repeated haystack and its sentence ends; no space in front if it opens the text."""
        tokens = self.repeated_haystack(num_tokens)
        ends = np.flatnonzero(np.isin(tokens, list(self.text.stop_text))) + 1
        if opens:
            text = self.encode.tokenizer.decode(tokens[: ends[0]].tolist())
            first = self.encode(text.lstrip())
            tokens = np.concatenate([np.array(first, np.uint16), tokens[ends[0] :]])
            ends = ends + (len(first) - ends[0])
        return tokens, ends

    def places(self, num_places: int, ends: np.ndarray, paragraphs: list[int]) -> list:
        """Sorted random (position, is it a new paragraph) for needles; never the very end."""
        share = 0.15 if paragraphs else 0.0
        places = []
        for _ in range(num_places):
            new_paragraph = self.rng.random() < share
            candidates = paragraphs if new_paragraph else ends[:-1].tolist()
            places.append((self.rng.choice(candidates), new_paragraph))
        return sorted(places)

    def haystack(self, num_tokens: int, needles: list[str]) -> tuple[list, str]:
        """Text with the needles in order inside: (ids, class) pieces, and the last character."""
        rng, encode = self.rng, self.encode
        needle_first = rng.random() < 0.15
        needle_last = rng.random() < 0.15 and len(needles) > needle_first
        paragraphs = []
        if rng.random() < 0.3:
            tokens, ends = self.repeated_with_ends(num_tokens, opens=not needle_first)
            text_class = CONTEXT
        else:
            start, end = self.text.chunk(rng, num_tokens, start_at_sentence=needle_first)
            tokens, text_class = self.text.tokens[start:end], TEXT
            ends = within(self.text.sentence_ends, start, end)
            paragraphs = within(self.text.paragraph_starts, start, end).tolist()
        middle = needles[int(needle_first) : len(needles) - int(needle_last)]
        pieces = [(encode(needles[0]), CONTEXT)] if needle_first else []
        at = 0
        for (place, new_paragraph), needle in zip(
            self.places(len(middle), ends, paragraphs), middle
        ):
            pieces.append((tokens[at:place], text_class))
            pieces.append((encode(needle + "\n\n" if new_paragraph else " " + needle), CONTEXT))
            at = place
        if needle_last:
            pieces.append((tokens[at:], text_class))
            pieces.append((encode(" " + needles[-1][:-1]), CONTEXT))
            return pieces, "."
        pieces.append((tokens[at:-1], text_class))
        return pieces, self.text.stop_text.get(int(tokens[-1]), ".")

    def turns(self, asked: list) -> list:
        """(ids, class) pieces from the end of the first question to the end of the last answer."""
        encode, start, end = self.encode, [self.encode.start], [self.encode.end]
        pieces = []
        for number, fact in enumerate(asked):
            if number:
                question = encode("\n") + start + encode("user\n" + fact.question)
                pieces.append((question, CONTEXT))
            pieces.append((end + encode("\n") + start + encode("assistant\n"), CONTEXT))
            # The value's first token carries the space before it.
            kept = fact.answer_start.rstrip(" ")
            pieces.append((encode(kept), ANSWER))
            pieces.append((encode(fact.answer[len(kept) :]), VALUE))
            pieces.append((end, ANSWER))
        return pieces

    def conversation(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """One text and questions about it, at most `length` tokens."""
        rng, encode = self.rng, self.encode
        facts = self.facts(min(length * 2 // 3, 6000))
        asked = facts if rng.random() < 0.8 else facts[: max(1, len(facts) // 2)]
        asked = rng.sample(asked, len(asked))[:64]
        start, end = [encode.start], [encode.end]
        opening, after_opening = start, "user\n" + rng.choice(INTROS)
        text_is_system = rng.random() < 0.05
        if text_is_system:
            after_opening = "system\n"
        elif rng.random() < 0.2:
            opening = start + encode("system\n" + rng.choice(SYSTEMS)) + end + encode("\n") + start
        turns = self.turns(asked)
        needles = self.in_order([fact.needles for fact in facts])
        used = sum(len(ids) for ids, _ in turns) + len(opening) + len(encode(after_opening))
        used += len(encode(asked[0].question)) + 10
        used += sum(len(encode(" " + needle)) for needle in needles)
        pieces, stop = self.haystack(max(32, length - used - 4), needles)
        if text_is_system:
            ask = encode(stop) + end + encode("\n") + start + encode("user\n" + asked[0].question)
        else:
            ask = encode(stop + rng.choice(BEFORE_QUESTION) + asked[0].question)
        head = (opening + encode(after_opening), CONTEXT)
        pieces = [head, *pieces, (ask, CONTEXT), *turns, (encode("\n"), CONTEXT)]
        tokens = np.concatenate([np.asarray(ids, np.uint16) for ids, _ in pieces])
        return tokens, np.concatenate([np.full(len(ids), c, np.uint8) for ids, c in pieces])

    def in_order(self, groups: list[list[str]]) -> list[str]:
        """Shuffles needles of different facts, keeps the order within each fact."""
        order = [index for index, group in enumerate(groups) for _ in group]
        self.rng.shuffle(order)
        queues = [iter(group) for group in groups]
        return [next(queues[index]) for index in order]

    def plain_text(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        start = int(self.text.paragraph_starts[self.rng.randrange(len(self.text.paragraph_starts))])
        tokens = self.text.tokens[start : start + length]
        return tokens, np.full(len(tokens), TEXT, np.uint8)

    def row(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """One conversation of the full length, or several shorter ones one after the other."""
        rng = self.rng
        left, ids, classes = length, [], []
        whole = length <= 512 or rng.random() < 0.6
        while left > 0:
            if left < 160 or rng.random() < 0.03:
                tokens, kinds = self.plain_text(min(left - 1, length // 2))
            elif whole:
                tokens, kinds = self.conversation(left - 1)
            else:
                size = int(160 * 2 ** rng.uniform(0, np.log2(length / 160)))
                tokens, kinds = self.conversation(min(left, size) - 1)
            ids += [tokens, [self.encode.end_of_text]]
            classes += [kinds, [CONTEXT]]
            left -= len(tokens) + 1
        tokens, kinds = np.concatenate(ids)[:length], np.concatenate(classes)[:length]
        return tokens.astype(np.int16), kinds.astype(np.uint8)


class Rows(torch.utils.data.IterableDataset):
    """Endless batches: ids int16 [rows, length + 1] and classes uint8 of the same shape."""

    def __init__(self, model: Path, tokens: Path, length: int, rows: int, seed: int):
        self.model, self.tokens, self.seed = model, tokens, seed
        self.length, self.rows = length, rows

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        maker = RowMaker(self.model, self.tokens, self.seed * 1000 + (worker.id if worker else 0))
        while True:
            made = [maker.row(self.length + 1) for _ in range(self.rows)]
            yield tuple(torch.from_numpy(np.stack(part)) for part in zip(*made))
