"""Measures retrieval with transformers: greedy answers over length x depth.

    python3 evaluate.py --model ../../models/needle --out ../../.train/evaluation

An answer to a kind of the model's templates must be exact; for the kinds of ruler.py the share of
the values in the answer counts, as in `sluice-eval needle`. Writes results.json (every cell), table.md
(the model card's tables) and golden_needles.json (a few dozen prompts of 1K to 4K tokens with
transformers' own answers). Several processes share the GPU, because decoding a small model is bound
by launches.
"""

import argparse
import collections
import json
import multiprocessing
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import ruler
from haystack import ANSWER_ROOM, Item, PromptMaker

SEED = 77
LENGTHS = [1024, 2048, 4096, 8192, 16384, 32768]
DEPTHS = [0, 25, 50, 75, 100]
# name: kind, haystack, keys hidden, values of the asked key. The kinds of ruler.py have these numbers
# themselves, and a text of words has no depths: all its cells are alike.
TESTS = {
    "single": ("number", "natural", 1, 1),
    "single, repeated": ("number", "repeated", 1, 1),
    "words": ("city", "natural", 1, 1),
    "words, repeated": ("city", "repeated", 1, 1),
    "8 keys": ("number", "natural", 8, 1),
    "8 keys, repeated": ("number", "repeated", 8, 1),
    "3 values": ("values", "natural", 1, 3),
    "3 values, repeated": ("values", "repeated", 1, 3),
    **{kind: (kind,) for kind in ruler.KINDS},
}


class Answerer:
    """transformers with the model on the best device there is."""

    def __init__(self, model: Path):
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=dtype).to(self.device).eval()

    def prompt_ids(self, item: Item) -> list[int]:
        text = self.tokenizer.apply_chat_template(
            item.messages, tokenize=False, add_generation_prompt=True
        )
        return self.tokenizer.encode(text, add_special_tokens=False)

    @torch.inference_mode()
    def answers(self, items: list[Item]) -> list[str]:
        """Greedy answers; prompts of equal length go together, so nothing is padded."""
        groups, found = collections.defaultdict(list), [""] * len(items)
        for index, item in enumerate(items):
            ids = self.prompt_ids(item)
            assert len(ids) + ANSWER_ROOM <= item.length, (len(ids), item.length)
            groups[len(ids)].append((index, ids))
        for group in groups.values():
            ids = torch.tensor([ids for _, ids in group], device=self.device)
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=ANSWER_ROOM,
            )
            for (index, _), row in zip(group, output):
                found[index] = self.tokenizer.decode(row[ids.shape[1] :], skip_special_tokens=True)
        return found


def make_item(maker: PromptMaker, test: str, length: int, depth: int) -> Item:
    kind, *rest = TESTS[test]
    if kind in ruler.KINDS:
        return maker.ruler_item(kind, length, depth)
    haystack, num_keys, num_values = rest
    return maker.item(kind, haystack, length, depth, num_keys, num_values)


def evaluate_cells(job) -> list[dict]:
    """One process: its share of the cells."""
    model, cells, per_cell = job
    answerer, results = Answerer(model), []
    for number, (test, length, depth) in cells:
        maker = PromptMaker(model, answerer.tokenizer, SEED * 100_000 + number)
        items = [make_item(maker, test, length, depth) for _ in range(per_cell)]
        answers = answerer.answers(items)
        scores = [item.score(answer) for item, answer in zip(items, answers)]
        results.append(
            {
                "test": test,
                "length": length,
                "depth": depth,
                "asked": per_cell,
                "score": sum(scores),
                "wrong": [
                    (item.expected, answer)
                    for item, answer, score in zip(items, answers, scores)
                    if score < 1
                ],
            }
        )
    return results


def tables(results: list[dict], lengths: list[int]) -> str:
    """Markdown: one table over all tests, then length x depth for each."""

    def share(rows):
        return f"{100 * sum(r['score'] for r in rows) / sum(r['asked'] for r in rows):.1f}"

    head = [
        "| test | " + " | ".join(map(str, lengths)) + " | all |",
        "|---|" + "---:|" * (len(lengths) + 1),
    ]
    tests = list(dict.fromkeys(r["test"] for r in results))
    for test in tests:
        rows = [r for r in results if r["test"] == test]
        cells = [share([r for r in rows if r["length"] == length]) for length in lengths]
        head.append(f"| {test} | " + " | ".join(cells) + f" | {share(rows)} |")
    parts = ["\n".join(head)]
    for test in tests:
        if test in ruler.WORD_KINDS:
            continue
        lines = [
            f"**{test}**\n",
            "| depth | " + " | ".join(map(str, lengths)) + " |",
            "|---|" + "---:|" * len(lengths),
        ]
        for depth in DEPTHS:
            cells = [
                share(
                    [r for r in results if (r["test"], r["length"], r["depth"]) == (test, n, depth)]
                )
                for n in lengths
            ]
            lines.append(f"| {depth} % | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def golden(model: Path) -> dict:
    """A few dozen prompts with the answers of transformers, full text, for tests of the engine."""
    answerer = Answerer(model)
    maker = PromptMaker(model, answerer.tokenizer, SEED)
    items = [
        maker.item(kind, "natural", length, depth, num_keys, num_values)
        for length in (1024, 2048, 4096)
        for depth in (0, 50, 100)
        for kind, num_keys, num_values in (("number", 4, 1), ("city", 1, 1), ("values", 1, 2))
    ]
    answers = answerer.answers(items)
    return {
        "made_by": "tools/train/evaluate.py",
        "torch": torch.__version__,
        "seed": SEED,
        "items": [
            {
                "kind": item.kind,
                "depth": item.depth,
                "prompt": item.messages[0]["content"],
                "prompt_tokens": len(answerer.prompt_ids(item)),
                "expected": item.expected,
                "transformers": answer,
            }
            for item, answer in zip(items, answers)
        ],
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--per-cell", type=int, default=20)
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tests", nargs="+", default=list(TESTS))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.time()
    cells = [
        (test, length, depth) for length in args.lengths for depth in DEPTHS for test in args.tests
    ]
    cells = sorted(enumerate(cells), key=lambda cell: -cell[1][1])
    jobs = [(args.model, cells[i :: args.workers], args.per_cell) for i in range(args.workers)]
    with multiprocessing.get_context("spawn").Pool(args.workers) as pool:
        results = sum(pool.map(evaluate_cells, jobs, chunksize=1), [])
    order = {test: number for number, test in enumerate(TESTS)}
    results.sort(key=lambda r: (order[r["test"]], r["length"], r["depth"]))
    (args.out / "results.json").write_text(json.dumps(results, indent=0) + "\n")
    text = tables(results, args.lengths)
    (args.out / "table.md").write_text(text)
    golden_text = json.dumps(golden(args.model), indent=0)
    (args.out / "golden_needles.json").write_text(golden_text + "\n")
    print(text)
    print(f"{sum(r['asked'] for r in results)} prompts in {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
