#!/usr/bin/env python3
"""Makes a model as Qwen2 has them, whose keys have a large bias, of SmolLM2: for docs/measured/kv_types.md.

    python3 tools/real_model/qwen2_stand_in.py [--bias 50] [--pairs 3] [--out models/qwen2-stand-in]

The weights are those of models/smollm2-135m-instruct-hf (get_smollm2.py --hf), as Qwen2ForCausalLM; all its biases are
0 but those of k: of the rotary pairs that turn slowest, both channels have `--bias` in every head. Such a bias adds
nearly the same to all scores of a query, which softmax takes away, as far as the pairs have not turned between query
and key; so the model answers nearly as before, and large channels of keys, which Qwen2 and Qwen2.5 have, are all that
changed.
Needs: torch, safetensors.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]


def biases(config, bias, pairs):
    """Those of q, k and v of a layer."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    width = config["hidden_size"] // heads
    of_head = torch.zeros(width)
    for pair in range(width // 2 - pairs, width // 2):  # a channel and that of half of the head further on
        of_head[pair] = of_head[pair + width // 2] = bias
    return {"q_proj": torch.zeros(heads * width), "k_proj": of_head.repeat(kv_heads),
            "v_proj": torch.zeros(kv_heads * width)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m-instruct-hf")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "models/qwen2-stand-in")
    parser.add_argument("--bias", type=float, default=50.0)
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    config = json.loads((arguments.model / "config.json").read_text())
    tensors = load_file(arguments.model / "model.safetensors")
    for layer in range(config["num_hidden_layers"]):
        for name, values in biases(config, arguments.bias, arguments.pairs).items():
            tensors[f"model.layers.{layer}.self_attn.{name}.bias"] = values.to(torch.bfloat16)
    for key in ("attention_bias", "mlp_bias", "head_dim", "pretraining_tp"):
        config.pop(key, None)
    config |= {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "use_sliding_window": False}
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, arguments.out / "model.safetensors")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(arguments.model / name, arguments.out / name)


if __name__ == "__main__":
    main()
