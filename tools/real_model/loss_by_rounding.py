#!/usr/bin/env python3
"""Next-token loss with keys and values rounded as Sluice's KV types do it, by transformers in F32: what
docs/measured/kv_types.md says of keys in 8 bits that Sluice keeps in bf16 since they have a bias.

    python3 tools/real_model/loss_by_rounding.py --model DIR [--tokenizer DIR] TEXT...

Keys are rounded after the rotation, values as they come, each row of a token and KV head for itself (src/ops/e4m3.h,
src/ops/int8_rows.h). A row has the mean loss in nats and how much more that is, token by token, than with both in bf16.
Needs: torch, transformers. --tokenizer: transformers takes a tokenizer of another kind for a model_type of Qwen2.
"""

import argparse
import pathlib

import torch
import transformers
from transformers.models.llama import modeling_llama
from transformers.models.qwen2 import modeling_qwen2

KINDS = [("bf16", "bf16"), ("e4m3", "bf16"), ("bf16", "e4m3"), ("e4m3", "e4m3"), ("bf16", "int8"), ("int8", "int8")]


def scale_of(rows, most):
    """The smallest power of two with which the largest number of a row does not exceed `most`."""
    largest = rows.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    exponent = torch.ceil(torch.log2(largest / most))
    fits_half = most * torch.exp2(exponent - 1) >= largest  # log2 is rounded
    return torch.exp2(torch.where(fits_half, exponent - 1, exponent))


def rounded(rows, kind):
    rows = rows.to(torch.bfloat16).float()
    if kind == "bf16":
        return rows
    scale = scale_of(rows, 448.0 if kind == "e4m3" else 127.0)
    if kind == "e4m3":
        return (rows / scale).to(torch.float8_e4m3fn).float() * scale
    return torch.round(rows / scale).clamp(-127, 127) * scale


class RoundedModel:
    """A model whose keys and values are rounded as `kinds` says when they are made."""

    def __init__(self, path):
        self.model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.kinds = KINDS[0]
        module = modeling_qwen2 if self.model.config.model_type == "qwen2" else modeling_llama
        rotate = module.apply_rotary_pos_emb

        def rotate_and_round(*args, **kwargs):
            q, k = rotate(*args, **kwargs)
            return q, rounded(k, self.kinds[0])

        module.apply_rotary_pos_emb = rotate_and_round
        width = self.model.config.hidden_size // self.model.config.num_attention_heads
        for layer in self.model.model.layers:
            layer.self_attn.v_proj.register_forward_hook(
                lambda _, args, out: rounded(out.unflatten(-1, (-1, width)), self.kinds[1]).flatten(-2))

    @torch.no_grad()
    def losses(self, ids, kinds):
        self.kinds = kinds
        logits = self.model(ids).logits[0, :-1]
        hits = int((logits.argmax(-1) == ids[0, 1:]).sum())
        return torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none"), hits


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, required=True)
    parser.add_argument("--tokenizer", type=pathlib.Path, help="default: the model's own")
    parser.add_argument("texts", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.tokenizer or arguments.model)
    model = RoundedModel(arguments.model)
    print("| text | tokens | keys | values | loss | above bf16 | likeliest token hit |")
    print("|---" * 7 + "|")
    for path in arguments.texts:
        ids = tokenizer(path.read_text(), return_tensors="pt").input_ids
        plain = None
        for kinds in KINDS:
            losses, hits = model.losses(ids, kinds)
            plain = losses if plain is None else plain
            above = losses - plain
            cell = f"{above.mean():+.4f} ± {above.std() / len(above) ** 0.5:.4f}"
            print(f"| {path.name} | {len(losses)} | {' | '.join(kinds)} | {losses.mean():.4f} | {cell} | {hits} |",
                  flush=True)


if __name__ == "__main__":
    main()
