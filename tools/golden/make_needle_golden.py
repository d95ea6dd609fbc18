#!/usr/bin/env python3
"""Makes the results of transformers for the bundled model, for tests/engine/needle_golden_test.cc.

A needle in a haystack of 1,024 and of 8,192 tokens, asked for in the model's chat format. The
oracle runs the model's bf16 weights in float32. Written: golden.safetensors (per prompt the token
ids and the oracle's logits at NUM_POSITIONS positions) and golden.json (the recipe of each prompt,
the greedy answer with the margin of each choice, the error of transformers itself in bf16,
versions, and the hash of the weights). Run it again when the weights change.

Usage: python3 tools/golden/make_needle_golden.py [--model models/needle] [--out DIR]
Needs: torch, transformers, safetensors (versions as in golden.json).
"""

import argparse
import hashlib
import json
import pathlib
import platform
import random
import re

import torch
import transformers
from safetensors.torch import save_file

ROOT = pathlib.Path(__file__).parents[2]
# name: tokens, share of the text before the needle, seed of key, value and place in the haystack
PROMPTS = {"1k": (1024, 0.5, 1), "8k": (8192, 0.3, 2)}
NUM_POSITIONS = 16
GREEDY_TOKENS = 32


class PromptMaker:
    """Builds prompts of an exact number of tokens."""

    def __init__(self, model_dir):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
        templates = json.loads((model_dir / "needle_templates.json").read_text())
        self.kind = next(kind for kind in templates["kinds"] if kind["name"] == "number")
        self.prompt = templates["prompt"]
        text = " ".join((model_dir / "haystack.txt").read_text().split())
        self.sentences = re.split(r"(?<=[a-z][.!?]) (?=[A-Z])", text)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False)

    def make(self, num_tokens, depth, seed):
        """Token ids and recipe: whole sentences from `first_sentence` on, the last one cut."""
        rng = random.Random(seed)
        key = rng.choice(self.kind["keys"])
        value = str(rng.randrange(10 ** (self.kind["value_digits"] - 1),
                                  10 ** self.kind["value_digits"]))
        first = rng.randrange(len(self.sentences))
        needle = self.encode(" " + self.kind["needle"].format(key=key, value=value))
        message = self.prompt.format(haystack="{haystack}",
                                     question=self.kind["question"].format(key=key))
        chat = self.tokenizer.apply_chat_template([{"role": "user", "content": message}],
                                                  tokenize=False, add_generation_prompt=True)
        before, after = (self.encode(part) for part in chat.split("{haystack}"))
        room = num_tokens - len(before) - len(after) - len(needle)
        text, cuts, i = [], [0], first
        while len(text) < room:
            text += self.encode((" " if text else "") + self.sentences[i % len(self.sentences)])
            cuts.append(len(text))
            i += 1
        at = min(cuts, key=lambda cut: abs(cut - depth * room))
        text = text[:room]
        ids = before + text[:at] + needle + text[at:] + after
        recipe = dict(tokens=num_tokens, depth=depth, seed=seed, first_sentence=first,
                      needle_at=len(before) + at, key=key, value=value)
        return torch.tensor([ids], dtype=torch.int32), recipe


def greedy(oracle, ids):
    """Greedy continuation to the end token, and the margins between first and second choice."""
    output = oracle.generate(ids.long(), attention_mask=torch.ones_like(ids), do_sample=False,
                             max_new_tokens=GREEDY_TOKENS, output_logits=True,
                             return_dict_in_generate=True)
    margins = []
    for logits in output.logits:
        top = torch.log_softmax(logits[0].float(), dim=-1).topk(2).values
        margins.append(round(float(top[0] - top[1]), 4))
    return output.sequences[0, ids.shape[1]:].tolist(), margins


def load(model_dir, dtype):
    return transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype).eval()


@torch.inference_mode()
def golden_of_prompt(maker, oracle, bf16, name):
    ids, recipe = maker.make(*PROMPTS[name])
    assert ids.shape[1] == PROMPTS[name][0]
    positions = torch.linspace(0, ids.shape[1] - 1, NUM_POSITIONS).round().long()
    logits = oracle(ids.long(), logits_to_keep=positions).logits[0]
    rounded = bf16(ids.long(), logits_to_keep=positions).logits[0].float()
    tokens, margins = greedy(oracle, ids)
    facts = dict(name=name, recipe=recipe, positions=positions.tolist(), greedy=tokens,
                 margins=margins, answer=maker.tokenizer.decode(tokens),
                 # The error of transformers in bf16: the bound for Sluice's error.
                 bf16_nmse=float((rounded - logits).square().sum() / logits.square().sum()))
    return {f"{name}.token_ids": ids[0], f"{name}.logits": logits.contiguous()}, facts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/needle")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/needle")
    args = parser.parse_args()
    maker = PromptMaker(args.model)
    oracle, bf16 = load(args.model, torch.float32), load(args.model, torch.bfloat16)
    tensors, prompts = {}, []
    for name in PROMPTS:
        new_tensors, facts = golden_of_prompt(maker, oracle, bf16, name)
        tensors.update(new_tensors)
        prompts.append(facts)
        print(f"{name}: {facts['answer']!r}, bf16 NMSE {facts['bf16_nmse']:.2e}")
    args.out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, args.out / "golden.safetensors")
    (args.out / "golden.safetensors").chmod(0o644)
    weights = (args.model / "model.safetensors").read_bytes()
    (args.out / "golden.json").write_text(json.dumps({
        "made_by": "tools/golden/make_needle_golden.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "model_sha256": hashlib.sha256(weights).hexdigest(),
        "prompts": prompts,
    }, indent=1) + "\n")


if __name__ == "__main__":
    main()
