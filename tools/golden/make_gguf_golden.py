#!/usr/bin/env python3
"""Makes small GGUF files and what they stand for, for the tests of GGUF.

    python3 tools/golden/make_gguf_golden.py [--out tests/golden/gguf]

Written:
- NAME.gguf of models of tests/golden/models: the same bf16 weights under llama.cpp's names, with its order
  of the rows of q and k (llama) and Llama 3's rope scaling as divisors; qwen2's in two files.
- mixed.gguf: one layer with a tensor of every type that Sluice reads, random blocks; and mixed/, the
  Hugging Face directory of the same model, whose F32 weights `gguf.quants.dequantize` has made.
- tokenizer-FAMILY.gguf: the vocabularies of tests/golden/tokenizer, without tensors.
Needs: gguf 0.19.0, numpy. The written bytes are always the same.
"""

import argparse
import json
import math
import pathlib
import struct

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/golden/models"
TOKENIZERS = ROOT / "tests/golden/tokenizer"
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
HALF_FIELDS = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
               Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
CONTROL, NORMAL, USER_DEFINED, UNUSED = 3, 1, 4, 5
PRES = {"llama3": "llama-bpe", "qwen": "qwen2", "smollm2": "smollm", "gpt2": "gpt-2"}


def read_safetensors(path):
    """Names with (type's name, shape, bytes)."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + size:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name in sorted(tensors):
        end = offset + tensors[name].nbytes
        header[name] = {"dtype": "F32", "shape": list(tensors[name].shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(tensors[name].astype("<f4").tobytes() for name in sorted(tensors))
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


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


def unpermute(rows, num_heads):
    return (rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
            .swapaxes(1, 2).reshape(rows.shape))


def heads_of(name, config):
    """The number of heads if llama.cpp permutes the rows of this tensor, else none."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    return heads.get(name.split(".")[-2]) if config["model_type"] == "llama" else None


def rope_divisors(rope, head_dim):
    """convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors."""
    divisors = []
    for i in range(0, head_dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        old = rope["original_max_position_embeddings"]
        low, high = old / rope["low_freq_factor"], old / rope["high_freq_factor"]
        smooth = (old / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
        divisors.append(1.0 if length < high else rope["factor"] if length > low
                        else 1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(divisors, dtype=np.float32)


def write_config(writer, config):
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["bos_token_id"])
    if config["model_type"] != "qwen2":  # which has no such keys in real files
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", rope_divisors(rope, head_dim))


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_model(out, name, split):
    config = json.loads((MODELS / name / "config.json").read_text())
    writer = gguf.GGUFWriter(out / f"{name}.gguf", config["model_type"],
                             split_max_tensors=15 if split else 0, use_temp_file=False)
    write_config(writer, config)
    for hf, (_, shape, data) in sorted(read_safetensors(MODELS / name / "model.safetensors").items()):
        values = np.frombuffer(data, dtype="<u2").reshape(shape)
        heads = heads_of(gguf_name(hf), config)
        values = permute(values, heads) if heads else values
        if len(shape) == 1:  # llama.cpp keeps vectors in F32
            writer.add_tensor(gguf_name(hf), (values.astype("<u4") << 16).view("<f4"))
        else:
            writer.add_tensor(gguf_name(hf), np.ascontiguousarray(values).view(np.uint8), raw_dtype=Type.BF16)
    finish(writer)


def random_blocks(random, rows, columns, kind):
    """Random bytes; the scales are halves of every size, subnormal ones included."""
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows * columns // elements, size), dtype=np.uint8)
    for at in HALF_FIELDS[kind]:
        scales = (random.standard_normal(len(blocks)) * 10.0 ** random.integers(-7, 1, len(blocks)))
        blocks[:, at:at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, columns // elements * size)


def make_mixed(out):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
              "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 16, "max_position_embeddings": 64,
              "rms_norm_eps": 1e-5, "attention_bias": True, "tie_word_embeddings": False,
              "bos_token_id": 0, "eos_token_id": 1,
              "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
    kinds = {"model.embed_tokens.weight": (16, 256, Type.Q6_K), "lm_head.weight": (16, 256, Type.Q4_1)}
    for part, kind in {"self_attn.q_proj": (32, 256, Type.Q4_K), "self_attn.k_proj": (16, 256, Type.Q5_K),
                       "self_attn.v_proj": (16, 256, Type.Q6_K), "self_attn.o_proj": (256, 32, Type.Q8_0),
                       "mlp.gate_proj": (32, 256, Type.Q4_0), "mlp.up_proj": (32, 256, Type.Q5_1),
                       "mlp.down_proj": (256, 32, Type.Q5_0)}.items():
        kinds[f"model.layers.0.{part}.weight"] = kind
    vectors = {"model.norm.weight": (256, Type.BF16)}
    for part, kind in {"input_layernorm.weight": (256, Type.F32), "post_attention_layernorm.weight": (256, Type.F16),
                       "self_attn.q_proj.bias": (32, Type.F32), "self_attn.k_proj.bias": (16, Type.F16),
                       "self_attn.v_proj.bias": (16, Type.F32), "self_attn.o_proj.bias": (256, Type.F32)}.items():
        vectors[f"model.layers.0.{part}"] = kind
    random, expected = np.random.default_rng(5), {}
    writer = gguf.GGUFWriter(out / "mixed.gguf", "llama")
    write_config(writer, config)
    for hf, (rows, columns, kind) in kinds.items():
        blocks = random_blocks(random, rows, columns, kind)
        writer.add_tensor(gguf_name(hf), blocks, raw_dtype=kind)
        values = gguf.quants.dequantize(blocks, kind)
        heads = heads_of(gguf_name(hf), config)
        expected[hf] = unpermute(values, heads) if heads else values
    for hf, (length, kind) in vectors.items():
        stored = gguf.quants.quantize(random.standard_normal(length).astype(np.float32), kind)
        writer.add_tensor(gguf_name(hf), stored, raw_dtype=kind)
        values = gguf.quants.dequantize(stored, kind)
        heads = heads_of(gguf_name(hf), config)
        expected[hf] = unpermute(values, heads) if heads else values
    finish(writer)
    (out / "mixed").mkdir(exist_ok=True)
    (out / "mixed/config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_safetensors(out / "mixed/model.safetensors", expected)


def make_tokenizer(out, family):
    document = json.loads((TOKENIZERS / family / "tokenizer.json").read_text(encoding="utf-8"))
    model, added = document["model"], document["added_tokens"]
    last = max([*model["vocab"].values(), *(token["id"] for token in added)])
    # Two more than the tokenizer has: rows that pad an embedding.
    tokens = [f"[PAD{i}]" for i in range(last + 3)]
    types = [UNUSED] * len(tokens)
    for token, token_id in model["vocab"].items():
        tokens[token_id], types[token_id] = token, NORMAL
    for token in added:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    writer = gguf.GGUFWriter(out / f"tokenizer-{family}.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRES[family])
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]])
    writer.add_bos_token_id(added[0]["id"])
    writer.add_eos_token_id(added[-1]["id"])
    writer.add_chat_template("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
    finish(writer)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/gguf")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name in ("llama-group4-llama3", "qwen2-group2-yarn", "qwen3-group2-tied"):
        make_model(out, name, name.startswith("qwen2"))
    make_mixed(out)
    for family in PRES:
        make_tokenizer(out, family)


if __name__ == "__main__":
    main()
