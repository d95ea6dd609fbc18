#!/usr/bin/env python3
"""Computes tiny models with dual chunk attention in double precision, for tests/engine/dual_chunk.

A program of its own: weights are those of tests/golden/models, the arithmetic is written here from the formulas of
the papers (arXiv 2402.17463, 2501.15383; see docs/adr/0036). A query is rotated by its distance to each key, and keys
are not rotated at all, so it shares no step with an engine that rotates both once. Without the key it must give
transformers' logits, which is checked. Written per model into tests/golden/dual_chunk: NAME.json (sizes, prompt,
greedy continuations across every border) and NAME.safetensors (logits f32 of some rows of the prompt, and of each
step of the continuations).

Usage: python3 tools/golden/make_dual_chunk_golden.py [--out tests/golden/dual_chunk] [NAME ...]
Needs: torch, safetensors (see the versions in the JSON files).
"""

import argparse
import functools
import json
import pathlib
import platform

import torch
from safetensors.torch import load_file, save_file

TESTS = pathlib.Path(__file__).parents[2] / "tests/golden"
NAMES = ["qwen2-group7-tied", "qwen3moe-experts8-pair"]
CHUNK_SIZE, LOCAL_SIZE, ORIGINAL = 160, 32, 160
C = CHUNK_SIZE - LOCAL_SIZE  # tokens of a chunk
PROMPT_TOKENS = 3 * C + 7
GREEDY_TOKENS = 5  # of them the last two are chosen past a border
MIN_MARGIN = 0.2  # nats: a greedy choice by less may differ in bf16
MIN_GAP = 0.04  # nats: so may an expert that is chosen by less, and then the row has other numbers


def query_position(p, zone):
    """Where a query at p stands for keys of its own chunk (0), of the one before (1), of all others (2)."""
    if zone == 0:
        return p % C
    return min(p % C + C, CHUNK_SIZE) if zone == 1 else min(2 * C - 1, CHUNK_SIZE)


@functools.cache
def relative_positions(num_tokens, is_dual):
    """[query, key]: the distance that attention uses. Keys after the query are not looked at."""
    out = [[0] * num_tokens for _ in range(num_tokens)]
    for p in range(num_tokens):
        of_zone = [query_position(p, zone) for zone in range(3)]
        for key in range(p + 1):
            zone = min(p // C - key // C, 2)
            out[p][key] = of_zone[zone] - key % C if is_dual else p - key
    return torch.tensor(out, dtype=torch.float64)


def sharpness(num_tokens, is_dual):
    """[query]: what scores are multiplied by, the square of the length factor at the query's own length."""
    n = torch.arange(1, num_tokens + 1, dtype=torch.float64)
    factor = torch.clamp(1 + 0.1 * torch.log(n / ORIGINAL), min=1)
    return factor ** 2 if is_dual else torch.ones_like(factor)


class Model:
    """Qwen2, Qwen3 and Qwen3-MoE over weights in `dtype`: float64, or bfloat16 to see what its rounding costs."""

    def __init__(self, name, dtype):
        directory = TESTS / "models" / name
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = {k: v.to(dtype) for k, v in load_file(directory / "model.safetensors").items()}
        # Of norms and softmax, as in transformers.
        self.exact = torch.float64 if dtype == torch.float64 else torch.float32
        heads = self.config["num_attention_heads"]
        self.head_dim = self.config.get("head_dim") or self.config["hidden_size"] // heads
        rope = self.config["rope_parameters"]
        assert rope["rope_type"] == "default"
        even = torch.arange(0, self.head_dim, 2, dtype=torch.float64)
        self.inv_freq = rope["rope_theta"] ** (-even / self.head_dim)

    def linear(self, x, name):
        out = x @ self.weights[name + ".weight"].T
        bias = self.weights.get(name + ".bias")
        return out if bias is None else out + bias

    def norm(self, x, name):
        values = x.to(self.exact)
        scale = torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return self.weights[name + ".weight"] * (values * scale).to(x.dtype)

    def project(self, x, prefix, which):
        """[tokens, heads, head_dim] of q, k or v, before rotation."""
        out = self.linear(x, f"{prefix}.{which}_proj").unflatten(-1, (-1, self.head_dim))
        norm = f"{prefix}.{which}_norm"
        return self.norm(out, norm) if norm + ".weight" in self.weights else out

    def rotate(self, x, positions):
        """x [rows, heads, head_dim], each row by all `positions` [rows, keys]; halves are pairs."""
        angles = (positions[:, :, None] * self.inv_freq).repeat(1, 1, 2)[:, :, None, :]
        low, high = x.chunk(2, dim=-1)
        turned = torch.cat([-high, low], dim=-1)
        return x[:, None] * angles.cos().to(x.dtype) + turned[:, None] * angles.sin().to(x.dtype)

    def attention(self, x, prefix, is_dual):
        q, k, v = (self.project(x, prefix, which) for which in "qkv")
        group = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        relative = relative_positions(len(x), is_dual)
        factor = sharpness(len(x), is_dual) * self.head_dim ** -0.5
        is_hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        outs = []
        for rows in torch.arange(len(x)).split(32):
            turned = self.rotate(q[rows], relative[rows])
            scores = (turned * k).sum(-1).to(self.exact) * factor[rows, None, None]
            scores.masked_fill_(is_hidden[rows, :, None], -torch.inf)
            shares = torch.softmax(scores, dim=1).to(x.dtype)
            outs.append((shares[..., None] * v).sum(1).flatten(1))
        return self.linear(torch.cat(outs), f"{prefix}.o_proj")

    def mlp(self, x, prefix):
        gate = self.linear(x, f"{prefix}.gate_proj")
        return self.linear(torch.nn.functional.silu(gate) * self.linear(x, f"{prefix}.up_proj"), f"{prefix}.down_proj")

    def experts(self, x, prefix):
        probabilities = torch.softmax(self.linear(x, f"{prefix}.gate").to(self.exact), dim=-1)
        k = self.config["num_experts_per_tok"]
        shares, chosen = probabilities.topk(k, dim=-1)
        ordered = probabilities.log().sort(dim=-1, descending=True).values
        self.gaps = torch.minimum(self.gaps, ordered[:, k - 1] - ordered[:, k])
        if self.config["norm_topk_prob"]:
            shares = shares / shares.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for expert in range(probabilities.shape[-1]):
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            if len(rows) > 0:
                out[rows] += shares[rows, slots, None].to(x.dtype) * self.mlp(x[rows], f"{prefix}.experts.{expert}")
        return out

    def logits(self, tokens, is_dual=True):
        """[tokens, vocab]. Leaves in `gaps` how nearly a token chose another expert, in nats."""
        self.gaps = torch.full((len(tokens),), torch.inf, dtype=self.exact)
        x = self.weights["model.embed_tokens.weight"][torch.tensor(tokens)]
        for layer in range(self.config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}"
            x = x + self.attention(self.norm(x, f"{prefix}.input_layernorm"), f"{prefix}.self_attn", is_dual)
            normed = self.norm(x, f"{prefix}.post_attention_layernorm")
            has_experts = f"{prefix}.mlp.gate.weight" in self.weights
            x = x + (self.experts if has_experts else self.mlp)(normed, f"{prefix}.mlp")
        tied = self.config["tie_word_embeddings"]
        head = self.weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
        return (self.norm(x, "model.norm") @ head.T).to(self.exact)


def nmse(got, expected):
    return float(((got.double() - expected) ** 2).sum() / (expected.double() ** 2).sum())


def check_without_key(name):
    """The same program with plain attention, against transformers' logits in float32."""
    model = Model(name, torch.float64)
    # make_model_golden.py makes a model bf16 before it makes it float32, and frequencies stay rounded.
    model.inv_freq = model.inv_freq.to(torch.bfloat16).double()
    golden = json.loads((TESTS / "models" / name / "golden.json").read_text())
    expected = load_file(TESTS / "models" / name / "golden.safetensors")["logits"]
    error = nmse(model.logits(golden["prompt"], is_dual=False), expected)
    assert error < 1e-10, f"{name}: {error} from transformers"


def rows_to_keep(gaps):
    """Of the prompt: some of every chunk, those beside borders, and those where the clamp begins; all without a tie."""
    borders = [m * C for m in range(1, 4)]
    near = {b + d for b in borders for d in (-1, 0, 1, 2)} | {b + LOCAL_SIZE + d for b in borders for d in (-1, 0, 1)}
    wanted = near | set(range(0, PROMPT_TOKENS, 12))
    return sorted(row for row in wanted if row < PROMPT_TOKENS and gaps[row] > MIN_GAP)


def random_prompt(num_tokens, seed):
    return torch.randint(2, 160, (num_tokens,), generator=torch.Generator().manual_seed(seed)).tolist()


def continuation(model, num_tokens):
    """A prompt, what follows greedily without a near tie, and the logits of each step."""
    for seed in range(1000):
        prompt = random_prompt(num_tokens, seed)
        greedy, margins, steps = [], [], []
        while len(greedy) < GREEDY_TOKENS:
            steps.append(model.logits(prompt + greedy)[-1])
            top = steps[-1].topk(2)
            margins.append(float(top.values[0] - top.values[1]))
            if margins[-1] < MIN_MARGIN or model.gaps[-1] < MIN_GAP:
                break
            greedy.append(int(top.indices[0]))
        if len(greedy) == GREEDY_TOKENS:
            return {"prompt": prompt, "greedy": greedy, "margins": [round(m, 4) for m in margins]}, torch.stack(steps)
    raise RuntimeError(f"no prompt of {num_tokens} tokens without a near tie")


def write_golden(name, out):
    check_without_key(name)
    model, rounded = Model(name, torch.float64), Model(name, torch.bfloat16)
    prompt = random_prompt(PROMPT_TOKENS, 7)
    logits = model.logits(prompt)
    rows = rows_to_keep(model.gaps)
    logits, plain = logits[rows], model.logits(prompt, is_dual=False)[rows]
    made = [continuation(model, m * C - 2) for m in range(1, 4)]
    out.mkdir(parents=True, exist_ok=True)
    save_file({"logits": logits.float().contiguous(), "steps": torch.cat([s for _, s in made]).float().contiguous()},
              out / f"{name}.safetensors")
    (out / f"{name}.json").write_text(json.dumps({
        "made_by": "tools/golden/make_dual_chunk_golden.py",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "chunk_size": CHUNK_SIZE,
        "local_size": LOCAL_SIZE,
        "original_max_position_embeddings": ORIGINAL,
        "prompt": prompt,
        "rows": rows,
        # The error of this program in bf16: the bound for Sluice's error. How far plain attention is.
        "bf16_nmse": nmse(rounded.logits(prompt)[rows], logits),
        "plain_nmse": nmse(plain, logits),
        "continuations": [of for of, _ in made],
    }) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=TESTS / "dual_chunk")
    parser.add_argument("names", nargs="*", help="models to make; none: all")
    args = parser.parse_args()
    for name in args.names or NAMES:
        write_golden(name, args.out)
        print(name)


if __name__ == "__main__":
    main()
