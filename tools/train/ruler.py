"""The built-in kinds of `sluice-eval needle`, tasks of RULER: their facts, and their texts made of words.

Used by data.py (training) and haystack.py (evaluation). The wordings are those of
eval/ruler_tasks.cc and word_tasks.cc. This compares them with prompts that the program
has made, and ends with status 1 where one differs:

    sluice-eval needle --model ../../models/needle --kind vt --lengths 4K --save-prompts --out prompts
    python3 ruler.py --model ../../models/needle --prompts prompts/prompts.jsonl --kind vt
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Callable

from needles import Fact, FactMaker, held_out, reserved

NUMBER_KINDS = ["multikey", "multivalue"]
WORD_KINDS = ["cwe", "fwe"]  # the text is a list of words
KINDS = [*NUMBER_KINDS, "vt", *WORD_KINDS]

NUMBERS_HEAD = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the numbers afterwards.\n\n"
)
# What a user message begins with; the text, an empty line and the question follow.
HEADS = {
    "multikey": NUMBERS_HEAD,
    "multivalue": NUMBERS_HEAD,
    "vt": "Memorize and track the chains of variable assignment hidden in the following text.\n\n",
    "cwe": "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n\n",
    "fwe": "Read the following coded text and track the frequency of each coded word. Find the three "
    "most frequently appeared coded words.\n\n",
}
NUMBER_NEEDLE = "One of the special magic numbers for {key} is: {value}."
NUMBER_QUESTION = "What is the special magic number for {key} mentioned in the provided text?"
NUMBERS_QUESTION = (
    "What are all the special magic numbers for {key} mentioned in the provided text?"
)
NUMBER_ANSWER = "The special magic number for {key} mentioned in the provided text is "
NUMBERS_ANSWER = "The special magic numbers for {key} mentioned in the provided text are "
VARIABLES_QUESTION = (
    "Find all variables that are assigned the value {value} in the text above. Answer with the "
    "names of the variables only."
)
COMMON_QUESTION = (
    "What are the {num} most common words in the above list? Answer with the words only."
)
FREQUENT_QUESTION = (
    "Do not provide any explanation. Please ignore the dots. What are the three most frequently "
    "appeared words in the above coded text?"
)
NUM_KEYS, NUM_VALUES = 4, 4  # multikey, multivalue
NUM_HOPS, NUM_CHAINS = 4, 3  # vt: a chain has one variable more; one chain is asked for
NUM_COMMON, NUM_FREQUENT = 10, 3  # cwe, fwe
# How often a common and an uncommon word occur: the first pair for which the common words take at
# most half of the text.
REPEATS = [(30, 3), (20, 2), (10, 1), (7, 1), (5, 1), (3, 1)]
ZETA_2 = 1.6449340668482264
NOISE = ["...", "..", "."]  # the first is the word of rank 1

Size = Callable[[str], int]  # tokens of a space and this text


class Names:
    """Draws made-up names, each once. As with keys, training has other names than evaluation."""

    def __init__(self, rng: random.Random, evaluation: bool):
        self.rng, self.evaluation, self.used = rng, evaluation, set()

    def draw(self, make: Callable[[], str]) -> str:
        while True:
            name = make()
            if name not in self.used and reserved(name) == self.evaluation:
                self.used.add(name)
                return name

    def letters(self, num: int, alphabet: str) -> str:
        return self.draw(lambda: "".join(self.rng.choice(alphabet) for _ in range(num)))

    def variable(self) -> str:
        return self.letters(5, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")

    def coded_word(self) -> str:
        return self.letters(6, "abcdefghijklmnopqrstuvwxyz")

    def list_word(self) -> str:
        pick = self.rng.choice
        return self.draw(lambda: "".join(pick("bdfghklmnprstvz") + pick("aeiou") for _ in range(3)))


def number_fact(maker: FactMaker, num_values: int) -> Fact | None:
    """Values of one key, in order of appearance; None when the key was drawn before."""
    key = maker.adjective_noun()
    values = [maker.number() for _ in range(num_values)]
    if key in maker.used or len(set(values)) < num_values:
        return None
    maker.used.add(key)
    needles = [NUMBER_NEEDLE.format(key=key, value=value) for value in values]
    question, answer = (
        (NUMBER_QUESTION, NUMBER_ANSWER) if num_values == 1 else (NUMBERS_QUESTION, NUMBERS_ANSWER)
    )
    return Fact(needles, question.format(key=key), answer.format(key=key), ", ".join(values) + ".")


def chain_fact(maker: FactMaker, names: Names, num_hops: int) -> Fact | None:
    """A chain of assignments; None when the number was drawn before."""
    value = maker.number(5)
    if value in maker.used:
        return None
    maker.used.add(value)
    variables = [names.variable() for _ in range(num_hops + 1)]
    assigned = [value] + [f"VAR {name}" for name in variables]
    needles = [f"VAR {name} = {what}." for name, what in zip(variables, assigned)]
    return Fact(needles, VARIABLES_QUESTION.format(value=value), "", ", ".join(variables))


def common_words(
    names: Names, common: list[str], num_tokens: int, size: Size, any_repeats: bool = False
) -> list[str]:
    """A shuffled list in which some words are common; empty without room. With any_repeats the
    pair of REPEATS is a random one of those that fit."""
    sizes = {word: size(word) for word in common}

    def cost(word: str, num_before: int, times: int) -> int:
        numbers = sum(size(f"{num_before + i + 1}.") for i in range(times))
        return numbers + times * (sizes.get(word) or sizes.setdefault(word, size(word)))

    def fits(pair: tuple[int, int]) -> bool:
        times = pair[0]
        costs = (cost(word, i * times, times) for i, word in enumerate(common))
        return sum(costs) <= num_tokens // 2

    fitting = [pair for pair in REPEATS if fits(pair)]
    if not fitting:
        return []
    num_common, num_uncommon = names.rng.choice(fitting) if any_repeats else fitting[0]
    words, left = [], num_tokens
    for word in common:
        left -= cost(word, len(words), num_common)
        words += [word] * num_common
    for times in sorted({num_uncommon, 1}, reverse=True):
        while (needed := cost(word := names.list_word(), len(words), times)) <= left:
            left -= needed
            words += [word] * times
    names.rng.shuffle(words)
    return words


def frequent_words(names: Names, frequent: list[str], num_tokens: int, size: Size) -> list[str]:
    """Shuffled coded words whose frequencies fall with the square of the rank; empty without
    room. The first rank is noise, the next ones are `frequent`."""
    most_words = 2 * num_tokens
    # The last of these never occurs.
    num_ranks = max(int((most_words / ZETA_2) ** 0.5), NUM_FREQUENT + 1) + 1
    words = [NOISE[0], *frequent]
    words += [names.coded_word() for _ in range(num_ranks - len(words))]
    sizes = [size(word) for word in words]

    def occurrences(num_words: int) -> list[int]:
        return [int(num_words / (ZETA_2 * rank * rank)) for rank in range(1, num_ranks + 1)]

    def cost(num_words: int) -> int:
        return sum(times * each for times, each in zip(occurrences(num_words), sizes))

    low, high = 0, most_words
    while low < high:
        middle = high - (high - low) // 2
        low, high = (middle, high) if cost(middle) <= num_tokens else (low, middle - 1)
    times, left = occurrences(low), num_tokens - cost(low)
    if times[NUM_FREQUENT] <= times[NUM_FREQUENT + 1]:
        return []
    text = [word for word, num in zip(words, times) for _ in range(num)]
    for noise in NOISE:
        text += [noise] * (left // size(noise))
        left %= size(noise)
    names.rng.shuffle(text)
    return text


def word_text(kind: str, words: list[str]) -> str:
    if kind == "cwe":
        words = [f"{number}. {word}" for number, word in enumerate(words, 1)]
    return " ".join(words)


def score(values: list[str], answer: str) -> float:
    """The share of the values that the answer contains as whole words, letters of any case."""
    found = [
        re.search(rf"(?<![a-z0-9]){re.escape(value.lower())}(?![a-z0-9])", answer.lower())
        for value in values
    ]
    return sum(match is not None for match in found) / len(values)


# ---- comparison with the program's prompts ----


def differences(kind: str, message: str, values: list[str], size: Size):
    """Yields what a prompt of `sluice-eval needle` has that the wordings above do not explain."""
    text, _, question = message.rpartition("\n\n")
    if not text.startswith(HEADS[kind]):
        yield f"another start: {message[:120]!r}"
        return
    text = text[len(HEADS[kind]) :]
    expected, needles = {
        "multikey": number_prompt, "multivalue": number_prompt, "vt": variables_prompt,
        "cwe": common_prompt, "fwe": frequent_prompt,
    }[kind](question, text, values, size)  # fmt: skip
    if question != expected:
        yield f"another question: {question!r}"
    for needle in needles:
        if needle not in text:
            yield f"missing in the text: {needle!r}"


def number_prompt(question: str, text: str, values: list[str], _size: Size):
    key = re.search(r"for (.*) mentioned", question).group(1)
    keys = re.findall(NUMBER_NEEDLE.format(key=r"(\w+ \w+)", value=r"\d{7}"), text)
    one = len(values) == 1
    if len(keys) != (NUM_KEYS if one else NUM_VALUES):
        return question, [f"{len(keys)} needles of another number"]
    if not all(held_out(k) for k in keys):
        return question, ["a key that training may have"]
    wording = NUMBER_QUESTION if one else NUMBERS_QUESTION
    return wording.format(key=key), [NUMBER_NEEDLE.format(key=key, value=v) for v in values]


def variables_prompt(question: str, text: str, values: list[str], _size: Size):
    number = re.search(r"\d+", question).group()
    if len(re.findall(r"VAR [A-Z]{5} = (?:\d{5}|VAR [A-Z]{5})\.", text)) != NUM_CHAINS * (
        NUM_HOPS + 1
    ):
        return question, ["assignments of another number"]
    assigned = [number] + [f"VAR {name}" for name in values]
    needles = [f"VAR {name} = {what}." for name, what in zip(values, assigned)]
    return VARIABLES_QUESTION.format(value=number), needles


def common_prompt(_question: str, text: str, values: list[str], size: Size):
    """Makes a list of the same length, which must have words that repeat alike."""
    words = re.findall(r"\d+\. (\w+)", text)
    mine = common_words(Names(random.Random(1), True), values, size(text), size)
    found, expected = (sorted(map(Counter(w).__getitem__, values)) for w in (words, mine))
    problems = [] if word_text("cwe", words) == text else ["another form of list"]
    if found != expected:
        problems.append(f"common words {found} times instead of {expected}")
    return COMMON_QUESTION.format(num=NUM_COMMON), problems


def frequent_prompt(_question: str, text: str, values: list[str], size: Size):
    words = text.split(" ")
    mine = frequent_words(Names(random.Random(1), True), values, size(text), size)
    found, expected = ([Counter(w)[v] for v in values] for w in (words, mine))
    # Other words of that many letters have other numbers of tokens.
    near = all(abs(a - b) <= 0.1 * b + 1 for a, b in zip(found, expected))
    return FREQUENT_QUESTION, [] if near else [f"frequencies {found} instead of {expected}"]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="directory with tokenizer.json")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--kind", choices=KINDS, required=True)
    args = parser.parse_args()
    from vocabulary import CachedEncoder  # needs more than Python; the tests of this file do not

    encode = CachedEncoder(args.model)
    lines = [json.loads(line) for line in args.prompts.read_text().splitlines()]
    problems = [
        problem
        for line in lines
        for problem in differences(
            args.kind, line["message"], line["expected"], lambda text: len(encode(" " + text))
        )
    ]
    print(*problems, f"{args.kind}: {len(lines)} prompts, {len(problems)} differences", sep="\n")
    sys.exit(bool(problems or not lines))


if __name__ == "__main__":
    main()
