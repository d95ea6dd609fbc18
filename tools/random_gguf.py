#!/usr/bin/env python3
"""Writes a GGUF file of random blocks in the shape of a config.json, to compare speeds with llama.cpp.

Of models of Llama, Qwen3 and Qwen3.5, with experts too; without rope scaling, which changes no speed.

    python3 tools/random_gguf.py models/shapes/qwen3-30b-a3b /tmp/q30.gguf --layers 6 --vocab-size 32768

Types are those of llama.cpp's Q4_K_M: Q6_K for the output and for half of the layers' values and down projections,
Q4_K for other matrices. Or all matrices have one type (--type). Vectors and routers are F32. The tokens are bytes.
Needs: gguf 0.19.0, numpy.
"""
import argparse
import json
import pathlib
import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

sys.path.insert(0, str(pathlib.Path(__file__).parent / "golden"))
from gguf_conversion import ARCHITECTURES  # noqa: E402
from make_gguf_golden import HALF_FIELDS, NORMAL, UNUSED, write_layers  # noqa: E402

FAMILIES = ["llama", "qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe_text"]
POOL_BYTES = 64 << 20
# The first half of a block multiplies all numbers, the second is subtracted: numbers of about .02, around 0.
SCALES = {Type.Q4_K: [8e-5, 6e-4], Type.Q6_K: [1.5e-5], Type.Q8_0: [2.7e-4]}


class Pools:
    """Random blocks of each type; tensors take them from another place each."""

    def __init__(self):
        self.random = np.random.default_rng(0)
        self.blocks = {}

    def tensor(self, kind, num_bytes):
        if kind not in self.blocks:
            size = gguf.GGML_QUANT_SIZES[kind][1]
            blocks = self.random.integers(0, 256, (POOL_BYTES // size, size), dtype=np.uint8)
            for at, scale in zip(HALF_FIELDS[kind], SCALES[kind]):
                blocks[:, at:at + 2] = np.frombuffer(np.float16(scale).tobytes(), dtype=np.uint8)
            self.blocks[kind] = blocks
        pool = self.blocks[kind]
        count = num_bytes // pool.shape[1]
        begin = int(self.random.integers(len(pool)))
        return np.take(pool, np.arange(begin, begin + count), axis=0, mode="wrap")


def has_more_bits(layer, num_layers):
    """llama.cpp's use_more_bits."""
    return (layer < num_layers // 8 or layer >= 7 * num_layers // 8 or (layer - num_layers // 8) % 3 == 2)


def linear_parts(config):
    """The projections of a layer with the delta rule, and its vectors."""
    hidden, v_heads = config["hidden_size"], config["linear_num_value_heads"]
    k_width = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    v_width = v_heads * config["linear_value_head_dim"]
    channels = 2 * k_width + v_width
    matrices = {"attn_qkv": (channels, hidden), "attn_gate": (v_width, hidden), "ssm_out": (hidden, v_width)}
    matrices.update({"ssm_beta": (v_heads, hidden), "ssm_alpha": (v_heads, hidden)})
    vectors = {"ssm_conv1d.weight": (channels, config["linear_conv_kernel_dim"]),
               "ssm_norm.weight": (config["linear_value_head_dim"],), "ssm_a": (v_heads,), "ssm_dt.bias": (v_heads,)}
    return matrices, vectors


def attention_parts(config):
    hidden, heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
    q_rows = heads * head_dim * (2 if "linear_num_key_heads" in config else 1)  # beside the gate of the output
    kv_rows = config["num_key_value_heads"] * head_dim
    matrices = {"attn_q": (q_rows, hidden), "attn_k": (kv_rows, hidden), "attn_v": (kv_rows, hidden),
                "attn_output": (hidden, heads * head_dim)}
    norms = {} if config["model_type"] == "llama" else {"attn_q_norm.weight": (head_dim,),
                                                        "attn_k_norm.weight": (head_dim,)}
    return matrices, norms


def mlp_parts(config):
    hidden = config["hidden_size"]
    if "num_experts_per_tok" not in config:
        width = config["intermediate_size"]
        return {"ffn_gate": (width, hidden), "ffn_up": (width, hidden), "ffn_down": (hidden, width)}, {}
    count, width = config["num_experts"], config["moe_intermediate_size"]
    matrices = {"ffn_gate_exps": (count, width, hidden), "ffn_up_exps": (count, width, hidden),
                "ffn_down_exps": (count, hidden, width)}
    vectors = {"ffn_gate_inp.weight": (count, hidden)}
    shared = config.get("shared_expert_intermediate_size", 0)
    if shared:
        matrices.update({"ffn_gate_shexp": (shared, hidden), "ffn_up_shexp": (shared, hidden),
                         "ffn_down_shexp": (hidden, shared)})
        vectors["ffn_gate_inp_shexp.weight"] = (hidden,)
    return matrices, vectors


def tensors_of(config, matrix_type):
    """Names with (shape, type)."""
    hidden, num_layers, vocab = config["hidden_size"], config["num_hidden_layers"], config["vocab_size"]
    is_hybrid = "linear_num_key_heads" in config
    low, high = matrix_type or Type.Q4_K, matrix_type or Type.Q6_K
    yield "token_embd.weight", (vocab, hidden), low
    yield "output_norm.weight", (hidden,), Type.F32
    if not config["tie_word_embeddings"]:
        yield "output.weight", (vocab, hidden), high
    for layer in range(num_layers):
        is_linear = is_hybrid and (layer + 1) % config["full_attention_interval"] != 0
        mixer, mixer_vectors = (linear_parts if is_linear else attention_parts)(config)
        mlp, mlp_vectors = mlp_parts(config)
        for part, shape in {**mixer, **mlp}.items():
            is_wide = part in ("attn_v", "ffn_down", "ffn_down_exps") and has_more_bits(layer, num_layers)
            yield f"blk.{layer}.{part}.weight", shape, high if is_wide else low
        second = "post_attention_norm" if is_hybrid else "ffn_norm"
        norms = {"attn_norm.weight": (hidden,), f"{second}.weight": (hidden,)}
        for part, shape in {**norms, **mixer_vectors, **mlp_vectors}.items():
            yield f"blk.{layer}.{part}", shape, Type.F32


def vector(name, shape, random):
    """Norms and the delta rule's factors that keep states small; the others around 0."""
    if name.endswith("norm.weight"):
        return np.ones(shape, dtype="<f4")
    if name.endswith("ssm_a"):
        return np.full(shape, -1, dtype="<f4")
    return random.standard_normal(shape).astype("<f4") * np.float32(0.02)


def write_bytes_as_tokens(writer, vocab_size):
    """GPT-2's characters for bytes, one merge since there must be some, and tokens that nothing uses."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(others))]
    used = [*characters, "ab"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*used, *(f"[{i}]" for i in range(len(used), vocab_size))])
    writer.add_token_types([NORMAL] * len(used) + [UNUSED] * (vocab_size - len(used)))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(vocab_size - 1)


def write_keys(writer, config):
    rope = config.get("rope_parameters") or {"rope_theta": config["rope_theta"]}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config.get("intermediate_size", 0))
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    writer.add_vocab_size(config["vocab_size"])
    write_bytes_as_tokens(writer, config["vocab_size"])
    write_layers(writer, {**config, "rope_parameters": rope})
    if "linear_num_key_heads" in config:
        writer.add_full_attention_interval(config["full_attention_interval"])


def read_config(folder, layers, vocab_size):
    """The text part, with fewer layers or tokens if asked."""
    whole = json.loads((folder / "config.json").read_text())
    config = {"tie_word_embeddings": whole.get("tie_word_embeddings", False), **whole.get("text_config", whole)}
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    config["num_hidden_layers"] = layers or config["num_hidden_layers"]
    config["vocab_size"] = vocab_size or config["vocab_size"]
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", type=pathlib.Path, help="a folder with a config.json")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="instead of all")
    parser.add_argument("--vocab-size", type=int, help="instead of the shape's")
    parser.add_argument("--type", choices=[kind.name for kind in SCALES], help="of all matrices, instead of Q4_K_M")
    args = parser.parse_args()
    config = read_config(args.shape, args.layers, args.vocab_size)
    if config["model_type"] not in FAMILIES:
        parser.error(f"{args.shape}: model_type is {config['model_type']}, not one of {', '.join(FAMILIES)}")
    writer = gguf.GGUFWriter(args.out, ARCHITECTURES.get(config["model_type"], config["model_type"]))
    write_keys(writer, config)
    tensors = list(tensors_of(config, args.type and Type[args.type]))
    for name, shape, kind in tensors:
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = int(np.prod(shape)) // elements * size
        stored = shape if kind == Type.F32 else (*shape[:-1], shape[-1] // elements * size)
        writer.add_tensor_info(name, stored, np.float32 if kind == Type.F32 else np.uint8, num_bytes,
                               None if kind == Type.F32 else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    pools = Pools()
    for name, shape, kind in tensors:
        if kind == Type.F32:
            writer.write_tensor_data(vector(name, shape, pools.random))
            continue
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        writer.write_tensor_data(pools.tensor(kind, int(np.prod(shape)) // elements * size))
    writer.close()
    print(f"{args.out}: {args.out.stat().st_size / 1e9:.2f} GB, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
