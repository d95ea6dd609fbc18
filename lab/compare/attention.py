#!/usr/bin/env python3
"""Prefill attention through PyTorch (cuDNN, FlashAttention-2) next to cuda_attention_bench, in one run.

Causal, bf16, normally distributed data, batch 1; measured as long as cuda_attention_bench's lines, so
at the clock that the GPU holds under load. KV heads are contiguous here, in blocks there.

    tools/with-gpu python3 lab/compare/attention.py --bench build/cuda/lab/kernels/cuda_attention_bench

Exit status: 0 done, 2 something needed is missing.
"""

import argparse
import subprocess
import sys
import time

# Name of the shape in cuda_attention_bench -> tokens, query heads, KV heads, head_dim.
SHAPES = [
    ("prompt 4K", 4096, 16, 8, 128),
    ("prompt 16K", 16384, 16, 8, 128),
    ("prompt 32K", 32768, 16, 8, 128),
    ("prompt 64K", 65536, 16, 8, 128),
    ("32 / 8 heads 16K", 16384, 32, 8, 128),
    ("head_dim 64 16K", 16384, 16, 8, 64),
]
MIN_SECONDS = 0.3  # and enough calls in a row that a launch and a wait do not matter
FLOP_IN_A_ROW = 1e13


def median_seconds(torch, call, flop):
    repeats = max(1, int(FLOP_IN_A_ROW / flop))
    samples = []
    call()
    while len(samples) < 5 or sum(samples) < MIN_SECONDS:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        torch.cuda.synchronize()
        samples.append(time.perf_counter() - begin)
    return sorted(samples)[len(samples) // 2] / repeats


def torch_rates(torch, tokens, q_heads, kv_heads, head_dim):
    """TFLOP/s of each backend; None where it refuses the shape."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def normal(heads):
        return torch.randn(1, heads, tokens, head_dim, device="cuda", dtype=torch.bfloat16)

    q, k, v = normal(q_heads), normal(kv_heads), normal(kv_heads)
    flop = 4.0 * q_heads * head_dim * tokens * (tokens + 1) / 2
    rates = []
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION):
        with sdpa_kernel([backend]):
            try:
                seconds = median_seconds(
                    torch, lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), flop
                )
                rates.append(flop / seconds / 1e12)
            except RuntimeError:
                rates.append(None)
    return rates


def sluice_rate(bench, name):
    """TFLOP/s of the line of cuda_attention_bench whose shape has exactly this name; exits if there is none."""
    done = subprocess.run([bench, "--shape", name], stdout=subprocess.PIPE, text=True, check=True)
    for line in done.stdout.splitlines():
        if line.startswith(name) and " ms " in line and line[len(name) : 36].strip() == "":
            return float(line.split(" TFLOP/s")[0].split()[-1])
    print(f"attention.py: {bench} prints no shape '{name}'; SHAPES names those that it has", file=sys.stderr)
    sys.exit(2)


def shown(rate):
    return "refused" if rate is None else f"{rate:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", required=True, help="the program cuda_attention_bench")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("attention.py: PyTorch is not installed; pip install torch", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("attention.py: skipped: no GPU", file=sys.stderr)
        return 2
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    print("| TFLOP/s | Sluice | cuDNN | FlashAttention-2 |\n| --- | --- | --- | --- |")
    for name, *shape in SHAPES:
        cudnn, flash = torch_rates(torch, *shape)
        print(f"| {name} | {shown(sluice_rate(args.bench, name))} | {shown(cudnn)} | {shown(flash)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
