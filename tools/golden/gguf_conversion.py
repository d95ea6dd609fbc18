"""Names and order that llama.cpp's converter gives the tensors of a Hugging Face model, for make_gguf_golden.py.

Written from the facts of llama.cpp's conversion/qwen.py and conversion/llama.py. Values are numpy's F32.
Needs: numpy.
"""

import numpy as np

NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
HYBRIDS = {"qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}
ARCHITECTURES = {"mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", **HYBRIDS}
MIXTURE_NAMES = {
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}
EXPERT_PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
HYBRID_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}


def gguf_name(name):
    stem, suffix = name.rsplit(".", 1)
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[part]}.{suffix}"


def permute(rows, num_heads):
    """llama.cpp's order of the rows of q and k: convert_hf_to_gguf.py, LlamaModel.permute."""
    return (rows.reshape(num_heads, 2, rows.shape[0] // num_heads // 2, *rows.shape[1:])
            .swapaxes(1, 2).reshape(rows.shape))


def heads_of(name, config):
    """The number of heads if llama.cpp permutes the rows of this tensor, else none."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return heads.get(name.split(".")[-2]) if config["model_type"] in ("llama", "mixtral") else None


def tile_heads(values, axis, config, unit):
    """llama.cpp's order of value heads: conversion/qwen.py, _LinearAttentionVReorderBase."""
    groups = config["linear_num_key_heads"]
    shape = values.shape
    parts = values.reshape(*shape[:axis], groups, config["linear_num_value_heads"] // groups, unit, *shape[axis + 1:])
    return np.ascontiguousarray(parts.swapaxes(axis, axis + 1)).reshape(shape)


def convert_heads(part, values, config):
    """What the converter does to the tensors of value heads, whose place is in the rows or columns."""
    if config["model_type"] == "qwen3_next" or config["linear_num_key_heads"] == config["linear_num_value_heads"]:
        return values
    v_dim = config["linear_value_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        begin = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        return np.concatenate([values[:begin], tile_heads(values[begin:], 0, config, v_dim)])
    if part == "in_proj_z.weight":
        return tile_heads(values, 0, config, v_dim)
    if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return tile_heads(values, 0, config, 1)
    return tile_heads(values, 1, config, v_dim) if part == "out_proj.weight" else values


def sort_qkvz(rows, config):
    """Rows by key head, as q, k, v and z: Qwen3NextModel.modify_tensors. Gives q k v, and z."""
    heads, k_dim = config["linear_num_key_heads"], config["linear_key_head_dim"]
    v_rows = config["linear_num_value_heads"] // heads * config["linear_value_head_dim"]
    by_head = rows.reshape(heads, 2 * k_dim + 2 * v_rows, -1)
    q, k, v, z = np.split(by_head, [k_dim, 2 * k_dim, 2 * k_dim + v_rows], axis=1)
    return np.concatenate([part.reshape(-1, rows.shape[1]) for part in (q, k, v)]), z.reshape(-1, rows.shape[1])


def layer_part(part, values, config):
    """The parts that one of a layer becomes: names after "blk.N." with values."""
    if part.startswith("linear_attn."):
        values = convert_heads(part[len("linear_attn."):], values, config)
    if part == "linear_attn.A_log":
        return {"ssm_a": -np.exp(values)}
    if part == "linear_attn.dt_bias":
        return {"ssm_dt.bias": values}
    if part == "linear_attn.conv1d.weight":
        values = values.reshape(values.shape[0], -1)
    is_hybrid = "linear_num_key_heads" in config
    if is_hybrid and part.endswith("norm.weight") and part != "linear_attn.norm.weight":
        values = values + np.float32(1)
    stem, suffix = part.rsplit(".", 1)
    names = {**LAYER_NAMES, **MIXTURE_NAMES, **(HYBRID_NAMES if is_hybrid else {})}
    return {f"{names[stem]}.{suffix}": values}


def take_experts(tensors, fused):
    """Takes the experts' tensors out, as stacks by the names of their layer's parts."""
    stacks = {}
    for name in [name for name in tensors if ".experts." in name]:
        head, tail = name.split(".experts.")
        expert, part, _ = tail.split(".")
        key = f"blk.{head.split('.')[2]}.ffn_{EXPERT_PARTS[part]}_exps.weight"
        stacks.setdefault(key, {})[int(expert)] = tensors.pop(name)
    stacks = {name: np.stack([stack[i] for i in range(len(stack))]) for name, stack in stacks.items()}
    for name in [name for name in stacks if fused and "ffn_gate_exps" in name]:
        gate, up = stacks.pop(name), stacks.pop(name.replace("gate", "up"))
        stacks[name.replace("gate", "gate_up")] = np.concatenate([gate, up], axis=1)
    return stacks


def convert(tensors, config, fused=False):
    """Names and values of a mixture's or hybrid's file. `tensors`: F32, by the names of the text part alone."""
    tensors = dict(tensors)
    result = take_experts(tensors, fused)
    is_hybrid = "linear_num_key_heads" in config
    for name, values in tensors.items():
        if not name.startswith("model.layers."):
            result[gguf_name(name)] = values + np.float32(1) if is_hybrid and name == "model.norm.weight" else values
            continue
        layer, part = name[len("model.layers."):].split(".", 1)
        if part == "linear_attn.in_proj_qkvz.weight" and layer != "0":
            result[f"blk.{layer}.attn_qkv.weight"], result[f"blk.{layer}.attn_gate.weight"] = sort_qkvz(values, config)
            continue
        for own, converted in layer_part(part, values, config).items():
            heads = heads_of(f"blk.0.{own}", config) if own.count(".") == 1 else None
            result[f"blk.{layer}.{own}"] = permute(converted, heads) if heads else converted
    return result


def untile(values, part, config):
    """Hugging Face's order: that whose conversion gives `values`, found by converting numbers of rows or columns."""
    axis = 1 if part == "out_proj.weight" else 0
    numbers = np.arange(values.shape[axis])
    shape = [1] * values.ndim
    shape[axis] = -1
    order = convert_heads(part, np.broadcast_to(numbers.reshape(shape), values.shape), config)
    order = order[0] if axis == 1 else order.reshape(len(order), -1)[:, 0]
    return np.take(values, np.argsort(order), axis=axis)


def hf_names():
    parts = {**LAYER_NAMES, **MIXTURE_NAMES, **HYBRID_NAMES}
    parts.pop("block_sparse_moe.gate")
    return {own: hf for hf, own in parts.items()}
