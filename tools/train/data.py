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

import ruler
from needles import Fact, FactMaker
from vocabulary import CachedEncoder

# Classes: no loss, language model, answer, its value, words that had to be counted.
CONTEXT, TEXT, ANSWER, VALUE, WORD = 0, 1, 2, 3, 4

# How many of 100 conversations are of a kind: open wordings, then the kinds of ruler.py.
SHARES = {"facts": 45, "multikey": 10, "multivalue": 10, "vt": 15, "cwe": 10, "fwe": 10}
MOST_ASKED, MOST_ANSWER_CHARACTERS = 64, 1500  # of one conversation
# Least characters a token of facts: words have more, but digits and letters of made-up names are
# single tokens.
CHARACTERS_A_TOKEN = {"vt": 1.4}

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
    """Makes rows of any length; deterministic for a seed.

    For evaluation, text, keys and made-up names are those that training never sees.
    """

    def __init__(
        self, model: Path, tokens: Path, seed: int, evaluation: bool = False, shares: dict = SHARES
    ):
        self.rng = random.Random(seed)
        self.shares = shares
        self.evaluation = evaluation
        self.encode = CachedEncoder(model)
        self.text = Text(tokens / ("heldout.bin" if evaluation else "train.bin"), self.encode)
        self.words = (tokens / "words.txt").read_text().split()
        self.phrases = (tokens / "phrases.txt").read_text().splitlines()

    def num_facts(self, kind: str, budget: int) -> float:
        """Most facts of a conversation: one, any number, or as many as there is room for."""
        shape, most = self.rng.random(), max(1.0, np.log2(budget / 16))
        if shape < 0.1:
            return 1
        if kind in ruler.KINDS and shape < 0.4:  # as many as the program hides
            return {"multikey": ruler.NUM_KEYS, "multivalue": 1, "vt": ruler.NUM_CHAINS}[kind]
        return 2 ** self.rng.uniform(0 if shape < 0.4 else most - 2, most)

    def facts(self, kind: str, budget: int) -> list[Fact]:
        """Facts whose needles, questions and answers fit into the budget of tokens."""
        rng = self.rng
        maker = FactMaker(rng, self.words, self.phrases, self.evaluation)
        names = ruler.Names(rng, self.evaluation)
        limit = self.num_facts(kind, budget)
        several_share = rng.choice([0, 0, 0.3, 0.6])

        def draw() -> Fact | None:
            if kind == "vt":
                return ruler.chain_fact(maker, names, rng.choice([1, 2, 2, 3, 3, 4, 4, 4, 4, 5]))
            if kind == "multivalue":
                return ruler.number_fact(maker, rng.choice([1, 2, 3, 4, 4, 4]))
            if kind == "multikey":
                return ruler.number_fact(maker, 1)
            return (
                maker.several(rng.randint(2, 4)) if rng.random() < several_share else maker.single()
            )

        facts, misses, characters = [], 0, CHARACTERS_A_TOKEN.get(kind, 3)
        while len(facts) < limit and budget > 0 and misses < 100:  # small pools of keys run out
            fact = draw()
            if fact is None:
                misses += 1
                continue
            sizes = map(len, [fact.question, fact.answer, *fact.needles])
            budget -= sum(sizes) / characters + 12
            if budget > 0 or not facts:
                facts.append(fact)
        return facts

    def asked(self, facts: list[Fact]) -> list[Fact]:
        """Those to ask for: in most conversations all, in random order."""
        asked = facts if self.rng.random() < 0.8 else facts[: max(1, len(facts) // 2)]
        asked = self.rng.sample(asked, len(asked))[:MOST_ASKED]
        ends = np.cumsum([len(fact.answer) for fact in asked])
        return asked[: max(1, int(np.searchsorted(ends, MOST_ANSWER_CHARACTERS, side="right")))]

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
        num_last = 0
        if rng.random() < 0.15:  # most often one, else all that may follow one another
            num_last = min(rng.choice([1, 1, 5]), len(needles) - needle_first)
        paragraphs = []
        if rng.random() < 0.3:
            tokens, ends = self.repeated_with_ends(num_tokens, opens=not needle_first)
            text_class = CONTEXT
        else:
            start, end = self.text.chunk(rng, num_tokens, start_at_sentence=needle_first)
            tokens, text_class = self.text.tokens[start:end], TEXT
            ends = within(self.text.sentence_ends, start, end)
            paragraphs = within(self.text.paragraph_starts, start, end).tolist()
        middle = needles[int(needle_first) : len(needles) - num_last]
        pieces = [(encode(needles[0]), CONTEXT)] if needle_first else []
        at = 0
        for (place, new_paragraph), needle in zip(
            self.places(len(middle), ends, paragraphs), middle
        ):
            pieces.append((tokens[at:place], text_class))
            pieces.append((encode(needle + "\n\n" if new_paragraph else " " + needle), CONTEXT))
            at = place
        if num_last:
            pieces.append((tokens[at:], text_class))
            pieces.append((encode(" " + " ".join(needles[-num_last:])[:-1]), CONTEXT))
            return pieces, "."
        pieces.append((tokens[at:-1], text_class))
        return pieces, self.text.stop_text.get(int(tokens[-1]), ".")

    def turns(self, asked: list[Fact], value_class: int = VALUE) -> list:
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
            pieces.append((encode(fact.answer[len(kept) :]), value_class))
            pieces.append((end, ANSWER))
        return pieces

    def opening(self, head: str) -> tuple[list[int], str]:
        """What is in front of the text: ids and the characters after them."""
        rng, encode, start = self.rng, self.encode, [self.encode.start]
        if rng.random() < 0.2:
            system = encode("system\n" + rng.choice(SYSTEMS)) + [encode.end] + encode("\n")
            return start + system + start, "user\n" + head
        return start, "user\n" + head

    def text_conversation(self, kind: str, length: int) -> list:
        """(ids, class) pieces: text with facts in it, and questions about them."""
        rng, encode = self.rng, self.encode
        facts = self.facts(kind, min(length * 2 // 3, 6000))
        asked = self.asked(facts)
        opening, after_opening = self.opening(ruler.HEADS.get(kind) or rng.choice(INTROS))
        text_is_system = kind == "facts" and rng.random() < 0.05
        if text_is_system:
            opening, after_opening = [encode.start], "system\n"
        turns = self.turns(asked)
        needles = self.in_order([fact.needles for fact in facts])
        used = sum(len(ids) for ids, _ in turns) + len(opening) + len(encode(after_opening))
        used += len(encode(asked[0].question)) + 10
        used += sum(len(encode(" " + needle)) for needle in needles)
        pieces, stop = self.haystack(max(32, length - used - 4), needles)
        if text_is_system:
            ask = encode(stop) + [encode.end] + encode("\n") + [encode.start]
            ask += encode("user\n" + asked[0].question)
        else:
            between = rng.choice(BEFORE_QUESTION) if kind == "facts" else "\n\n"
            ask = encode(stop + between + asked[0].question)
        head = (opening + encode(after_opening), CONTEXT)
        return [head, *pieces, (ask, CONTEXT), *turns]

    def word_conversation(self, kind: str, length: int) -> list:
        """(ids, class) pieces: words and the question which of them are frequent; empty without
        room. Short texts have fewer common words."""
        rng, encode = self.rng, self.encode
        names = ruler.Names(rng, self.evaluation)
        opening, head = self.opening(ruler.HEADS[kind])

        def size(text: str) -> int:
            return len(encode(" " + text))

        if kind == "fwe":
            values = [names.coded_word() for _ in range(ruler.NUM_FREQUENT)]
            question = ruler.FREQUENT_QUESTION
        else:
            most = min(ruler.NUM_COMMON, length // 100)
            num = most if rng.random() < 0.7 else rng.randint(2, max(2, most))
            values = [names.list_word() for _ in range(num)]
            question = ruler.COMMON_QUESTION.format(num=num)
        turns = self.turns([Fact([], question, "", ", ".join(values))], WORD)
        used = sum(len(ids) for ids, _ in turns) + len(opening) + len(encode(head + question)) + 8
        if kind == "fwe":
            words = ruler.frequent_words(names, values, length - used, size)
        else:
            easy = not self.evaluation and rng.random() < 0.3
            words = ruler.common_words(names, values, length - used, size, any_repeats=easy)
        message = head + ruler.word_text(kind, words) + "\n\n" + question
        return [(opening + encode(message), CONTEXT), *turns] if words else []

    def conversation(self, length: int, kind: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """One text and questions about it, at most `length` tokens."""
        kind = kind or self.rng.choices(list(self.shares), list(self.shares.values()))[0]
        pieces = []
        if kind in ruler.WORD_KINDS and length > 200:
            pieces = self.word_conversation(kind, length)
        pieces = pieces or self.text_conversation(
            "facts" if kind in ruler.WORD_KINDS else kind, length
        )
        pieces.append((self.encode("\n"), CONTEXT))
        tokens = np.concatenate([np.asarray(ids, np.uint16) for ids, _ in pieces])
        return tokens, np.concatenate([np.full(len(ids), c, np.uint8) for ids, c in pieces])

    def held_out_row(self, length: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
        """One conversation of a kind, filled up with end marks."""
        tokens, classes = self.conversation(length, kind)
        rest = (0, max(0, length - len(tokens)))
        tokens = np.pad(tokens, rest, constant_values=self.encode.end_of_text)[:length]
        return tokens.astype(np.int16), np.pad(classes, rest)[:length]

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

    def __init__(self, model: Path, tokens: Path, length: int, rows: int, seed: int, shares: dict):
        self.model, self.tokens, self.seed, self.shares = model, tokens, seed, shares
        self.length, self.rows = length, rows

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        seed = self.seed * 1000 + (worker.id if worker else 0)
        maker = RowMaker(self.model, self.tokens, seed, shares=self.shares)
        while True:
            made = [maker.row(self.length + 1) for _ in range(self.rows)]
            yield tuple(torch.from_numpy(np.stack(part)) for part in zip(*made))
