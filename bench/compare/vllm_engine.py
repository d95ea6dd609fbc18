"""vLLM, or Sluice's package or nano-vllm with its interface, on the work of workload.py. Prints one JSON object.

Run by compare.py where the package is installed. nano-vllm reads weights and a tokenizer from the
model's folder, the others make dummy weights of their own.

    python3 bench/compare/vllm_engine.py vllm|sluice|nanovllm DIR
"""

import importlib
import json
import sys
import time

import workload


def main():
    package, directory = sys.argv[1], sys.argv[2]
    module = importlib.import_module(package)
    longest = max(workload.PREFILL_LENGTHS) + workload.DECODE_TOKENS
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "enable_prefix_caching": False}
    llm = module.LLM(directory, max_model_len=longest, **({} if package == "nanovllm" else options))

    def run(lengths, outputs, temperature, seed):
        prompts = [workload.token_ids(n, 10000, seed + i) for i, n in enumerate(lengths)]
        if package != "nanovllm":
            prompts = [{"prompt_token_ids": ids} for ids in prompts]
        params = [module.SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=n) for n in outputs]
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    def best(*work):
        run(*work, seed=1)
        return min(run(*work, seed=2 + i) for i in range(3))

    result = {"engine": f"{package} {getattr(module, '__version__', '')}".strip()}
    for length in workload.PREFILL_LENGTHS:
        result[f"prefill_{length}"] = length / best([length], [1], 0.6)
    for length in workload.DECODE_LENGTHS:
        # The difference of two output lengths is the time of the decode steps alone.
        more = best([length], [workload.DECODE_TOKENS + 1], 0.6) - best([length], [1], 0.6)
        result[f"decode_{length}"] = workload.DECODE_TOKENS / more
    requests = workload.requests()
    seconds = run([n for n, _ in requests], [n for _, n in requests], 0.6, seed=0)
    result["throughput"] = sum(n for _, n in requests) / seconds
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
