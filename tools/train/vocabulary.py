"""Shared by everything that reads or writes tokens: pattern, special tokens, a fast encoder."""

from pathlib import Path

import regex
from tokenizers import Tokenizer

QWEN2_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 4096
MAX_PIECES = 500_000  # of the table below; made-up words would fill the memory


class CachedEncoder:
    """Encodes short strings with a table of pre-tokens, much faster than the library there.

    The ids are those of the tokenizer as long as the string starts and ends at pre-token borders.
    """

    def __init__(self, model: Path):
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.pattern = regex.compile(QWEN2_PATTERN)
        self.pieces: dict[str, list[int]] = {}
        self.end_of_text, self.start, self.end = (
            self.tokenizer.token_to_id(t) for t in SPECIAL_TOKENS
        )

    def __call__(self, text: str) -> list[int]:
        ids = []
        for piece in self.pattern.findall(text):
            known = self.pieces.get(piece)
            if known is None:
                known = self.tokenizer.encode(piece, add_special_tokens=False).ids
                if len(self.pieces) >= MAX_PIECES:
                    self.pieces.clear()
                self.pieces[piece] = known
            ids += known
        return ids
