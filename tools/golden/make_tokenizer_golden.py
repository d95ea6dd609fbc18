#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/: small tokenizers of every supported family with the ids that the
`tokenizers` package gives, and conversations as jinja2 renders the families' chat templates.

    python3 -m venv VENV && VENV/bin/pip install tokenizers jinja2
    VENV/bin/python tools/golden/make_tokenizer_golden.py

The vocabularies are trained here (about 2,000 tokens each) on Python's own documentation
(pydoc_data.topics) and the sentences of tokenizer_strings.py; the real ones are not ours to ship.
"""
import json
import pathlib
import platform
import random
import unicodedata

from pydoc_data import topics
import jinja2
import jinja2.sandbox
import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

import tokenizer_strings as strings

ROOT = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/tokenizer"
SEED = 20240726
NUM_RANDOM = 1000

CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL
QWEN35 = (CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          + r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False,
                                    use_regex=use_regex)


def split(regex):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(regex), behavior="isolated", invert=False), byte_level(False)])


def plain(content, special):
    return AddedToken(content, special=special, normalized=False)


CHATML = [plain(t, True) for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
THINK = [plain("<think>", False), plain("</think>", False)]
LLAMA = [plain(t, True) for t in ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>",
                                  "<|end_header_id|>", "<|eot_id|>")]
# Every flag that an added token can have, overlapping contents, and contents that are not ASCII.
ODD = CHATML + [
    AddedToken("[WORD]", single_word=True, normalized=False),
    AddedToken("abc", single_word=True, normalized=False),
    AddedToken("[L]", lstrip=True, normalized=False),
    AddedToken("[R]", rstrip=True, special=True, normalized=False),
    AddedToken("[LR]", lstrip=True, rstrip=True, normalized=True),
    AddedToken("[NORME\u0301]", normalized=True),
    AddedToken("[SP ACE]", normalized=True),
    AddedToken("\u00fc\u00fc", normalized=False),
    AddedToken("\u4e2d\u6587", normalized=True, special=True),
    AddedToken("<|im_", normalized=False),
]
FAMILIES = {
    "gpt2": (None, byte_level(True), [AddedToken("<|endoftext|>", special=True, normalized=True)],
             None),
    "qwen": (normalizers.NFC(), split(QWEN2), CHATML + THINK, None),
    "qwen35": (normalizers.NFC(), split(QWEN35), CHATML + THINK, None),
    "llama3": (None, split(LLAMA3), LLAMA, "<|begin_of_text|>"),
    "smollm2": (None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               byte_level(True)]), CHATML, None),
    "odd": (normalizers.Sequence([normalizers.NFC()]),
            pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), split(QWEN2)]),
            ODD, None),
}


def training_text():
    for name in sorted(topics.topics):
        yield topics.topics[name][:6000]
    for _ in range(40):
        yield from strings.SENTENCES


def train(normalizer, pre_tokenizer, added, bos):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2000, show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.add_special_tokens([t for t in added if t.special])
    tokenizer.add_tokens([t for t in added if not t.special])
    post = processors.ByteLevel(trim_offsets=False)
    if bos:
        template = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
            special_tokens=[(bos, tokenizer.token_to_id(bos))])
        post = processors.Sequence([post, template])
    tokenizer.post_processor = post
    return tokenizer


def save(name, tokenizer, directory):
    """Writes tokenizer.json; merges in the old form ("a b") for two families, ignore_merges for
    one, as their published files have it. Returns the tokenizer read back."""
    document = json.loads(tokenizer.to_str())
    if name in ("qwen", "gpt2"):
        document["model"]["merges"] = [" ".join(m) for m in document["model"]["merges"]]
    if name == "llama3":
        document["model"]["ignore_merges"] = True
        # Tokens that no merge produces any more, so that only a whole piece can give them.
        whole_only = ("\u0120the", "ing", "\u0120is")
        merges = document["model"]["merges"]
        document["model"]["merges"] = [m for m in merges if "".join(m) not in whole_only]
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    return Tokenizer.from_str(text)


def run_lengths(ids):
    """'5 9*300 7' for [5] + [9] * 300 + [7]."""
    out = []
    for i in ids:
        if out and out[-1][0] == i:
            out[-1][1] += 1
        else:
            out.append([i, 1])
    return " ".join(f"{i}*{n}" if n > 1 else str(i) for i, n in out)


def expected(tokenizer, texts):
    """Ids with special tokens parsed, and where that differs, without."""
    parsed, literal = [], {}
    for index, text in enumerate(texts):
        tokenizer.encode_special_tokens = False
        parsed.append(run_lengths(tokenizer.encode(text).ids))
        tokenizer.encode_special_tokens = True
        other = run_lengths(tokenizer.encode(text).ids)
        if other != parsed[-1]:
            literal[str(index)] = other
    tokenizer.encode_special_tokens = False
    return parsed, literal


def decodings(tokenizer, rng):
    """Random ids, so that characters are split and special tokens are anywhere."""
    out = []
    size = tokenizer.get_vocab_size()
    for _ in range(60):
        ids = [rng.randrange(size) if rng.random() < 0.6 else rng.randrange(256)
               for _ in range(rng.randint(1, 12))]
        out.append([ids, tokenizer.decode(ids, skip_special_tokens=True),
                    tokenizer.decode(ids, skip_special_tokens=False)])
    return out


def make_tokenizers(provenance):
    texts = strings.fixed_strings() + strings.seeded(SEED, NUM_RANDOM)
    texts = list(dict.fromkeys(texts))
    runs = strings.long_runs()
    whole = texts + [unit * count for unit, count in runs]
    document = {"provenance": provenance, "strings": texts, "runs": runs}
    (ROOT / "strings.json").write_text(dump(document), encoding="utf-8")
    print(len(whole), "strings")
    for name, (normalizer, pre_tokenizer, added, bos) in FAMILIES.items():
        tokenizer = save(name, train(normalizer, pre_tokenizer, added, bos), ROOT / name)
        parsed, literal = expected(tokenizer, whole)
        document = {"provenance": provenance, "vocab_size": max(tokenizer.get_vocab().values()) + 1,
                    "ids": parsed, "ids_without_special": literal,
                    "decodings": decodings(tokenizer, random.Random(SEED))}
        (ROOT / name / "expected.json").write_text(dump(document), encoding="utf-8")


# The bytes that SmolLM2's vocabulary lacks, those that UTF-8 never has, and some others.
SMOLLM2_GAPS = [0x04, 0x06, 0x13, 0x14, 0x16, 0x1d, 0xc0, 0xc1, 0xf1, 0xf2, *range(0xf5, 0x100)]
NO_UTF8 = [0xc0, 0xc1, *range(0xf5, 0x100)]
GAPS = [
    ("SmolLM2", "smollm2", SMOLLM2_GAPS, {}),
    ("no UTF-8", "gpt2", NO_UTF8, {}),
    ("no CR", "llama3", [0x0d], {}),
    ("few bytes", "qwen", [b for b in range(256) if b % 3 == 0], {}),
    ("unknown token", "gpt2", list(b"etx \n\xcc\xa9"), {"unk_token": "a"}),
    ("fused unknown token", "gpt2", list(b"etx \n\xcc\xa9"), {"unk_token": "a", "fuse_unk": True}),
]
GAP_TEXTS = [
    "\x04", "a\x04b", "th\x04e", "\x13\x14 hello", "\U000460b1", "x \U000460b1 y", "\r", "a\r\nb",
    "one\x04two \x06\x06three", " \x1d ", "\x16" * 300, "a" + "\x04" * 300 + "b", "e" * 300,
    "tea" * 100, "the text", "hello there \x04\x04 again", "\u00e9t\u00e9", "\U0010ffff", "",
]


def byte_character(byte):
    """The character of GPT-2's alphabet for a byte."""
    def visible(b):
        return 33 <= b < 127 or b > 160 and b != 173
    return chr(byte) if visible(byte) else chr(256 + sum(not visible(b) for b in range(byte)))


def make_missing_bytes(provenance):
    """Vocabularies with bytes erased, and the merges that need them."""
    random_texts = strings.seeded(SEED + 1, 400)
    vocabularies = []
    for name, family, missing, settings in GAPS:
        document = json.loads((ROOT / family / "tokenizer.json").read_text(encoding="utf-8"))
        erased = [byte_character(byte) for byte in missing]
        model = document["model"]
        pairs = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
        erased_merges = [i for i, pair in enumerate(pairs) if set(pair) & set(erased)]
        model["merges"] = [pair for pair in pairs if not set(pair) & set(erased)]
        model["vocab"] = {t: i for t, i in model["vocab"].items() if t not in erased}
        model.update(settings)
        tokenizer = Tokenizer.from_str(json.dumps(document))
        tokenizer.encode_special_tokens = True
        texts = [t for t in random_texts if set(t.encode()) & set(missing)][:40] + GAP_TEXTS
        vocabularies.append({
            "name": name, "family": family, "model": settings, "erased": erased,
            "erased_merges": erased_merges,
            "cases": [[t, run_lengths(tokenizer.encode(t).ids)]
                      for t in texts + random_texts[:40]]})
    document = {"provenance": provenance, "vocabularies": vocabularies}
    (ROOT / "missing_bytes.json").write_text(dump(document), encoding="utf-8")


CONVERSATIONS = [
    [("user", "Hello")],
    [("system", "  Be brief. \n"), ("user", " What is 2+2?\n")],
    [("user", "Hi"), ("assistant", "Hello! <|im_end|>"), ("user", "Bye \u3000")],
    [("system", ""), ("user", ""), ("assistant", ""), ("user", "\n\nx")],
    [("user", "a"), ("system", "Now in French."), ("user", "b")],
    [("user", "q1"), ("assistant", "<think>\nhm\n</think>\n\nanswer 1"), ("user", "q2")],
    [("user", "q1"), ("assistant", "<think>\n\nhm\n\n</think>\n\n\nanswer 1")],
    [("user", "q1"), ("assistant", "no thought"), ("assistant", "second")],
    [("user", "q1"), ("assistant", "x</think>y</think>z"),
     ("assistant", "<think>a<think>b</think>")],
    [("user", "<tool_response>1</tool_response>"), ("assistant", "<think>t</think>ok")],
    [("system", "s"), ("assistant", "starts"), ("user", "u"),
     ("assistant", "\n<think>\nr\n</think>\nc")],
    [("user", "\x1c\u2003tabs\t\x1f"), ("assistant", "\u00a0x\u0085")],
]
# Those that take all of these conversations; make_chat_golden.py and make_jinja_golden.py use all.
TEMPLATES = ["chatml", "llama3.1", "llama3.2", "llama3", "qwen2.5", "qwen2", "qwen3-first",
             "qwen3-instruct", "qwen3-thinking", "qwen3", "smollm2"]
BOS = {"llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>",
       "llama3.2": "<|begin_of_text|>"}
OPTIONS = {"qwen3": [{"enable_thinking": False}], "qwen3-first": [{"enable_thinking": False}],
           "llama3.1": [{"date_string": "01 Feb 2025"}],
           "llama3.2": [{"date_string": "01 Feb 2025"}]}


def refuse(message):
    raise ValueError(message)


def make_chats(provenance):
    # The environment of transformers' apply_chat_template, as far as these templates need it.
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = refuse
    cases = []
    for name in TEMPLATES:
        path = ROOT / f"templates/{name}.jinja"
        template = environment.from_string(path.read_text(encoding="utf-8"))
        bos = BOS.get(path.stem, "")
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            for prompt in (True, False):
                for options in [{}] + OPTIONS.get(path.stem, []):
                    text = template.render(messages=messages, add_generation_prompt=prompt,
                                           bos_token=bos, **options)
                    cases.append({"template": path.stem, "messages": conversation, "prompt": prompt,
                                  "options": options, "text": text})
    document = {"provenance": provenance, "bos": BOS, "cases": cases}
    (ROOT / "chats.json").write_text(dump(document), encoding="utf-8")
    print(len(cases), "conversations")


def dump(document):
    """JSON with one line per member, ASCII only: small, with readable diffs."""
    lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
             for key, value in document.items()]
    return "{" + ",\n".join(lines) + "}\n"


def main():
    provenance = {
        "made_by": "tools/golden/make_tokenizer_golden.py", "tokenizers": tokenizers.__version__,
        "jinja2": jinja2.__version__, "python": platform.python_version(),
        "unicodedata": unicodedata.unidata_version, "seed": SEED,
        "vocabularies": "trained on pydoc_data.topics (PSF licence) and own sentences"}
    make_tokenizers(provenance)
    make_missing_bytes(provenance)
    make_chats(provenance)


if __name__ == "__main__":
    main()
