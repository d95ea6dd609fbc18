"""A model directory whose chats say what a script says: a call of a tool, and an answer once a tool has answered.

The bundled model calls no tools. This one is a checkpoint like any other, so that `sluice serve` runs it with all that
it does for models that do. Its only layer adds nothing, so each token decides the next one, and each piece of the
script is a token of its own with the following piece as successor. Its template is Qwen2.5's with one more token at the
end of a prompt, which begins the call if the request has tools and no tool has answered, else the answer.
Standard library only.
"""

import array
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "tests/golden/tokenizer/templates/qwen2.5.jinja"
BEGIN = """
{%- if add_generation_prompt %}
    {%- if tools and not (messages | selectattr("role", "equalto", "tool") | list) %}
        {{- "<|call|>" }}
    {%- else %}
        {{- "<|answer|>" }}
    {%- endif %}
{%- endif %}
"""
# Several tokens an answer, so that streams have several deltas.
PIECE_CHARACTERS = 7
HIDDEN, HEAD_DIM, INTERMEDIATE = 128, 64, 64
# Of the row of a token's successor: no temperature that clients ask for makes another token likely.
CERTAIN = 100.0


def pieces_of(text, taken):
    """Parts of the text, none of which is in `taken` or occurs twice: a token has one successor."""
    pieces = []
    at = 0
    while at < len(text):
        end = at + PIECE_CHARACTERS
        while text[at:end] in taken and end < len(text):
            end += 1
        if text[at:end] in taken:  # what is left at the end
            taken.remove(pieces[-1])
            pieces[-1] += text[at:]
        else:
            pieces.append(text[at:end])
        taken.add(pieces[-1])
        at = end
    if len(set(pieces)) != len(pieces):
        raise ValueError(f"the end of {text!r} occurs twice in it")
    return pieces


class Vocabulary:
    """The bundled model's tokenizer, and what is added to it."""

    def __init__(self):
        self.json = json.loads((ROOT / "models/needle/tokenizer.json").read_text(encoding="utf-8"))
        added = self.json["added_tokens"]
        self.end = next(token["id"] for token in added if token["content"] == "<|im_end|>")
        self.first_new = 1 + max(token["id"] for token in added)
        self.size = self.first_new

    def add(self, content, special):
        self.json["added_tokens"].append({"id": self.size, "content": content, "special": special, "normalized": False,
                                          "lstrip": False, "rstrip": False, "single_word": False})
        self.size += 1
        return self.size - 1


def successors_of(vocabulary, scripts):
    """Token to token; each script follows its marker and ends with the end of the message."""
    successors, taken = {}, set(vocabulary.json["model"]["vocab"])
    for marker, text in scripts.items():
        ids = [vocabulary.add(marker, True)] + [vocabulary.add(piece, False) for piece in pieces_of(text, taken)]
        successors.update(zip(ids, ids[1:] + [vocabulary.end]))
    return successors


def bf16(rows, columns, values):
    """A matrix of zeros but for `values`, by (row, column)."""
    data = array.array("H", bytes(2 * rows * columns))
    for (row, column), value in values.items():
        data[row * columns + column] = int.from_bytes(array.array("f", [value]).tobytes()[2:], "little")
    return (rows, columns), data.tobytes()


def tensors_of(vocabulary, successors):
    """A scripted token has a direction of its own, in which its successor has a large weight. All other tokens share
    direction 0, whose successor is the end of the message."""
    direction = {token: 1 + i for i, token in enumerate(successors)}
    if len(direction) >= HIDDEN:
        raise ValueError(f"{len(direction)} pieces of text; at most {HIDDEN - 1} are possible")
    embedding = {(token, direction.get(token, 0)): 1.0 for token in range(vocabulary.size)}
    head = {(successor, direction[token]): CERTAIN for token, successor in successors.items()}
    head[vocabulary.end, 0] = CERTAIN
    layer = "model.layers.0."
    shapes = {"self_attn.q_proj": (HEAD_DIM, HIDDEN), "self_attn.k_proj": (HEAD_DIM, HIDDEN),
              "self_attn.v_proj": (HEAD_DIM, HIDDEN), "self_attn.o_proj": (HIDDEN, HEAD_DIM),
              "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
              "mlp.down_proj": (HIDDEN, INTERMEDIATE)}
    tensors = {f"{layer}{name}.weight": bf16(*shape, {}) for name, shape in shapes.items()}
    norms = {"model.norm": HIDDEN, layer + "input_layernorm": HIDDEN, layer + "post_attention_layernorm": HIDDEN,
             layer + "self_attn.q_norm": HEAD_DIM, layer + "self_attn.k_norm": HEAD_DIM}
    for name, size in norms.items():
        _, data = bf16(1, size, {(0, i): 1.0 for i in range(size)})
        tensors[name + ".weight"] = ((size,), data)
    tensors["model.embed_tokens.weight"] = bf16(vocabulary.size, HIDDEN, embedding)
    tensors["lm_head.weight"] = bf16(vocabulary.size, HIDDEN, head)
    return tensors


def safetensors(tensors):
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, data in tensors.values())


def config_of(vocabulary):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "head_dim": HEAD_DIM,
            "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "max_position_embeddings": 131072,
            "num_attention_heads": 1, "num_hidden_layers": 1, "num_key_value_heads": 1, "rms_norm_eps": 1e-06,
            "rope_theta": 1000000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "eos_token_id": vocabulary.end, "vocab_size": vocabulary.size}


def make(directory, call, answer, before_call=""):
    """call: {"name", "arguments"}. before_call: text of the message that calls."""
    vocabulary = Vocabulary()
    call_text = f"{before_call}\n<tool_call>\n{json.dumps(call)}\n</tool_call>".lstrip()
    successors = successors_of(vocabulary, {"<|call|>": call_text, "<|answer|>": answer})
    tokenizer_config = json.loads((ROOT / "models/needle/tokenizer_config.json").read_text(encoding="utf-8"))
    tokenizer_config["chat_template"] = TEMPLATE.read_text(encoding="utf-8") + BEGIN
    del tokenizer_config["added_tokens_decoder"]
    files = {"config.json": config_of(vocabulary), "tokenizer.json": vocabulary.json,
             "tokenizer_config.json": tokenizer_config}
    for name, value in files.items():
        (directory / name).write_text(json.dumps(value), encoding="utf-8")
    (directory / "model.safetensors").write_bytes(safetensors(tensors_of(vocabulary, successors)))
