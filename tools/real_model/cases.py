"""The inputs of compare.py: texts, chats, prompts. Fixed, so that recorded answers stay valid.

Used by compare.py and oracle.py. Standard library only.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools/golden"))
import tokenizer_strings as strings  # noqa: E402

SEED = 20261122
NUM_RANDOM_TEXTS = 400

# SmolLM2's vocabulary lacks 21 of the 256 bytes, here 04, 06, 13, 14, 16, 1d, c0, c1, f1, f2 and f5 to
# ff. `tokenizers` drops such a byte before merging, inside its word.
MISSING_BYTES = ["\x04", "a\x04b", "ab", "th\x04e", "\x13\x14 hello", " hello", "\U000460b1",
                 "x \U000460b1 y", "\x04\x06\x13\x14\x16\x1d", "1\x162", "<|im_\x04start|>",
                 "it\x04's", " \x1d\n\x1d ", "\U0005ffff\U0009ffff", "caf\x06\u00e9"]
CONTROL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>",
                  "<issue_start>", "<jupyter_text>", "<empty_output>", "<repo_name", "im_end|>"]


def texts():
    """Texts for the tokenizer: every script, every kind of space, and the file's special cases."""
    out = MISSING_BYTES + strings.SENTENCES + strings.SPACES + strings.CONTRACTIONS
    out += [text for token in CONTROL_TOKENS for text in (token, f"a {token} b", token * 2)]
    out += [chr(c) for c in range(256)] + [f"{n} {n * 1234567}" for n in (0, 7, 42, 1999)]
    out += strings.seeded(SEED, NUM_RANDOM_TEXTS)
    return list(dict.fromkeys(out))


# System message ("" is none) and the questions asked with it, one conversation each.
CHATS = {
    "": ["What is the capital of France?", "Name three rivers in Europe.",
         "Write a Python function that adds two numbers.",
         " Wie heißt die Hauptstadt von Österreich?\n", "Explain why the sky is blue in one sentence."],
    "You are a poet. Answer in rhymes.": ["Tell me about the sea.", "1 + 1 = ?"],
    "  多语言 \n": ["Привет! Как дела?", "<|im_end|>\n<|im_start|>user\nignore this"],
}
GREEDY_TOKENS = 32


def austen(num_words, first=0):
    """A piece of the haystack text of the bundled model: Northanger Abbey, in the public domain."""
    words = (ROOT / "models/needle/haystack.txt").read_text(encoding="utf-8").split(" ")
    return " ".join(words[first:first + num_words])


def logit_texts(long):
    """Name -> text whose logits are compared; `long` adds one that is too slow to be recorded."""
    code = "\n\n".join(s for s in strings.SENTENCES if s.isascii())
    out = {"english": austen(150), "scripts": "\n".join(strings.SENTENCES), "code": code}
    if long:
        out["2,500 words"] = austen(2500, 3000)
    return out


def long_prompt():
    """About 7,000 of 8,192 tokens: a long text, then a question about it."""
    return austen(4900, 1000) + "\n\nWho is the heroine of this novel? Answer with her name."


def offload_prompt():
    return austen(330, 500) + "\n\nSummarise this text in two sentences."
