"""Runs the program `sluice` (and encode_lines) for compare.py and reads their output.

Standard library only, so that CI can compare with recorded values without PyTorch.
"""

import json
import mmap
import struct
import subprocess
import tempfile


class Failure(Exception):
    """The comparison could not be made. The text is for the user."""


def run(words, text=None):
    done = subprocess.run([str(word) for word in words], input=text, capture_output=True, text=True,
                          encoding="utf-8", check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failure(f"{words[0]} {words[1]} ended with {done.returncode}: {last}")
    return done.stdout


def encode(program, model, texts, parse_special):
    """Ids of each text, by tests/tokenizer/encode_lines.cc."""
    lines = run([program, model] + ["--special"] * parse_special,
                "".join(json.dumps(text) + "\n" for text in texts)).split("\n")[:-1]
    if len(lines) != len(texts):
        raise Failure(f"{program} gave {len(lines)} answers to {len(texts)} texts")
    return [[int(i) for i in line.split("\t", 1)[0].split()] for line in lines]


# By default an engine takes most of the memory, and a debug build also fills it.
MEMORY = ["--kv-cache-bytes", "512M"]


# By default an engine takes most of the memory, and a debug build also fills it.
RESIDENT_LIMIT = ["--kv-offload", "off", "--kv-cache-bytes", "512M"]


def engine_options(options):
    return [*options, *([] if "--kv-offload" in options else RESIDENT_LIMIT)]


class Sluice:
    """One program and one model; every call starts the program again."""

    def __init__(self, program, model, extra):
        self.program, self.model, self.extra = program, model, extra

    def generate(self, prompts, *options, files=()):
        """Greedy answers to `prompts`, or to the one prompt in a file: the lines of `run --json`."""
        words = [self.program, "run", "--model", self.model, "--json", "--temperature", "0",
                 *engine_options(options), *self.extra]
        words += [word for file in files for word in ("--file", file)]
        return [json.loads(line) for line in run(words + ["--", *prompts]).splitlines()]

    def trace(self, token_ids, *options):
        """Logits of every position, as a Logits."""
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as out:
            run([self.program, "trace", "--model", self.model, "--out", out.name, "--max-model-len",
                 len(token_ids) + 1, "--tokens", ",".join(map(str, token_ids)), *engine_options(options),
                 *self.extra])
            return Logits(out.name)


class Logits:
    """The tensor "logits", f32 [tokens, vocab], of a safetensors file (which may be gone by now)."""

    def __init__(self, path):
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        (header_bytes,) = struct.unpack("<Q", data[:8])
        entry = json.loads(data[8:8 + header_bytes])["logits"]
        if entry["dtype"] != "F32":
            raise Failure(f"the traced logits are {entry['dtype']}, not F32")
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        self.num_tokens, self.vocab_size = entry["shape"]
        self.bytes = memoryview(data)[begin:end]

    def row(self, pos):
        row_bytes = 4 * self.vocab_size
        return self.bytes[pos * row_bytes:(pos + 1) * row_bytes].cast("f")
