"""One layer of a tiny Llama whose weights are quantized: what make_integer_golden.py and make_fp8_golden.py share.

    python3 tools/golden/quantized_layer.py DIR...

Records the logits of directories that `write` made, as both programs do at their end: golden.safetensors has those of
transformers in F32 with the weights of expected.safetensors, golden.json the prompt and the error of transformers
itself when it runs in bf16: of rows the median, since random weights of 8 bits make scores so large that softmax is
nearly a choice, and where two keys are nearly tied, any rounding may choose the other one.
Needs: torch, transformers, safetensors.
"""

import argparse
import json
import pathlib
import platform

import torch
from safetensors.torch import load_file, save_file

PROMPT_TOKENS = 60
# One head of 32; a program may go over the sizes.
CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 32,
          "max_position_embeddings": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
          "num_hidden_layers": 1, "rms_norm_eps": 1e-6, "vocab_size": 32, "tie_word_embeddings": True,
          "bos_token_id": 1, "eos_token_id": 2}


def matrices(config):
    """N, K of each matrix of the layer."""
    hidden, width, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    return {"self_attn.q_proj": (head, hidden), "self_attn.k_proj": (head, hidden),
            "self_attn.v_proj": (head, hidden), "self_attn.o_proj": (hidden, head),
            "mlp.gate_proj": (width, hidden), "mlp.up_proj": (width, hidden), "mlp.down_proj": (hidden, width)}


def random_scales(shape, generator, dtype):
    return (torch.rand(shape, generator=generator) * 0.02 + 0.001).to(dtype)


def write(directory, quantization, make, sizes=None):
    """Writes config.json, model.safetensors and expected.safetensors, which has the weights in F32. `make(n, k,
    generator)` gives the tensors of a module and the weight that they stand for."""
    config = CONFIG | (sizes or {})
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    generator = torch.Generator().manual_seed(sum(directory.name.encode()))
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    tensors = {"model.embed_tokens.weight": torch.randn(vocab, hidden, generator=generator).to(torch.bfloat16),
               "model.norm.weight": ones, "model.layers.0.input_layernorm.weight": ones.clone(),
               "model.layers.0.post_attention_layernorm.weight": ones.clone()}
    expected = {}
    for module, (n, k) in matrices(config).items():
        state, weight = make(n, k, generator)
        tensors |= {f"model.layers.0.{module}.{key}": value.contiguous() for key, value in state.items()}
        expected[f"model.layers.0.{module}.weight"] = weight
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config | {"quantization_config": quantization}, indent=1) + "\n")
    save_file(tensors, directory / "model.safetensors")
    save_file(expected, directory / "expected.safetensors")


def write_logits(directory):
    import transformers  # the programs that only write weights do without

    config = json.loads((directory / "config.json").read_text())
    del config["quantization_config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)).eval()
    weights = load_file(directory / "expected.safetensors")
    stored = load_file(directory / "model.safetensors")
    weights |= {name: stored[name].float() for name in model.state_dict() if name in stored and name not in weights}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    prompt = torch.randint(3, config["vocab_size"], (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        logits = model(prompt).logits[0]
        bf16_logits = model.to(torch.bfloat16)(prompt).logits[0].float()
    save_file({"logits": logits.contiguous()}, directory / "golden.safetensors")
    (directory / "golden.json").write_text(json.dumps({
        "made_by": "tools/golden/quantized_layer.py",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "prompt": prompt[0].tolist(),
        # The median error of transformers in bf16, of weights too: the bound for Sluice's error.
        "bf16_nmse": float((((bf16_logits - logits) ** 2).sum(1) / (logits ** 2).sum(1)).median()),
    }, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directories", nargs="+", type=pathlib.Path)
    for directory in parser.parse_args().directories:
        write_logits(directory)


if __name__ == "__main__":
    main()
