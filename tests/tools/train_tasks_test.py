"""tools/train/ruler.py: the wordings are the program's, and every answer follows from its text."""

import random
import re
import sys
import unittest
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/train"))
sys.dont_write_bytecode = True
import ruler  # noqa: E402
from needles import BUILT_IN_KEYS, FactMaker, held_out, reserved  # noqa: E402

SOURCES = [ROOT / "eval" / name for name in ("ruler_tasks.cc", "word_tasks.cc")]
LITERALS = re.compile(r'(?:"(?:[^"\\]|\\.)*"\s*)+')


def literals(text):
    """The string literals of a C++ source, adjacent ones joined, placeholders without names."""
    for match in LITERALS.finditer(text):
        joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', match.group()))
        yield joined.replace("\\n", "\n")


def nameless(template):
    return re.sub(r"\{\w+\}", "{}", template)


def size(text):
    return 1 + len(text)


class Wordings(unittest.TestCase):
    def setUp(self):
        self.program = {text for path in SOURCES for text in literals(path.read_text())}

    def test_prompts(self):
        for kind, head in ruler.HEADS.items():
            self.assertIn(head + "{haystack}\n\n{question}", self.program, kind)

    def test_questions_sentences_and_answers(self):
        for template in (ruler.NUMBER_NEEDLE, ruler.NUMBER_QUESTION, ruler.NUMBERS_QUESTION,
                         ruler.VARIABLES_QUESTION, ruler.COMMON_QUESTION, "VAR {name} = {what}."):
            self.assertIn(nameless(template), self.program)
        self.assertIn(ruler.FREQUENT_QUESTION, self.program)
        for answer in (ruler.NUMBER_ANSWER, ruler.NUMBERS_ANSWER):
            self.assertIn(nameless(answer) + "{}.", self.program)

    def test_keys(self):
        source = (ROOT / "eval/templates.cc").read_text()
        lists = [re.findall(r'"(\w+)"', re.search(name + r"\[\] = \{(.*?)\}", source, re.DOTALL)[1])
                 for name in ("kAdjectives", "kNouns")]
        self.assertEqual({f"{a} {n}" for a in lists[0] for n in lists[1]}, BUILT_IN_KEYS)


class Answers(unittest.TestCase):
    def setUp(self):
        self.rng = random.Random(3)

    def test_a_chain_leads_from_its_number_to_all_its_variables(self):
        maker, names = FactMaker(self.rng, [], []), ruler.Names(self.rng, False)
        for hops in (1, 2, 3, 4):
            fact = ruler.chain_fact(maker, names, hops)
            assigned = dict(re.fullmatch(r"VAR (\w+) = (?:VAR )?(\w+)\.", n).groups()[::-1]
                            for n in fact.needles)
            at, found = re.search(r"\d{5}", fact.question).group(), []
            while at in assigned:
                at = assigned[at]
                found.append(at)
            self.assertEqual(", ".join(found), fact.answer)
            self.assertEqual(len(found), hops + 1)

    def test_numbers_are_in_order_and_keys_are_not_held_out(self):
        maker = FactMaker(self.rng, [], [])
        facts = [ruler.number_fact(maker, num) for num in (1, 4) * 30]
        for fact in filter(None, facts):
            values = [re.search(r"\d+", needle).group() for needle in fact.needles]
            self.assertEqual(", ".join(values) + ".", fact.answer_value)
            key = re.search(r"for (\w+ \w+) mentioned", fact.question).group(1)
            self.assertTrue(all(f" for {key} is: " in needle for needle in fact.needles))
            self.assertFalse(held_out(key))

    def test_common_words_are_more_common_than_all_others_and_fill_half_at_most(self):
        for length in (1000, 3000, 20000):
            for any_repeats in (False, True):
                names = ruler.Names(self.rng, False)
                common = [names.list_word() for _ in range(4)]
                words = ruler.common_words(names, common, length, size, any_repeats)
                most = Counter(words).most_common(5)
                self.assertEqual({word for word, _ in most[:4]}, set(common))
                self.assertGreater(most[3][1], most[4][1])
                self.assertLessEqual(len(ruler.word_text("cwe", words)), length)
                self.assertGreater(len(ruler.word_text("cwe", words)), length - 20)

    def test_frequent_words_are_in_order_of_their_frequency(self):
        for length in (800, 30000):
            names = ruler.Names(self.rng, True)
            frequent = [names.coded_word() for _ in range(3)]
            words = ruler.frequent_words(names, frequent, length, size)
            most = Counter(words).most_common(5)
            self.assertEqual([word for word, _ in most[:4]], ["...", *frequent])
            self.assertGreater(most[3][1], most[4][1])
            self.assertEqual(sum(map(size, words)), length)

    def test_short_texts_have_no_room(self):
        names = ruler.Names(self.rng, False)
        self.assertEqual(ruler.common_words(names, ["bababa"], 20, size), [])
        self.assertEqual(ruler.frequent_words(names, ["aaaaaa", "bbbbbb", "cccccc"], 40, size), [])

    def test_training_and_evaluation_share_no_names(self):
        for evaluation in (False, True):
            names = ruler.Names(self.rng, evaluation)
            drawn = [names.list_word() for _ in range(50)] + [names.variable() for _ in range(50)]
            self.assertEqual({reserved(name) for name in drawn}, {evaluation})

    def test_score_counts_whole_words_of_any_case(self):
        self.assertEqual(ruler.score(["ABCDE", "12"], "abcde, 123"), 0.5)


if __name__ == "__main__":
    unittest.main()
