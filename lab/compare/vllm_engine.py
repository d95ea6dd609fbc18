"""vLLM, or Sluice's package or nano-vllm with its interface, on the work of workload.py. Prints one JSON object.

Run by compare.py where the package is installed. nano-vllm reads weights and a tokenizer from the
model's folder, the others make dummy weights of their own. All options of an engine are its
defaults. Times are those of `generate`, and what every call costs is subtracted:

- prefill: one token after the prompt, less one token after a prompt of 16;
- decode: DECODE_TOKENS + 1 tokens, less one token, after the same prompt, which the prefix cache
  holds in both runs. The decode steps are a small part of a call that also computes a long prompt.

    python3 lab/compare/vllm_engine.py vllm|sluice|nanovllm DIR [--prefill-lengths LIST] [--decode-lengths LIST]
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from pathlib import Path

import workload

REPEATS = 3


class Engine:
    def __init__(self, package, directory, max_model_len):
        self.is_nano = package == "nanovllm"
        self.module = importlib.import_module(package)
        dummy = {} if self.is_nano else {"load_format": "dummy", "skip_tokenizer_init": True}
        self.llm = self.module.LLM(directory, max_model_len=max_model_len, **dummy)
        self.vocab_size = min(10000, json.loads((Path(directory) / "config.json").read_text())["vocab_size"])
        version = getattr(self.module, "__version__", "")
        self.name = f"{package} {version}".strip()

    def seconds(self, lengths, outputs, temperature, seed):
        """Of one call of generate, with random prompts of these lengths."""
        prompts = [workload.token_ids(n, self.vocab_size, seed + i) for i, n in enumerate(lengths)]
        if not self.is_nano:
            prompts = [{"prompt_token_ids": ids} for ids in prompts]
        params = [self.module.SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=n) for n in outputs]
        start = time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def one(self, length, output, seed):
        # nano-vllm refuses 0.
        return self.seconds([length], [output], 0.6 if self.is_nano else 0.0, seed)


def prefill_rate(engine, length):
    """Prompts differ, so that the prefix cache has none of them."""
    engine.one(length, 1, seed=length)
    seeds = range(length + 1, length + 1 + REPEATS)
    call = statistics.median(engine.one(16, 1, seed) for seed in seeds)
    return length / (statistics.median(engine.one(length, 1, seed) for seed in seeds) - call)


def decode_rate(engine, length):
    def call(output):
        return statistics.median(engine.one(length, output, seed=length) for _ in range(REPEATS))

    engine.one(length, workload.DECODE_TOKENS + 1, seed=length)
    return workload.DECODE_TOKENS / (call(workload.DECODE_TOKENS + 1) - call(1))


def throughput(engine):
    requests = workload.requests()
    prompts, outputs = [n for n, _ in requests], [n for _, n in requests]
    first, second = (engine.seconds(prompts, outputs, 0.6, seed) for seed in (1000, 2000))
    return sum(outputs) / min(first, second)


def take_stdout():
    """The standard output; what engines and their processes write there goes to the standard error."""
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", choices=["vllm", "sluice", "nanovllm"])
    parser.add_argument("directory")
    workload.add_options(parser)
    args = parser.parse_args()
    out = take_stdout()
    engine = Engine(args.package, args.directory, workload.longest(args))
    result = {"engine": engine.name}
    if "prefill" in args.work:
        result |= {f"prefill_{n}": prefill_rate(engine, n) for n in args.prefill_lengths}
    if "decode" in args.work:
        result |= {f"decode_{n}": decode_rate(engine, n) for n in args.decode_lengths}
    if "throughput" in args.work:
        result["throughput"] = throughput(engine)
    json.dump(result, out)
    out.close()


if __name__ == "__main__":
    main()
