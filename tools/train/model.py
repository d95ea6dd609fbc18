"""The decoder that train.py trains: names and arithmetic of transformers' Qwen3ForCausalLM.

Tokens are kept flat, [rows * length, hidden], so that everything but attention has one shape for
every length and is compiled once. save_model writes what transformers and the engine load.
"""

import json
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

from vocabulary import VOCAB_SIZE

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": VOCAB_SIZE - 1,
    "pad_token_id": VOCAB_SIZE - 3,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 256,
    "initializer_range": 0.02,
    "intermediate_size": 1088,
    "max_position_embeddings": 32768,
    "model_type": "qwen3",
    "num_attention_heads": 4,
    "num_hidden_layers": 6,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": VOCAB_SIZE,
}
GENERATION_CONFIG = {
    "do_sample": False,
    "eos_token_id": [VOCAB_SIZE - 1, VOCAB_SIZE - 3],  # <|im_end|>, <|endoftext|>
    "pad_token_id": VOCAB_SIZE - 3,
}


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, CONFIG["rms_norm_eps"])


def linear(inputs: int, outputs: int, std: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=std)
    return layer


class Attention(nn.Module):
    """Projections, q/k norm and rotary positions; attend() does the attention itself."""

    def __init__(self):
        super().__init__()
        hidden, dim = CONFIG["hidden_size"], CONFIG["head_dim"]
        heads, kv_heads = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"]
        std = CONFIG["initializer_range"]
        self.q_proj = linear(hidden, heads * dim, std)
        self.k_proj = linear(hidden, kv_heads * dim, std)
        self.v_proj = linear(hidden, kv_heads * dim, std)
        self.o_proj = linear(heads * dim, hidden, std / (2 * CONFIG["num_hidden_layers"]) ** 0.5)
        self.q_norm, self.k_norm = RMSNorm(dim), RMSNorm(dim)

    def project(self, x, cos, sin):
        """Shapes: x [tokens, hidden], cos, sin [tokens, 1, head_dim / 2] -> q, k, v [tokens, heads,
        head_dim]."""
        dim = CONFIG["head_dim"]
        q = self.q_norm(self.q_proj(x).unflatten(-1, (-1, dim)))
        k = self.k_norm(self.k_proj(x).unflatten(-1, (-1, dim)))
        v = self.v_proj(x).unflatten(-1, (-1, dim))
        return rotate(q, cos, sin).to(v.dtype), rotate(k, cos, sin).to(v.dtype), v


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        std = CONFIG["initializer_range"]
        self.gate_proj, self.up_proj = linear(hidden, inner, std), linear(hidden, inner, std)
        self.down_proj = linear(inner, hidden, std / (2 * CONFIG["num_hidden_layers"]) ** 0.5)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.mlp = Attention(), MLP()
        self.input_layernorm = RMSNorm(CONFIG["hidden_size"])
        self.post_attention_layernorm = RMSNorm(CONFIG["hidden_size"])

    def before(self, x, cos, sin):
        return self.self_attn.project(self.input_layernorm(x), cos, sin)

    def after(self, x, attended):
        x = x + self.self_attn.o_proj(attended.flatten(-2))
        return x + self.mlp(self.post_attention_layernorm(x))


def attend(q, k, v, length: int):
    """Causal attention in every row; q, k, v flat as Attention.project returns them."""
    q, k, v = (t.unflatten(0, (-1, length)).transpose(1, 2) for t in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(0, 1)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(CONFIG["vocab_size"], CONFIG["hidden_size"])
        nn.init.normal_(self.embed_tokens.weight, std=CONFIG["initializer_range"])
        self.layers = nn.ModuleList(Layer() for _ in range(CONFIG["num_hidden_layers"]))
        self.norm = RMSNorm(CONFIG["hidden_size"])


class Qwen3(nn.Module):
    """Language model; compile_parts() makes it fast."""

    def __init__(self):
        super().__init__()
        self.model = Decoder()
        self.before, self.after, self.entropies = Layer.before, Layer.after, token_entropies

    def compile_parts(self):
        self.before = torch.compile(Layer.before, dynamic=False)
        self.after = torch.compile(Layer.after, dynamic=False)
        self.entropies = torch.compile(token_entropies, dynamic=False)

    def hidden(self, ids):
        """Shapes: ids [rows, length] -> [rows * length, hidden], after the last norm."""
        rows, length = ids.shape
        cos, sin = rotary_tables(rows, length, ids.device)
        x = self.model.embed_tokens(ids.flatten()).float()
        for layer in self.model.layers:
            q, k, v = self.before(layer, x, cos, sin)
            x = self.after(layer, x, attend(q, k, v, length))
        return self.model.norm(x)

    def forward(self, ids, targets):
        """Cross entropy of every target. Shapes: ids, targets [rows, length] -> [rows * length]."""
        return self.entropies(self.hidden(ids), self.model.embed_tokens.weight, targets.flatten())

    @torch.no_grad()
    def predictions(self, ids):
        return (self.hidden(ids) @ self.model.embed_tokens.weight.T).argmax(-1)


def token_entropies(hidden, weight, targets):
    return F.cross_entropy(F.linear(hidden, weight).float(), targets, reduction="none")


def rotary_tables(rows: int, length: int, device):
    """Cosine and sine of every flat token: [rows * length, 1, head_dim / 2] each, float32."""
    half = CONFIG["head_dim"] // 2
    exponents = torch.arange(half, device=device, dtype=torch.float32) / half
    angles = torch.outer(torch.arange(length, device=device), CONFIG["rope_theta"] ** -exponents)
    angles = angles.repeat(rows, 1).unsqueeze(1)
    return angles.cos(), angles.sin()


def save_model(model: Qwen3, folder: Path):
    """Writes config.json, generation_config.json and model.safetensors in bfloat16.

    A model that is there already stays until the new one is complete, and if a weight of the new
    one is not a number (FloatingPointError).
    """
    if not all(p.isfinite().all() for p in model.parameters()):
        raise FloatingPointError(f"weights are not finite; {folder} keeps the last good ones")
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: p.detach().to("cpu", torch.bfloat16).contiguous()
        for name, p in model.named_parameters()
    }
    save_file(tensors, str(folder / "model.new"), metadata={"format": "pt"})
    os.replace(folder / "model.new", folder / "model.safetensors")
    for name, content in (("config.json", CONFIG), ("generation_config.json", GENERATION_CONFIG)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
