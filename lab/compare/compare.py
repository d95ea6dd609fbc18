#!/usr/bin/env python3
"""The same work on Sluice and on other engines of this machine, as one table with ratios.

Dummy weights of a published shape, prompts of the same lengths (random ids), one GPU, one engine at a
time; several rounds go through the engines forwards and backwards, and the table has medians. Engines
that are not installed, and runs that fail, are reported as such.

    tools/with-gpu python3 lab/compare/compare.py --sluice build/cuda/sluice
        [--model models/shapes/qwen3-0.6b] [--engines sluice,vllm,...] [--work prefill,decode]
        [--prefill-lengths 16384,131040] [--decode-lengths 1024,130944] [--rounds 2]
        [--offloaded-lengths 65536,126976] [--out FILE.json] [--device cuda]

Engines whose names end with _offloaded keep their KV in host memory and are compared with each other.
"""

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import workload

HERE = Path(__file__).resolve().parent
ENGINES = "sluice,sluice_python,transformers,vllm,nanovllm,sluice_offloaded,transformers_offloaded"


def short(tokens):
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else f"{tokens:,}"


def table_rows(args):
    """(key, title) of all rates that an engine may have measured."""
    prefills = sorted({*args.prefill_lengths, *args.offloaded_lengths})
    decodes = sorted({*args.decode_lengths, *args.offloaded_lengths})
    return (
        [(f"prefill_{n}", f"prefill {short(n)}, tok/s") for n in prefills]
        + [(f"decode_{n}", f"decode after {short(n)}, tok/s") for n in decodes]
        + [("throughput", f"{workload.NUM_REQUESTS} requests, generated tok/s")]
    )


def run_json(words):
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def sluice_bench(args, name, *options):
    return run_json([args.sluice, "bench", name, args.model, "--device", args.device, "--json", *options])


def described(rates, raw):
    """The rates, with the version and all output."""
    any_result = next(iter(raw.values()))
    engine = f"sluice {any_result['version']} ({any_result['commit']})"
    return rates | {"engine": engine, "raw": raw}


def measure_sluice(args):
    rates, raw = {}, {}
    longest = ["--max-model-len", workload.longest(args)]
    if "prefill" in args.work:
        lengths = ",".join(map(str, args.prefill_lengths))
        raw["prefill"] = sluice_bench(args, "prefill", "--prompt-lengths", lengths, *longest)
    if "decode" in args.work:
        lengths = ",".join(map(str, args.decode_lengths))
        steps = ["-n", workload.DECODE_TOKENS]
        raw["decode"] = sluice_bench(args, "decode", "--prompt-lengths", lengths, *steps, *longest)
    for name, result in raw.items():
        for row in result["results"]:
            rates[f"{name}_{row['prompt_tokens']}"] = row["tokens_per_second"]["median"]
    if "throughput" in args.work:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.writelines(f"{prompt} {output}\n" for prompt, output in workload.requests())
            file.flush()
            raw["throughput"] = sluice_bench(args, "throughput", "--requests", file.name)
        rates["throughput"] = raw["throughput"]["output_tokens_per_second"]
    return described(rates, raw)


def measure_sluice_offloaded(args):
    """All KV on the host; the better mode of prefill."""
    lengths = ",".join(map(str, args.offloaded_lengths))
    raw = sluice_bench(args, "offload", "--lengths", lengths, "--modes", "chunked,layerwise")
    rates = {}
    for row in raw["results"]:
        for phase in args.work & {"prefill", "decode"}:
            key = f"{phase}_{row['context_tokens']}"
            rates[key] = max(rates.get(key, 0), row[phase]["tokens_per_second"]["median"])
    return described(rates, {"offload": raw})


def measure_other(name, args):
    if name in ("sluice_python", "vllm", "nanovllm"):
        package = name.removesuffix("_python")
        if importlib.util.find_spec(package) is None:
            return {"missing": "not installed"}
        if name == "nanovllm" and not list(Path(args.model).glob("*.safetensors")):
            return {"missing": "needs weights"}
        return run_json([sys.executable, HERE / "vllm_engine.py", package, args.model, *workload.words(args)])
    if importlib.util.find_spec("transformers") is None:
        return {"missing": "not installed"}
    more = ["--offloaded", *map(str, args.offloaded_lengths)] if name.endswith("_offloaded") else []
    return run_json([sys.executable, HERE / "transformers_engine.py", args.model, *workload.words(args), *more])


def measure(name, args):
    try:
        if name == "sluice":
            return measure_sluice(args)
        return measure_sluice_offloaded(args) if name == "sluice_offloaded" else measure_other(name, args)
    except (subprocess.CalledProcessError, json.JSONDecodeError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return {"missing": "failed"}


def merged(rounds):
    """The medians of several rounds of an engine, with all rounds beside them; or why there are none."""
    failed = [result for result in rounds if "missing" in result]
    if failed:
        return failed[0]
    keys = set.intersection(*map(set, rounds)) - {"engine", "raw"}
    rates = {key: statistics.median(result[key] for result in rounds) for key in keys}
    return rates | {"engine": rounds[0]["engine"], "rounds": rounds}


def measure_all(args):
    rounds = {name: [] for name in args.engines.split(",")}
    results = {}
    for index in range(args.rounds):
        for name in list(rounds) if index % 2 == 0 else reversed(list(rounds)):
            print(f"{name}, round {index + 1} ...", file=sys.stderr, flush=True)
            rounds[name].append(measure(name, args))
            results[name] = merged(rounds[name])
            if args.out:
                args.out.write_text(json.dumps(results, indent=1))
    return results


def cell(result, key, sluice):
    if "missing" in result:
        return result["missing"]
    if key not in result:
        return "-"
    ratio = f" (Sluice x{sluice[key] / result[key]:.2f})" if key in sluice and result is not sluice else ""
    return f"{result[key]:,.1f}{ratio}" if result[key] < 1000 else f"{result[key]:,.0f}{ratio}"


def print_table(results, rows):
    names = list(results)
    # The engine that each engine is compared with.
    peers = {name: results.get("sluice_offloaded" if name.endswith("_offloaded") else "sluice", {}) for name in names}
    print("| work | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for key, title in rows:
        if any(key in result for result in results.values()):
            cells = [cell(results[name], key, peers[name]) for name in names]
            print(f"| {title} | " + " | ".join(cells) + " |")
    print()
    for name, result in results.items():
        print(f"{name}: {result.get('engine', result.get('missing'))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sluice", required=True, help="the program")
    parser.add_argument("--model", default=HERE.parent.parent / "models/shapes/qwen3-0.6b")
    parser.add_argument("--engines", default=ENGINES)
    workload.add_options(parser)
    parser.add_argument("--rounds", type=int, default=1, help="times that each engine runs")
    parser.add_argument("--offloaded-lengths", default=workload.OFFLOADED_LENGTHS,
                        type=workload.lengths, help="contexts of engines whose KV is in host memory")
    parser.add_argument("--device", default="cuda", help="of the program; Sluice's Python package chooses its own")
    parser.add_argument("--out", type=Path, help="everything as JSON")
    args = parser.parse_args()
    results = measure_all(args)
    print_table(results, table_rows(args))


if __name__ == "__main__":
    main()
