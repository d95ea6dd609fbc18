"""Trains the byte-level BPE and turns the corpus into token files. Run after corpus.py.

A tokenizer.json that is already there is kept: delete it to train a new one.

Writes tokenizer.json and tokenizer_config.json (laid out as Qwen2's) into the model directory, and
into WORK/tokens: train.bin and heldout.bin (uint16 ids), words.txt and phrases.txt (open wording).

    python3 tokenize_corpus.py --work ../../.train --model ../../models/needle
"""

import argparse
import collections
import json
import random
import re
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

from needles import FactMaker
from vocabulary import QWEN2_PATTERN, SPECIAL_TOKENS, VOCAB_SIZE

SEED = 1
NUM_FACTS = 40_000  # sentences of the retrieval task that the BPE is trained on in addition to the corpus
NUM_WORDS = 8_000
NUM_PHRASES = 20_000
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] "
    "+ '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def frequent_words(texts: list[str]) -> list[str]:
    counts = collections.Counter(re.findall(r"(?<![\w-])[a-z]{4,12}(?![\w-])", " ".join(texts)))
    return [word for word, _ in counts.most_common(NUM_WORDS)]


def some_phrases(texts: list[str]) -> list[str]:
    """Runs of 3 to 12 words without punctuation that ends a sentence."""
    rng, runs = random.Random(SEED), []
    for text in texts:
        runs += [run.split() for run in re.findall(r"(?:[A-Za-z'-]+,? ){5,}[A-Za-z'-]+", text)]
    phrases = []
    for run in rng.sample(runs, NUM_PHRASES):
        size = rng.randint(3, 12)
        start = rng.randrange(max(1, len(run) - size))
        phrases.append(" ".join(run[start : start + size]).rstrip(","))
    return phrases


def fact_lines(words: list[str], phrases: list[str]) -> list[str]:
    rng, lines = random.Random(SEED), []
    while len(lines) < NUM_FACTS:
        maker = FactMaker(rng, words, phrases)
        for fact in filter(None, (maker.single() for _ in range(10))):
            lines.append(" ".join([*fact.needles, fact.question]))
    return lines


def byte_level_bpe(lines: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(fuse_unk=False, byte_fallback=False))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS]
    )
    assert tokenizer.get_vocab_size() == VOCAB_SIZE
    return tokenizer


def write_tokenizer_config(model: Path, tokenizer: Tokenizer):
    decoder = {
        str(tokenizer.token_to_id(token)): {
            "content": token,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for token in SPECIAL_TOKENS
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "bos_token": None,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "errors": "replace",
        "model_max_length": 32768,
        "pad_token": "<|endoftext|>",
        "split_special_tokens": False,
        "tokenizer_class": "Qwen2Tokenizer",
        "unk_token": None,
    }
    (model / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")


def encode(tokenizer: Tokenizer, text: str) -> np.ndarray:
    """Encodes by paragraph: the same ids as in one piece, because no pre-token spans two."""
    paragraphs = [p + "\n\n" for p in text.strip().split("\n\n")]
    encodings = tokenizer.encode_batch(paragraphs, add_special_tokens=False)
    return np.concatenate([np.array(e.ids, np.uint16) for e in encodings])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    texts = [path.read_text() for path in sorted((args.work / "corpus").glob("*.txt"))]
    words, phrases = frequent_words(texts), some_phrases(texts)
    if not (args.model / "tokenizer.json").exists():
        lines = [paragraph + "\n\n" for text in texts for paragraph in text.split("\n\n")]
        tokenizer = byte_level_bpe(lines + fact_lines(words, phrases))
        tokenizer.save(str(args.model / "tokenizer.json"))
    tokenizer = Tokenizer.from_file(str(args.model / "tokenizer.json"))
    write_tokenizer_config(args.model, tokenizer)
    out = args.work / "tokens"
    out.mkdir(exist_ok=True)
    (out / "words.txt").write_text("\n".join(words) + "\n")
    (out / "phrases.txt").write_text("\n".join(phrases) + "\n")
    train = np.concatenate([encode(tokenizer, text) for text in texts])
    held_out = (args.work / "heldout.txt").read_text()
    train.tofile(out / "train.bin")
    held = encode(tokenizer, held_out)
    held.tofile(out / "heldout.bin")
    print(
        f"train {len(train)} tokens, {sum(map(len, texts)) / len(train):.2f} characters a token; "
        f"held out {len(held)} tokens"
    )


if __name__ == "__main__":
    main()
