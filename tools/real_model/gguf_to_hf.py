#!/usr/bin/env python3
"""Converts a GGUF file of llama.cpp's llama architecture into a Hugging Face directory.

    python3 tools/real_model/gguf_to_hf.py MODEL.gguf OUT [--source TEXT] [--licence FILE]

For get_smollm2.py --hf, so it supports only what SmolLM2's file has: byte-level BPE with the "smollm"
pre-tokenizer, embeddings that are also the output head, rope without scaling. All else is refused.
Weights are dequantised to F32 and rounded to BF16, to the nearest and ties to even. llama.cpp keeps
the rows of q and k in another order (pairs of a rotation side by side); they are put back.
Written: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, generation_config.json,
NOTICE, LICENSE. The written bytes depend only on the input file.
Needs: gguf, numpy.
"""

import argparse
import json
import pathlib
import shutil
import struct
import sys

import gguf
import numpy as np

TOKEN_NORMAL, TOKEN_CONTROL = 1, 3
EXIT_FAILED = 1
NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
LAYER_NAMES = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Failure(Exception):
    """The file cannot be converted. The text is for the user."""


class Metadata:
    """The key-value part of a GGUF file."""

    def __init__(self, reader):
        self.fields = reader.fields

    def get(self, key, default=None):
        return self.fields[key].contents() if key in self.fields else default

    def __getitem__(self, key):
        if key not in self.fields:
            raise Failure(f"the file has no {key}")
        return self.get(key)

    def require(self, key, value):
        if self[key] != value:
            raise Failure(f"{key} is {self[key]!r}; this converter knows {value!r} alone")


def short_float(value):
    """1e-05, not 9.999999747378752e-06: the shortest decimal of the same float32."""
    return float(str(np.float32(value)))


def make_config(meta):
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": hidden, "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"], "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": meta["llama.rope.dimension_count"], "hidden_act": "silu",
        "max_position_embeddings": meta["llama.context_length"],
        "rms_norm_eps": short_float(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_theta": short_float(meta["llama.rope.freq_base"]), "rope_scaling": None,
        "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]), "torch_dtype": "bfloat16",
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def to_bf16(values):
    """The upper halves of float32, rounded to the nearest, ties to even, as uint16."""
    if not np.isfinite(values).all():
        raise Failure("a weight is not finite")
    bits = np.ascontiguousarray(values, dtype="<f4").view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def restore_rows(weight, num_heads):
    """llama.cpp stores a head's rows as 0, h/2, 1, h/2 + 1, ...; Hugging Face in order."""
    rows = weight.shape[0]
    pairs = weight.reshape(num_heads, rows // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def hf_name(name):
    stem = name.removesuffix(".weight")
    if stem in NAMES:
        return NAMES[stem] + ".weight"
    _, layer, part = (stem.split(".", 2) + ["", ""])[:3]
    if not stem.startswith("blk.") or part not in LAYER_NAMES:
        raise Failure(f"tensor {name} is not of a kind that this converter knows")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.weight"


def read_weights(reader, config):
    """Hugging Face's names with their BF16 values."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = restore_rows(values, heads[part])
        weights[hf_name(tensor.name)] = to_bf16(values)
    expected = len(NAMES) + len(LAYER_NAMES) * config["num_hidden_layers"]
    if len(weights) != expected:
        raise Failure(f"the file has {len(weights)} tensors, the architecture {expected}")
    return weights


def write_safetensors(path, weights):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(weights):
        end = offset + weights[name].nbytes
        header[name] = {"dtype": "BF16", "shape": list(weights[name].shape),
                        "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(weights):
            file.write(weights[name].tobytes())


def byte_level(trim_offsets):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": trim_offsets,
            "use_regex": True}


def added_token(token_id, content):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True}


def make_tokenizer(meta):
    meta.require("tokenizer.ggml.model", "gpt2")
    meta.require("tokenizer.ggml.pre", "smollm")
    meta.require("tokenizer.ggml.add_space_prefix", False)
    meta.require("tokenizer.ggml.add_bos_token", False)
    tokens, types = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    if not set(types) <= {TOKEN_NORMAL, TOKEN_CONTROL}:
        raise Failure("the vocabulary has tokens that are neither normal nor control tokens")
    if len(set(tokens)) != len(tokens):
        raise Failure("the vocabulary has a token twice")
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added_token(i, token) for i, token in enumerate(tokens)
                         if types[i] == TOKEN_CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, byte_level(True)]},
        "post_processor": None,
        "decoder": byte_level(True),
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": meta["tokenizer.ggml.merges"],
        },
    }


def make_tokenizer_config(meta, tokenizer, config):
    tokens = meta["tokenizer.ggml.tokens"]
    flags = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
    return {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(token["id"]): {flag: token[flag] for flag in flags}
                                 for token in tokenizer["added_tokens"]},
        "bos_token": tokens[config["bos_token_id"]],
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[config["eos_token_id"]],
        "model_max_length": config["max_position_embeddings"],
        "pad_token": tokens[config["pad_token_id"]],
        # Not GPT2Tokenizer, which transformers 5 rebuilds without splitting digits.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }


def make_generation_config(config):
    """A GGUF has no sampling parameters; without any, transformers decodes greedily."""
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    return ids | {"do_sample": False}


def make_notice(meta, gguf_path, source):
    return f"""{meta['general.organization']} {gguf_path.stem}
Licence: {meta['general.license']} (see LICENSE), from HuggingFaceTB/SmolLM2-135M-Instruct, whose authors
made and trained the model.

Converted by Sluice's tools/real_model/gguf_to_hf.py from {gguf_path.name} of
{source}.

Changes: the GGUF's weights are quantised to 4 bits (embeddings: 8). They were dequantised and rounded
to BF16, and the rows of q and k put back into Hugging Face's order. So this is not the published BF16
model but that quantisation of it: answers are a little worse. tokenizer.json and the configuration
files were written anew from the GGUF's metadata.
"""


def dump(path, document):
    text = json.dumps(document, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def convert(gguf_path, out, source):
    reader = gguf.GGUFReader(gguf_path)
    meta = Metadata(reader)
    meta.require("general.architecture", "llama")
    config, tokenizer = make_config(meta), make_tokenizer(meta)
    weights = read_weights(reader, config)
    out.mkdir(parents=True)
    dump(out / "config.json", config)
    dump(out / "tokenizer.json", tokenizer)
    dump(out / "tokenizer_config.json", make_tokenizer_config(meta, tokenizer, config))
    dump(out / "generation_config.json", make_generation_config(config))
    (out / "NOTICE").write_text(make_notice(meta, gguf_path, source), encoding="utf-8")
    write_safetensors(out / "model.safetensors", weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, help="directory to make; must not exist")
    parser.add_argument("--source", default="an unknown source", help="where the file is from")
    parser.add_argument("--licence", type=pathlib.Path, help="file to copy as LICENSE")
    args = parser.parse_args()
    try:
        convert(args.gguf, args.out, args.source)
        if args.licence:
            shutil.copyfile(args.licence, args.out / "LICENSE")
    except (Failure, OSError, ValueError) as error:
        print(f"gguf_to_hf: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
