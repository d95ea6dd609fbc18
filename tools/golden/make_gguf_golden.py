#!/usr/bin/env python3
"""Makes small GGUF files and what they stand for, for the tests of GGUF.

    python3 tools/golden/make_gguf_golden.py [--out tests/golden/gguf]

Written:
- NAME.gguf of models of tests/golden/models: the same bf16 weights under llama.cpp's names, with its order
  of the rows of q and k (llama) and Llama 3's rope scaling as divisors; qwen2's in two files. Of mixtures
  and hybrids with all that its converter changes: one tensor of all experts, 1 + w for norms, -exp(A_log),
  value heads in another order, rows of in_proj_qkvz sorted (but for the first layer, as old files have it).
- mixed.gguf: one layer with a tensor of every type that Sluice reads, random blocks; and mixed/, the
  Hugging Face directory of the same model, whose F32 weights `gguf.quants.dequantize` has made.
- mixed-hybrid.gguf and mixed-hybrid/: the same of a hybrid with experts, as Ollama writes its keys, with a
  part for pictures and a layer that drafts.
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
from gguf_conversion import ARCHITECTURES, convert, gguf_name, heads_of, hf_names, permute, untile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/golden/models"
TOKENIZERS = ROOT / "tests/golden/tokenizer"
HALF_FIELDS = {Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
               Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}
# llama.cpp's converter keeps these matrices in F32.
F32_PARTS = ("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")
CONTROL, NORMAL, USER_DEFINED, UNUSED = 3, 1, 4, 5
LAYER_MODELS = ("mixtral-experts4", "qwen2moe-experts6", "qwen3moe-experts8", "qwen3moe-experts8-pair",
                "qwen35-hybrid-nested", "qwen35moe-hybrid-experts8", "qwen3next-hybrid-experts6")
PRES = {"llama3": "llama-bpe", "qwen": "qwen2", "qwen35": "qwen35", "smollm2": "smollm", "gpt2": "gpt-2"}


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


def unpermute(rows, num_heads):
    return (rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
            .swapaxes(1, 2).reshape(rows.shape))


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
    if config["model_type"] not in ("qwen2", "qwen2_moe"):  # which have no such keys in real files
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


def to_f32(data, shape):
    return (np.frombuffer(data, dtype="<u2").astype("<u4") << 16).view("<f4").reshape(shape)


def write_layers(writer, config):
    """The keys of mixtures and hybrids."""
    arch = ARCHITECTURES.get(config["model_type"], config["model_type"])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        if arch != "llama":
            writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        if "shared_expert_intermediate_size" in config:
            writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
        if config.get("norm_topk_prob", True) == (arch == "qwen2moe"):  # other than llama.cpp's own
            writer.add_expert_weights_norm(config["norm_topk_prob"])
    if "linear_num_key_heads" not in config:
        return
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
    rotary = int(config["head_dim"] * config["rope_parameters"]["partial_rotary_factor"])
    writer.add_rope_dimension_count(rotary)
    if arch != "qwen3next":
        sections = config["rope_parameters"].get("mrope_section", [11, 11, 10])
        writer.add_rope_dimension_sections([*sections, 0])


def write_layer_types(writer, config):
    if "layer_types" not in config or "linear_num_key_heads" not in config:
        return
    is_linear = [kind == "linear_attention" for kind in config["layer_types"]]
    for interval in range(2, 5):
        if is_linear == [(i + 1) % interval != 0 for i in range(len(is_linear))]:
            writer.add_full_attention_interval(interval)
            return
    writer.add_array(f"{ARCHITECTURES[config['model_type']]}.attention.recurrent_layers", is_linear)


def add_bf16(writer, name, values):
    """A tensor of bf16 numbers as llama.cpp stores it: vectors and some matrices in F32."""
    if values.ndim == 1 or name.endswith(F32_PARTS):
        writer.add_tensor(name, np.ascontiguousarray(values, dtype="<f4"))
        return
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4") >> 16
    writer.add_tensor(name, np.ascontiguousarray(bits.astype("<u2")).view(np.uint8), raw_dtype=Type.BF16)


def make_layers(out, name):
    """A mixture or hybrid of tests/golden/models."""
    config = json.loads((MODELS / name / "config.json").read_text())
    config = config.get("text_config", config)
    tensors = {hf.replace("model.language_model.", "model."): to_f32(data, shape)
               for hf, (_, shape, data) in sorted(read_safetensors(MODELS / name / "model.safetensors").items())
               if not hf.startswith("model.visual.")}
    writer = gguf.GGUFWriter(out / f"{name}.gguf", ARCHITECTURES[config["model_type"]])
    write_config(writer, config)
    write_layers(writer, config)
    write_layer_types(writer, config)
    for own, values in convert(tensors, config, fused=name.endswith("pair")).items():
        add_bf16(writer, own, values)
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


MIXED_HYBRID = {
    "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 16,
    "intermediate_size": 64, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    "bos_token_id": 0, "eos_token_id": 1, "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 64,
    "linear_conv_kernel_dim": 4, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}}
# Two value heads share a block of 256 columns of ssm_out.
MIXED_HYBRID_TYPES = {
    "token_embd": (16, 64, Type.Q8_0), "blk.0.attn_qkv": (320, 64, Type.Q4_0), "blk.0.attn_gate": (256, 64, Type.Q5_0),
    "blk.0.ssm_beta": (4, 64, Type.Q8_0), "blk.0.ssm_alpha": (4, 64, Type.Q5_1), "blk.0.ssm_out": (64, 256, Type.Q4_K),
    "blk.1.attn_q": (128, 64, Type.Q4_1), "blk.1.attn_k": (32, 64, Type.Q5_0), "blk.1.attn_v": (32, 64, Type.Q8_0),
    "blk.1.attn_output": (64, 64, Type.Q4_0),
}
MIXED_EXPERT_TYPES = {"ffn_gate_exps": (3, 32, 64, Type.Q4_0), "ffn_up_exps": (3, 32, 64, Type.Q5_1),
                      "ffn_down_exps": (3, 64, 32, Type.Q8_0), "ffn_gate_shexp": (32, 64, Type.Q8_0),
                      "ffn_up_shexp": (32, 64, Type.Q4_1), "ffn_down_shexp": (64, 32, Type.Q5_0)}


def mixed_hybrid_vectors(random):
    """Names of Hugging Face with numbers of bf16, which the file has in F32."""
    lengths = {"model.norm.weight": (64,), "model.layers.0.linear_attn.A_log": (4,),
               "model.layers.0.linear_attn.dt_bias": (4,), "model.layers.0.linear_attn.norm.weight": (64,),
               "model.layers.0.linear_attn.conv1d.weight": (320, 1, 4), "model.layers.1.self_attn.q_norm.weight": (32,),
               "model.layers.1.self_attn.k_norm.weight": (32,)}
    for layer in range(2):
        for part, shape in {"input_layernorm": (64,), "post_attention_layernorm": (64,), "mlp.gate": (3, 64),
                            "mlp.shared_expert_gate": (1, 64)}.items():
            lengths[f"model.layers.{layer}.{part}.weight"] = shape
    draw = {name: random.standard_normal(shape).astype("<f4") * np.float32(0.3) for name, shape in lengths.items()}
    return {name: (values.view("<u4") >> 16 << 16).view("<f4") for name, values in draw.items()}


def add_mixed_hybrid_matrices(writer, random, expected):
    kinds = dict(MIXED_HYBRID_TYPES)
    for layer in range(2):
        kinds.update({f"blk.{layer}.{name}": kind for name, kind in MIXED_EXPERT_TYPES.items()})
    for own, (*shape, kind) in kinds.items():
        blocks = random_blocks(random, math.prod(shape[:-1]), shape[-1], kind)
        writer.add_tensor(f"{own}.weight", blocks.reshape(*shape[:-1], -1), raw_dtype=kind)
        values = gguf.quants.dequantize(blocks, kind).reshape(shape)
        if own == "token_embd":
            expected["model.embed_tokens.weight"] = values
            continue
        _, layer, part = own.split(".")
        if part.endswith("_exps"):
            name = f"{part.split('_')[1]}_proj.weight"
            for expert in range(shape[0]):
                expected[f"model.layers.{layer}.mlp.experts.{expert}.{name}"] = values[expert]
            continue
        hf = f"{hf_names()[part]}.weight"
        if hf.startswith("linear_attn."):
            values = untile(values, hf[len("linear_attn."):], MIXED_HYBRID)
        expected[f"model.layers.{layer}.{hf}"] = values


def make_mixed_hybrid(out):
    """Keys as Ollama writes them: KV heads of each layer, three sections, ssm_dt without an ending, pictures in the
    same file. The last layer drafts."""
    random, expected = np.random.default_rng(9), {}
    writer = gguf.GGUFWriter(out / "mixed-hybrid.gguf", "qwen35moe")
    config = {**MIXED_HYBRID, "num_hidden_layers": 3, "num_key_value_heads": [0, 1, 1]}
    write_config(writer, config)
    write_layers(writer, {**config, "rope_parameters": {**config["rope_parameters"], "mrope_section": [2, 1]}})
    writer.add_uint32("qwen35moe.nextn_predict_layers", 1)
    writer.add_bool("qwen35moe.ssm.v_head_reordered", True)
    writer.add_bool("qwen35moe.norm_top_k_prob", True)
    writer.add_uint32("qwen35moe.vision.block_count", 1)
    add_mixed_hybrid_matrices(writer, random, expected)
    for name, values in mixed_hybrid_vectors(random).items():
        expected[name] = values
        for own, converted in convert({name: values}, MIXED_HYBRID).items():
            own = own.replace("ssm_dt.bias", "ssm_dt")
            if own.endswith("ffn_gate_inp_shexp.weight"):
                converted = converted[0] if own.startswith("blk.0.") else converted  # with and without a dimension of 1
            writer.add_tensor(own, np.ascontiguousarray(converted))
    for own, shape in {"v.blk.0.attn_q.weight": (4, 4), "blk.2.nextn.eh_proj.weight": (2, 4),
                       "blk.2.attn_norm.weight": (4,), "blk.2.ffn_up_exps.weight": (2, 2, 4)}.items():
        writer.add_tensor(own, np.zeros(shape, dtype="<f4"))
    finish(writer)
    (out / "mixed-hybrid").mkdir(exist_ok=True)
    (out / "mixed-hybrid/config.json").write_text(json.dumps(MIXED_HYBRID, indent=2) + "\n")
    write_safetensors(out / "mixed-hybrid/model.safetensors", expected)


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
    for name in LAYER_MODELS:
        make_layers(out, name)
    make_mixed(out)
    make_mixed_hybrid(out)
    for family in PRES:
        make_tokenizer(out, family)


if __name__ == "__main__":
    main()
