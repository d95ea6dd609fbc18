"""Hugging Face transformers on the work of workload.py: dummy weights, plain loops, no generate().

Run by compare.py in a process of its own; prints one JSON object. The loops feed tokens back on the
device and wait once at the end, which is less overhead than generate() has.

    python3 lab/compare/transformers_engine.py models/shapes/qwen3-0.6b [--offloaded LENGTH ...] [--work LIST]
"""

import argparse
import json
import statistics
import sys
import time

import torch
import transformers
import workload
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

REPEATS = 3


def make_model(directory):
    config = AutoConfig.from_pretrained(directory)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def ids_tensor(lengths, vocab_size, seed):
    """Prompts padded on the left to one length, and the mask of real tokens."""
    longest = max(lengths)
    rows = [[0] * (longest - n) + workload.token_ids(n, vocab_size, seed + i) for i, n in enumerate(lengths)]
    mask = [[0] * (longest - n) + [1] * n for n in lengths]
    return torch.tensor(rows, device="cuda"), torch.tensor(mask, device="cuda")


def timed(function):
    torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    torch.cuda.synchronize()
    return time.perf_counter() - start, result


def make_cache(model, offloaded):
    return DynamicCache(config=model.config, offloading=True) if offloaded else DynamicCache(config=model.config)


def prefill(model, ids, offloaded, **more):
    cache = make_cache(model, offloaded)
    out = model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1, **more)
    return cache, out.logits[:, -1]


def measure_prefill(model, length, offloaded):
    ids, _ = ids_tensor([length], model.config.vocab_size, seed=length)
    seconds = [timed(lambda: prefill(model, ids, offloaded))[0] for _ in range(REPEATS + 1)]
    return length / statistics.median(seconds[1:])


def measure_decode(model, length, offloaded):
    ids, _ = ids_tensor([length], model.config.vocab_size, seed=length)
    cache, logits = prefill(model, ids, offloaded)
    steps = 8 if offloaded else workload.DECODE_TOKENS

    def run(num_steps, token):
        for _ in range(num_steps):
            out = model(input_ids=token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1].argmax(dim=-1, keepdim=True)
        return token

    _, token = timed(lambda: run(2, logits.argmax(dim=-1, keepdim=True)))
    seconds, _ = timed(lambda: run(steps, token))
    return steps / seconds


def measure_throughput(model):
    """Static batching: all requests in one batch, padded to the longest prompt and answer."""
    requests = workload.requests()
    ids, mask = ids_tensor([n for n, _ in requests], model.config.vocab_size, seed=0)
    num_steps = max(n for _, n in requests)

    def run():
        nonlocal mask
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache, logits = prefill(model, ids, False, attention_mask=mask, position_ids=positions)
        position = positions[:, -1:]
        one = torch.ones_like(position)
        for _ in range(num_steps - 1):
            token = torch.multinomial((logits / 0.6).softmax(dim=-1), 1)
            mask = torch.cat([mask, one], dim=1)
            position = position + 1
            out = model(input_ids=token, past_key_values=cache, use_cache=True, attention_mask=mask,
                        position_ids=position)
            logits = out.logits[:, -1].float()

    seconds, _ = timed(run)
    return sum(n for _, n in requests) / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--offloaded", type=int, nargs="+", help="contexts, with transformers' own offloaded cache")
    workload.add_options(parser)
    args = parser.parse_args()
    torch.manual_seed(0)
    result = {"engine": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    prefills = args.offloaded or args.prefill_lengths
    decodes = args.offloaded or args.decode_lengths
    work = {f"prefill_{n}": (measure_prefill, n, bool(args.offloaded)) for n in prefills}
    work |= {f"decode_{n}": (measure_decode, n, bool(args.offloaded)) for n in decodes}
    if not args.offloaded:
        work["throughput"] = (measure_throughput,)
    with torch.inference_mode():
        model = make_model(args.model)
        for name, (function, *arguments) in work.items():
            if name.split("_")[0] not in args.work:
                continue
            try:
                result[name] = function(model, *arguments)
            except torch.cuda.OutOfMemoryError:
                print(f"{name}: out of memory", file=sys.stderr)
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
