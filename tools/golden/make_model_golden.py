#!/usr/bin/env python3
"""Makes tiny random models and their results with transformers, for tests/engine/golden_test.cc.

Each model has bf16 weights; the oracle runs the same weights in float32, so that the difference is
Sluice's own rounding error. Written per model: config.json, model.safetensors (bf16), golden.safetensors
(logits f32 [prompt, vocab]) and golden.json (prompt ids, greedy continuation, versions); of a mixture of experts
also router.safetensors: inputs of the first router, and what it makes of them; of models of LAYERED layers.safetensors:
what tools/align/compare_layers.py takes out of layers, of the prompt's first rows, and transformers' error in bf16.

Usage: python3 tools/golden/make_model_golden.py [--out tests/golden/models] [--layers-only] [NAME ...]
Needs: torch, transformers, safetensors (see requirements in the golden.json files).
"""

import argparse
import json
import pathlib
import platform
import sys

import torch
import transformers
from safetensors.torch import save_file

VOCAB = 160
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "align"))
import compare_layers  # noqa: E402

LAYERED = ("qwen35-hybrid-nested",)
LAYER_ROWS = 24
PROMPT_TOKENS = {"qwen35-hybrid-chunks": 200}  # others: 80
GREEDY_TOKENS = 24

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    max_position_embeddings=512,
    rms_norm_eps=1e-6,
    initializer_range=0.12,  # large enough that greedy choices are rarely near ties
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=None,
)

LLAMA3_ROPE = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=32)
YARN_ROPE = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)

# name -> (model type, heads, kv heads, head_dim, tied, rope scaling), and its special settings
MODELS = {
    "qwen3-group2-tied": ("qwen3", 4, 2, 32, True, None),
    "qwen3-group1-untied": ("qwen3", 2, 2, 64, False, None),
    "qwen3-group4-yarn": ("qwen3", 4, 1, 32, True, YARN_ROPE),
    "qwen2-group7-tied": ("qwen2", 7, 1, 16, True, None),
    "qwen2-group2-yarn": ("qwen2", 4, 2, 16, False, YARN_ROPE),
    "llama-group4-llama3": ("llama", 4, 1, 16, True, LLAMA3_ROPE),
    "llama-group2-linear": ("llama", 4, 2, 16, False, dict(rope_type="linear", factor=4.0)),
    "llama-group1-default": ("llama", 4, 4, 16, False, None),
    # Sizes that vector widths and tiles do not divide. The first is karpathy/tinyllamas' stories260K.
    "llama-heads8-tied": ("llama", 8, 4, 8, True, None),
    "qwen3-heads22-untied": ("qwen3", 3, 1, 22, False, None),
    "qwen2-heads10-llama3": ("qwen2", 5, 5, 10, True, LLAMA3_ROPE),
    # Mixtures of experts. With shares that are not normalised outputs are small.
    "mixtral-experts4": ("mixtral", 4, 2, 16, False, None),
    "qwen2moe-experts6": ("qwen2_moe", 4, 2, 12, False, None),
    "qwen3moe-experts8": ("qwen3_moe", 4, 2, 16, False, None),
    "qwen3moe-experts8-pair": ("qwen3_moe", 4, 1, 16, False, None),
    # Hybrids. Odd numbers of heads; the first rotates 8 of 32 channels, the second 6 of 24 (padded to 32) and is
    # nested in a model of text and pictures, the third has heads of the published width, the fourth has YaRN over 16
    # of 64 channels. The fifth has all heads of published widths, and a prompt of three chunks of 64 rows: what a GPU
    # has kernels of tensor cores for.
    "qwen3next-hybrid-experts6": ("qwen3_next", 3, 1, 32, False, None),
    "qwen35-hybrid-nested": ("qwen3_5", 6, 2, 24, False, None),
    "qwen35-hybrid-wide": ("qwen3_5_text", 2, 1, 256, True, None),
    "qwen35-hybrid-yarn": ("qwen3_5_text", 4, 2, 64, True, YARN_ROPE),
    "qwen35-hybrid-chunks": ("qwen3_5_text", 2, 1, 256, True, None),
    "qwen35moe-hybrid-experts8": ("qwen3_5_moe", 5, 5, 16, False, None),
}


def delta(k_heads, v_heads, k_dim, v_dim):
    return dict(linear_num_key_heads=k_heads, linear_num_value_heads=v_heads, linear_key_head_dim=k_dim,
                linear_value_head_dim=v_dim, linear_conv_kernel_dim=4)


OWN = {
    "llama-heads8-tied": dict(intermediate_size=172),
    "qwen3-heads22-untied": dict(hidden_size=50, intermediate_size=77, vocab_size=163),
    "qwen2-heads10-llama3": dict(intermediate_size=31),
    "mixtral-experts4": dict(hidden_size=48, intermediate_size=28, num_local_experts=4,
                             num_experts_per_tok=2, sliding_window=None),
    "qwen2moe-experts6": dict(moe_intermediate_size=20, num_experts=6, num_experts_per_tok=2,
                              shared_expert_intermediate_size=36),
    # Layers 1 and 3 have experts.
    "qwen3moe-experts8": dict(hidden_size=44, intermediate_size=52, moe_intermediate_size=21,
                              num_hidden_layers=4, num_experts=8, num_experts_per_tok=3,
                              norm_topk_prob=False, decoder_sparse_step=2),
    "qwen3moe-experts8-pair": dict(hidden_size=48, moe_intermediate_size=24, num_hidden_layers=4,
                                   num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
                                   mlp_only_layers=[1]),
    "qwen3next-hybrid-experts6": dict(num_hidden_layers=5, full_attention_interval=3, num_experts=6,
                                      num_experts_per_tok=2, moe_intermediate_size=20,
                                      shared_expert_intermediate_size=28, norm_topk_prob=True,
                                      mlp_only_layers=[1], **delta(3, 9, 12, 20)),
    "qwen35-hybrid-nested": dict(num_hidden_layers=4, hidden_size=60, **delta(5, 5, 20, 12)),
    "qwen35-hybrid-wide": dict(num_hidden_layers=3, layer_types=["full_attention"] + 2 * ["linear_attention"],
                               **delta(1, 3, 32, 32)),
    "qwen35-hybrid-yarn": dict(num_hidden_layers=4, layer_types=["linear_attention", "full_attention"] * 2,
                               **delta(2, 4, 16, 16)),
    "qwen35-hybrid-chunks": dict(num_hidden_layers=3,
                                 layer_types=["linear_attention", "full_attention", "linear_attention"],
                                 **delta(1, 2, 128, 128)),
    "qwen35moe-hybrid-experts8": dict(num_hidden_layers=4, num_experts=8, num_experts_per_tok=3,
                                      moe_intermediate_size=20, shared_expert_intermediate_size=28,
                                      layer_types=["linear_attention", "full_attention"] * 2, **delta(2, 6, 16, 8)),
}
CLASSES = {
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "qwen2_moe": (transformers.Qwen2MoeConfig, transformers.Qwen2MoeForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "qwen3_next": (transformers.Qwen3NextConfig, transformers.Qwen3NextForCausalLM),
    "qwen3_5_text": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
    "qwen3_5": (transformers.Qwen3_5Config, transformers.Qwen3_5ForConditionalGeneration),
    "qwen3_5_moe": (transformers.Qwen3_5MoeConfig, transformers.Qwen3_5MoeForConditionalGeneration),
}
NESTED = ("qwen3_5", "qwen3_5_moe")
# Of a model that is never shown a picture.
VISION = dict(depth=1, hidden_size=16, num_heads=2, intermediate_size=16, patch_size=2, num_position_embeddings=16)


def make_hybrid_config(name):
    kind, heads, kv_heads, head_dim, tied, scaling = MODELS[name]
    settings = COMMON | OWN[name]
    rope = dict(scaling or dict(rope_type="default"), rope_theta=10000.0, partial_rotary_factor=0.25)
    text = dict(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, rope_parameters=rope,
                tie_word_embeddings=tied, **settings)
    if kind not in NESTED:
        return CLASSES[kind][0](**text)
    pairs = head_dim // 8
    rope["mrope_section"] = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    return CLASSES[kind][0](text_config=text, tie_word_embeddings=tied,
                            vision_config=VISION | dict(out_hidden_size=settings["hidden_size"]))


def randomize_hybrid(model):
    """Weights that hide nothing: no norm is neutral, some heads forget soon and others late."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            if name.endswith("linear_attn.norm.weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif "norm" in name:  # stored as what is added to one
                parameter.copy_(0.3 * noise)
            elif name.endswith("A_log") or name.endswith("dt_bias"):
                parameter.copy_(noise)
            elif "conv1d" in name:
                parameter.copy_(0.5 * noise)


def make_model(name):
    kind, heads, kv_heads, head_dim, tied, rope = MODELS[name]
    config_class, model_class = CLASSES[kind]
    if "hybrid" in name:
        config = make_hybrid_config(name)
        config.get_text_config()._experts_implementation = "eager"
        torch.manual_seed(sum(map(ord, name)))
        model = model_class(config)
        randomize_hybrid(model)
        return model.to(torch.bfloat16)
    rope_parameters = dict(rope or dict(rope_type="default"), rope_theta=10000.0)
    config = config_class(num_attention_heads=heads, num_key_value_heads=kv_heads,
                          tie_word_embeddings=tied, rope_parameters=rope_parameters,
                          **(COMMON | OWN.get(name, {})))
    if not kind.startswith("qwen2"):
        config.head_dim = head_dim
    else:
        config.hidden_size = heads * head_dim  # Qwen2 has no head_dim of its own
    config._experts_implementation = "eager"  # grouped products do not take odd sizes
    torch.manual_seed(sum(map(ord, name)))
    model = model_class(config)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:  # a norm weight of one would hide a missing norm weight
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
    return model.to(torch.bfloat16)


def write_router(model, prompt, directory):
    """Inputs rounded to bf16, as Sluice's are; the router in float32."""
    router = next((m for m in model.modules() if type(m).__name__.endswith("TopKRouter")), None)
    if router is None:
        return
    inputs = []
    hook = router.register_forward_hook(lambda _, args, out: inputs.append(args[0]))
    model(prompt)
    hook.remove()
    x = inputs[0].reshape(-1, inputs[0].shape[-1]).to(torch.bfloat16)
    logits, shares, experts = router(x.float())
    probabilities = torch.softmax(logits, dim=-1)
    save_file({"x": x, "probabilities": probabilities, "shares": shares.float().contiguous(),
               "experts": experts.to(torch.int32).contiguous(),
               "weight": router.weight.to(torch.bfloat16)}, directory / "router.safetensors")


def write_layers(directory):
    """Of a model that is written, with its prompt."""
    prompt = json.loads((directory / "golden.json").read_text())["prompt"]
    oracle, rounded = (compare_layers.run_transformers(directory, prompt, dtype)
                       for dtype in (torch.float32, torch.bfloat16))
    # Heads of delta_out lie in rows of all heads there.
    rows = {name: tensor.reshape(len(prompt), -1) for name, tensor in oracle.items() if name.startswith("layer.")}
    errors = {name: f"{compare_layers.nmse(rounded[name].reshape(tensor.shape), tensor):.3e}"
              for name, tensor in rows.items()}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    save_file({name: tensor[:LAYER_ROWS].contiguous() for name, tensor in rows.items()},
              directory / "layers.safetensors", metadata=errors | versions)


def write_golden(name, out):
    model = make_model(name)
    directory = out / name
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    for extra in ("generation_config.json",):
        (directory / extra).unlink(missing_ok=True)
    prompt = torch.randint(2, VOCAB, (1, PROMPT_TOKENS.get(name, 80)),
                           generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        bf16_logits = model.eval()(prompt).logits[0].float()
        oracle = model.to(torch.float32)
        write_router(oracle, prompt, directory)
        logits = oracle(prompt).logits[0]
        ids = prompt
        greedy, margins = [], []
        for _ in range(GREEDY_TOKENS):
            last = torch.log_softmax(oracle(ids).logits[0, -1], dim=-1)
            top = last.topk(2)
            greedy.append(int(top.indices[0]))
            margins.append(float(top.values[0] - top.values[1]))
            ids = torch.cat([ids, top.indices[:1][None]], dim=1)
    save_file({"logits": logits.contiguous()}, directory / "golden.safetensors")
    (directory / "golden.json").write_text(json.dumps({
        "made_by": "tools/golden/make_model_golden.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "prompt": prompt[0].tolist(),
        "greedy": greedy,
        # The error of transformers in bf16: the bound for Sluice's error.
        "bf16_nmse": float(((bf16_logits - logits) ** 2).sum() / (logits ** 2).sum()),
        "margins": [round(m, 4) for m in margins],
    }, indent=1) + "\n")
    if name in LAYERED:
        write_layers(directory)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[2] / "tests/golden/models")
    parser.add_argument("--layers-only", action="store_true", help="layers.safetensors of models that are written")
    parser.add_argument("names", nargs="*", help="models to make; none: all")
    args = parser.parse_args()
    for name in args.names or (LAYERED if args.layers_only else MODELS):
        write_layers(args.out / name) if args.layers_only else write_golden(name, args.out)
        print(name)


if __name__ == "__main__":
    main()
