#!/usr/bin/env python3
"""Compares Sluice with ik_llama.cpp, a fork of llama.cpp, on random GGUF files of mixtures and hybrids.

    python3 tools/golden/check_gguf_live.py SLUICE [--seeds 3]

The golden files are written with this project's own idea of llama.cpp's converter (gguf_conversion.py); here
ik_llama.cpp reads such files. Names, shapes, keys or an order of heads other than it expects would make it
refuse a file or give other logits: those of different random weights are apart by an NMSE near 2. bf16
activations against its F32 ones leave 1e-4, and more in rows whose routers choose other experts; so the median
of the rows counts, and fails from 2e-3 on. Heads of linear layers have 64 channels, since the fork's own kernel is
wrong with 32; Mixtral is left out, whose residual sums it takes after the norms.
Needs: gguf 0.19.0, numpy, ik-llama-cpp-python 0.1.5.
"""

import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import gguf
import ik_llama_cpp
import numpy as np
from gguf_conversion import ARCHITECTURES, convert
from ik_llama_cpp import _ctypes_api as api
from make_gguf_golden import add_bf16, finish, write_config, write_layer_types, write_layers

LIMIT = 2e-3
NUM_TOKENS = 90  # more than a chunk of the delta rule
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
BASE = {"hidden_size": 64, "num_hidden_layers": 4, "vocab_size": 96, "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6, "intermediate_size": 96, "bos_token_id": 0, "eos_token_id": 1, **HEADS,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
SHARED = {"shared_expert_intermediate_size": 64}
HYBRID = {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 64,
          "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
          "layer_types": ["linear_attention"] * 3 + ["full_attention"],
          "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                              "mrope_section": [2, 1, 1]}}
CONFIGS = {
    "qwen2moe": {**BASE, "model_type": "qwen2_moe", "head_dim": 16, **EXPERTS, **SHARED, "norm_topk_prob": False},
    "qwen3moe": {**BASE, "model_type": "qwen3_moe", **EXPERTS, "norm_topk_prob": True},
    "qwen3next": {**BASE, "model_type": "qwen3_next", **HYBRID, **EXPERTS, **SHARED},
    "qwen35": {**BASE, "model_type": "qwen3_5_text", **HYBRID},
    "qwen35moe": {**BASE, "model_type": "qwen3_5_moe_text", **HYBRID, **EXPERTS, **SHARED},
}


def mixer_shapes(config, layer):
    """Tensors of a layer's token mixer by the end of their names."""
    hidden, q_heads, dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    kv_rows = config["num_key_value_heads"] * dim
    is_hybrid = "layer_types" in config
    if is_hybrid and config["layer_types"][layer] == "linear_attention":
        v_heads, v_dim = config["linear_num_value_heads"], config["linear_value_head_dim"]
        channels = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"] + v_heads * v_dim
        shapes = {"conv1d.weight": (channels, 1, 4), "A_log": (v_heads,), "dt_bias": (v_heads,),
                  "norm.weight": (v_dim,), "out_proj.weight": (hidden, v_heads * v_dim)}
        if config["model_type"] == "qwen3_next":
            shapes |= {"in_proj_qkvz.weight": (channels + v_heads * v_dim, hidden),
                       "in_proj_ba.weight": (2 * v_heads, hidden)}
        else:
            shapes |= {"in_proj_qkv.weight": (channels, hidden), "in_proj_z.weight": (v_heads * v_dim, hidden),
                       "in_proj_b.weight": (v_heads, hidden), "in_proj_a.weight": (v_heads, hidden)}
        return {f"linear_attn.{name}": shape for name, shape in shapes.items()}
    shapes = {"q_proj.weight": ((2 if is_hybrid else 1) * q_heads * dim, hidden), "k_proj.weight": (kv_rows, hidden),
              "v_proj.weight": (kv_rows, hidden), "o_proj.weight": (hidden, q_heads * dim)}
    if config["model_type"] == "qwen2_moe":
        shapes |= {"q_proj.bias": (q_heads * dim,), "k_proj.bias": (kv_rows,), "v_proj.bias": (kv_rows,)}
    else:
        shapes |= {"q_norm.weight": (dim,), "k_norm.weight": (dim,)}
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def mlp_shapes(config):
    hidden, size = config["hidden_size"], config["intermediate_size"]
    if "num_experts" not in config:
        return {"mlp.gate_proj.weight": (size, hidden), "mlp.up_proj.weight": (size, hidden),
                "mlp.down_proj.weight": (hidden, size)}
    own, shapes = config["moe_intermediate_size"], {"mlp.gate.weight": (config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        for part, shape in {"gate_proj": (own, hidden), "up_proj": (own, hidden), "down_proj": (hidden, own)}.items():
            shapes[f"mlp.experts.{expert}.{part}.weight"] = shape
    if "shared_expert_intermediate_size" in config:
        shared = config["shared_expert_intermediate_size"]
        shapes |= {"mlp.shared_expert.gate_proj.weight": (shared, hidden),
                   "mlp.shared_expert.up_proj.weight": (shared, hidden),
                   "mlp.shared_expert.down_proj.weight": (hidden, shared), "mlp.shared_expert_gate.weight": (1, hidden)}
    return shapes


def random_tensors(config, random):
    """Numbers of bf16 that keep activations near 1: a wrong order of anything then changes logits entirely."""
    hidden = config["hidden_size"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,),
              "lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        own = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,),
               **mixer_shapes(config, layer), **mlp_shapes(config)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in own.items()}
    tensors = {}
    for name, shape in shapes.items():
        values = random.standard_normal(shape).astype("<f4") * np.float32(0.3 if len(shape) == 1 else shape[-1] ** -0.5)
        is_norm = name.endswith("norm.weight")
        if is_norm and ("linear_num_key_heads" not in config or name.endswith("linear_attn.norm.weight")):
            values += np.float32(1)
        tensors[name] = (np.ascontiguousarray(values).view("<u4") >> 16 << 16).view("<f4")
    return tensors


def write_model(path, config, random):
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config["model_type"]])
    write_config(writer, config)
    write_layers(writer, config)
    write_layer_types(writer, config)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for name, values in convert(random_tensors(config, random), config).items():
        add_bf16(writer, name, values)
    finish(writer)


def llama_logits(path, tokens):
    model = ik_llama_cpp.IkLlama(str(path), n_ctx=256, n_threads=2, verbose=False)
    context = model._context
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, 1
        batch.seq_id[i][0] = 0
    if context.decode(batch) != 0:
        raise RuntimeError(f"llama.cpp cannot run {path}")
    width = context.model.n_vocab
    rows = [np.array(context.get_logits(i)[:width], dtype="<f4") for i in range(len(tokens))]
    api.llama_batch_free(batch)
    return np.stack(rows)


def sluice_logits(program, path, tokens, out):
    command = [program, "trace", "-m", str(path), "--tokens", ",".join(map(str, tokens)), "--out", str(out)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    data = out.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8:8 + size])["logits"]
    begin, end = entry["data_offsets"]
    return np.frombuffer(data[8 + size + begin:8 + size + end], dtype="<f4").reshape(entry["shape"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sluice")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print(f"ik_llama.cpp of ik-llama-cpp-python {ik_llama_cpp.__version__}")
    worst = 0.0
    with tempfile.TemporaryDirectory() as directory:
        for name, config in CONFIGS.items():
            for seed in range(args.seeds):
                random = np.random.default_rng(seed)
                path = pathlib.Path(directory) / f"{name}-{seed}.gguf"
                write_model(path, config, random)
                tokens = random.integers(0, config["vocab_size"], NUM_TOKENS)
                expected = llama_logits(path, tokens)
                found = sluice_logits(args.sluice, path, tokens, path.with_suffix(".safetensors"))
                errors = np.sum((found - expected) ** 2, axis=1) / np.sum(expected.astype(float) ** 2, axis=1)
                error = float(np.median(errors))
                print(f"{name}, seed {seed}: NMSE of rows {error:.2e}, at most {errors.max():.2e}")
                worst = max(worst, error)
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
