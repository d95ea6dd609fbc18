#!/usr/bin/env python3
"""Writes tests/golden/sampling/penalties.json: random logits, and their softmax after biases and penalties.

numpy in float32, step by step as vLLM's sampler documents (docs.vllm.ai, vllm.v1.sample.sampler): allowed ids, bias,
repetition, frequency, presence. The repetition penalty is transformers' RepetitionPenaltyLogitsProcessor. Random input
from a fixed seed.
"""
import json
import pathlib

import numpy as np

OUT = pathlib.Path(__file__).parents[2] / "tests/golden/sampling/penalties.json"
VOCAB = 24
f32 = np.float32


def process(logits, case):
    scores = logits.astype(f32)
    if case["allowed_token_ids"] is not None:
        mask = np.ones(VOCAB, bool)
        mask[case["allowed_token_ids"]] = False
        scores[mask] = -np.inf
    for token, bias in case["logit_bias"].items():
        scores[int(token)] += f32(float(bias))
    # transformers: gather the scores of the ids so far, scale them, scatter them back.
    seen = np.array(sorted(set(case["prompt"]) | set(case["output"])), dtype=int)
    penalty = f32(case["repetition_penalty"])
    scores[seen] = np.where(scores[seen] < 0, scores[seen] * penalty, scores[seen] / penalty)
    counts = np.bincount(case["output"], minlength=VOCAB).astype(f32)
    scores -= f32(case["frequency_penalty"]) * counts
    scores -= f32(case["presence_penalty"]) * (counts > 0).astype(f32)
    return scores


def softmax(scores):
    weights = np.exp(scores.astype(np.float64) - scores.max())
    return weights / weights.sum()


def make_case(rng, index):
    bias = {}
    if index % 2:
        ids = rng.choice(VOCAB, 5, replace=False)
        bias = {str(i): str(b) for i, b in zip(ids, [1.5, -3.25, 100.0, -100.0, "-inf"])}
    allowed = sorted(rng.choice(VOCAB, 12, replace=False).tolist()) if index % 3 == 2 else None
    return {
        "prompt": rng.integers(0, VOCAB, int(rng.integers(1, 12))).tolist(),
        "output": rng.integers(0, VOCAB // 2, int(rng.integers(0, 16))).tolist(),
        "repetition_penalty": float(rng.choice([1.0, 1.05, 1.1, 1.3, 0.8])),
        "frequency_penalty": float(rng.choice([0.0, 0.1, -0.7, 2.0])),
        "presence_penalty": float(rng.choice([0.0, 0.5, -1.5, 2.0])),
        "logit_bias": bias,
        "allowed_token_ids": allowed,
    }


def main():
    rng = np.random.default_rng(20)
    cases = []
    for index in range(48):
        case = make_case(rng, index)
        logits = np.round(rng.normal(0, 3, VOCAB), 3).astype(f32)
        case["logits"] = [float(x) for x in logits]
        case["probabilities"] = [float(p) for p in softmax(process(logits, case))]
        cases.append(case)
    lines = ",\n".join(json.dumps(case) for case in cases)
    made_by = json.dumps(f"tools/golden/make_sampling_golden.py with numpy {np.__version__}")
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(f'{{"made_by": {made_by},\n"cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
