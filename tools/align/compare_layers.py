#!/usr/bin/env python3
"""Compares every layer of Sluice with transformers, to find where the first difference arises.

Three runs of the same tokens through the same bf16 weights:
  oracle     transformers computing in float32: the reference
  yardstick  transformers computing in bfloat16: the rounding error of a correct implementation
  Sluice     `sluice trace --taps '*'`
Printed per tensor: the normalised mean square error against the oracle, sum (x - o)^2 / sum o^2, of
Sluice and of the yardstick, and the position where Sluice is worst. A row is flagged, and the exit
status is 1, where Sluice's error is more than twice the yardstick's. A wrong kernel shows as the
first flagged row; rounding alone grows slowly from layer to layer in both columns.

Usage, in a build directory with the program:
  python3 tools/align/compare_layers.py --model models/needle --sluice build/release/sluice \\
      --prompt "Once upon a time"
  python3 tools/align/compare_layers.py --model tests/golden/models/* --sluice build/release/sluice
Without --tokens, --prompt or --file: --num-tokens random ids from --seed.
Exit status: 0 aligned, 1 some tensor is not, 2 usage or a program that failed.
Needs: torch, transformers 5, safetensors. Knows Qwen3, Qwen2, Llama and the hybrids Qwen3-Next and Qwen3.5.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

FLAG_FACTOR = 2.0
EXIT_FAILED = 2
TAPS_OF_A_LAYER = ["residual", "q", "k", "v", "attn_out", "attn_proj", "delta_out", "delta_proj", "mlp_out"]


class Failure(Exception):
    """The comparison could not be made. The text is for the user."""


class Recorder:
    """Hooks into a transformers model that put its inner tensors under Sluice's names."""

    def __init__(self, model):
        self.taps = {}
        base, config = getattr(model.model, "language_model", model.model), model.config.get_text_config()
        self.head_dim = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads)
        base.embed_tokens.register_forward_hook(lambda _, args, out: self.put("embedding", out))
        base.norm.register_forward_hook(lambda _, args, out: self.put("final_norm", out))
        self.attending = []
        for i, layer in enumerate(base.layers):
            self.hook_layer(f"layer.{i}", layer)
        self.wrap_rope(sys.modules[type(model).__module__])

    def hook_layer(self, name, layer):
        layer.input_layernorm.register_forward_pre_hook(
            lambda _, args: self.put(f"{name}.residual", args[0]))
        layer.mlp.register_forward_hook(
            lambda _, args, out: self.put(f"{name}.mlp_out", out[0] if isinstance(out, tuple) else out))
        if hasattr(layer, "linear_attn"):
            self.hook_delta(name, layer.linear_attn)
        else:
            self.hook_attention(name, layer.self_attn)

    def hook_delta(self, name, delta):
        delta.norm.register_forward_pre_hook(
            lambda _, args: self.taps.update({f"{name}.delta_out": args[0].detach().float().clone()}))
        delta.out_proj.register_forward_hook(lambda _, args, out: self.put(f"{name}.delta_proj", out))

    def hook_attention(self, name, attention):
        self.attending.append(name)
        attention.v_proj.register_forward_hook(
            lambda _, args, out: self.put_heads(f"{name}.v", out))
        if attention.q_proj.out_features == attention.o_proj.in_features:  # else it has a gate there
            attention.o_proj.register_forward_pre_hook(
                lambda _, args: self.put_heads(f"{name}.attn_out", args[0]))
        attention.o_proj.register_forward_hook(
            lambda _, args, out: self.put(f"{name}.attn_proj", out))

    def wrap_rope(self, module):
        """q and k after rope exist only inside attention's forward: wrap the function it calls."""
        self.module, self.rope = module, module.apply_rotary_pos_emb
        self.num_rope_calls = 0

        def recording_rope(q, k, *args, **kwargs):
            q, k = self.rope(q, k, *args, **kwargs)
            name = self.attending[self.num_rope_calls % len(self.attending)]
            self.num_rope_calls += 1
            self.put(f"{name}.q", q.transpose(1, 2))
            self.put(f"{name}.k", k.transpose(1, 2))
            return q, k

        module.apply_rotary_pos_emb = recording_rope

    def unwrap_rope(self):
        self.module.apply_rotary_pos_emb = self.rope

    def put(self, name, tensor):
        self.taps[name] = tensor[0].detach().float().clone()

    def put_heads(self, name, tensor):
        self.put(name, tensor.unflatten(-1, (-1, self.head_dim)))


def run_transformers(model_dir, token_ids, dtype):
    """All taps and logits of one forward pass, as float32."""
    config = transformers.AutoConfig.from_pretrained(model_dir)
    nested = hasattr(config, "text_config")
    family = transformers.AutoModelForImageTextToText if nested else transformers.AutoModelForCausalLM
    model = family.from_pretrained(model_dir, dtype=dtype, experts_implementation="eager").eval()
    recorder = Recorder(model)
    with torch.no_grad():
        logits = model(torch.tensor([token_ids]), use_cache=False).logits
    recorder.unwrap_rope()
    recorder.put("logits", logits)
    if recorder.num_rope_calls != len(recorder.attending):
        raise Failure(f"{type(model).__name__} rotates elsewhere than in apply_rotary_pos_emb")
    return recorder.taps


def kv_cache_bytes(config, num_tokens):
    """Bytes of KV for the traced sequence; without a limit an engine takes most of the memory."""
    heads = config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return config.num_hidden_layers * 2 * heads * head_dim * 2 * (num_tokens + 1024)


def cache_size(config, num_tokens, extra):
    """The option that limits resident KV; `extra` may set those of offloaded KV."""
    if any(word.startswith("--kv-offload") and word != "--kv-offload=off" for word in extra):
        return []
    return ["--kv-offload=off", "--kv-cache-bytes", str(kv_cache_bytes(config, num_tokens))]


def run_sluice(program, model_dir, token_ids, extra):
    config = transformers.AutoConfig.from_pretrained(model_dir).get_text_config()
    with tempfile.TemporaryDirectory() as directory:
        out = pathlib.Path(directory) / "trace.safetensors"
        done = subprocess.run([program, "trace", "--model", str(model_dir), "--out", str(out),
                               "--tokens", ",".join(map(str, token_ids)), "--taps", "*",
                               "--max-model-len", str(len(token_ids) + 1),
                               *cache_size(config, len(token_ids), extra), *extra],
                              capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failure(f"{program} trace ended with {done.returncode}: {done.stderr.strip()}")
        return load_file(out)


def nmse(x, oracle):
    power = oracle.double().square().sum()
    error = (x.double() - oracle.double()).square().sum()
    return float(error / power) if power > 0 else float(error)


def worst_position(x, oracle):
    """The position with the largest share of the error; "-" where there is none."""
    error = (x - oracle).square().flatten(1).sum(dim=1)
    return str(int(error.argmax())) if float(error.max()) > 0 else "-"


def tap_groups(oracle, num_layers):
    yield "embedding", ["embedding"]
    for i in range(num_layers):
        names = [f"layer.{i}.{tap}" for tap in TAPS_OF_A_LAYER]
        yield f"layer {i}", [name for name in names if name in oracle]
    yield "end", ["final_norm", "logits"]


def compare(model_dir, token_ids, args):
    """Prints the tables of one model; returns the names of the flagged tensors."""
    sluice = run_sluice(args.sluice, model_dir, token_ids, args.sluice_args)
    oracle = run_transformers(model_dir, token_ids, torch.float32)
    yardstick = run_transformers(model_dir, token_ids, torch.bfloat16)
    num_layers = 1 + max(int(name.split(".")[1]) for name in oracle if name.startswith("layer."))
    print(f"{model_dir}: {len(token_ids)} tokens; NMSE against transformers in float32\n")
    flagged = []
    for title, names in tap_groups(oracle, num_layers):
        print(f"{title:<10} {'Sluice':>9} {'hf bf16':>9} {'ratio':>6}  worst position")
        for name in names:
            if name.endswith(".delta_out"):  # heads by transformers, rows of all heads here
                sluice[name] = sluice[name].reshape(oracle[name].shape)
                yardstick[name] = yardstick[name].reshape(oracle[name].shape)
            if sluice[name].shape != oracle[name].shape:
                raise Failure(f"{name} has shape {list(sluice[name].shape)}, "
                              f"with transformers {list(oracle[name].shape)}")
            ours, theirs = nmse(sluice[name], oracle[name]), nmse(yardstick[name], oracle[name])
            bad = not ours <= FLAG_FACTOR * theirs  # so that NaN counts as bad
            flagged += [name] * bad
            ratio = f"{ours / theirs:6.2f}" if theirs > 0 else "     -"
            print(f"{name.split('.')[-1]:<10} {ours:9.2e} {theirs:9.2e} {ratio}  "
                  f"{worst_position(sluice[name], oracle[name]):>5}{'  <-- too far' * bad}")
        print()
    same = float((sluice["logits"].argmax(-1) == oracle["logits"].argmax(-1)).float().mean())
    print(f"most likely token equal at {100 * same:.2f} % of the positions")
    print(f"{len(flagged)} tensors too far: {', '.join(flagged)}\n" if flagged else "aligned\n")
    return flagged


def choose_tokens(model_dir, args):
    if args.tokens:
        return args.tokens
    if args.prompt or args.file:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
        return tokenizer.encode(args.prompt or args.file.read_text())[:args.num_tokens]
    config = json.loads((model_dir / "config.json").read_text())
    vocab = config.get("text_config", config)["vocab_size"]
    generator = torch.Generator().manual_seed(args.seed)
    return torch.randint(2, vocab, (args.num_tokens,), generator=generator).tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, nargs="+", required=True)
    parser.add_argument("--sluice", default="build/release/sluice", help="the program")
    parser.add_argument("--tokens", type=lambda text: [int(i) for i in text.split(",")])
    parser.add_argument("--prompt")
    parser.add_argument("--file", type=pathlib.Path)
    parser.add_argument("--num-tokens", type=int, default=100,
                        help="at most this many of a text, this many random ones (%(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("sluice_args", nargs="*", help="after --: options for sluice trace")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        flagged = [compare(model, choose_tokens(model, args), args) for model in args.model]
    except (Failure, OSError) as error:
        print(f"compare_layers: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 1 if any(flagged) else 0


if __name__ == "__main__":
    sys.exit(main())
