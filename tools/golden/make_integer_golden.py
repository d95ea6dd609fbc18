#!/usr/bin/env python3
"""Makes small models with weights in integers and what they stand for, for the tests of loading.

    python3 tools/golden/make_integer_golden.py [--out tests/golden/integers]

Written: a directory for each form with config.json, model.safetensors, expected.safetensors, which has the weights in
F32 as the exporters' own decoders make them, and the logits of transformers with these (quantized_layer.py):
- packed4, packed8: random weights, packed and unpacked by compressed-tensors;
- awq: random words, unpacked by autoawq's utils/packing_utils.py;
- gptq, gptq8, gptq_v2: random words and zero points, unpacked by gptqmodel's TorchLinear; gptq and gptq8 as version 1,
  gptq and gptq_v2 with a random g_idx (desc_act).
Scales are stored in F16 or BF16; the decoders get them in F32, so that nothing is rounded.
Needs: compressed-tensors 0.20.0, autoawq 0.2.9, gptqmodel 7.7.0, torch, transformers, safetensors. The written bytes
are always the same.
"""

import argparse
import importlib.util
import pathlib

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

from quantized_layer import random_scales, write, write_logits

ROOT = pathlib.Path(__file__).resolve().parents[2]
GROUP = 32


def random_words(shape, generator):
    return torch.randint(-2**31, 2**31, shape, generator=generator, dtype=torch.int64).to(torch.int32)


def pack_quantized(n, k, generator, args):
    groups = k // GROUP if args.strategy == "group" else 1
    low, high = -(2 ** (args.num_bits - 1)), 2 ** (args.num_bits - 1) - 1
    scale = random_scales((n, groups), generator, torch.bfloat16).float()
    numbers = torch.randint(low, high + 1, (n, k), generator=generator)
    zeros = torch.zeros(n, groups, dtype=torch.int8)
    if not args.symmetric:
        zeros = torch.randint(low, high + 1, (n, groups), generator=generator).to(torch.int8)
    columns = k // groups
    weight = ((numbers - zeros.repeat_interleave(columns, 1)) * scale.repeat_interleave(columns, 1)).float()
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    state = PackedQuantizationCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_zero_point": zeros}, scheme)
    expected = PackedQuantizationCompressor.decompress(dict(state), scheme)["weight"].float()
    state["weight_scale"] = scale.to(torch.bfloat16)
    return state, expected


def awq(n, k, generator, unpacker):
    groups = k // GROUP
    state = {"qweight": random_words((k, n // 8), generator), "qzeros": random_words((groups, n // 8), generator),
             "scales": random_scales((groups, n), generator, torch.float16)}
    weight = unpacker.dequantize_gemm(state["qweight"], state["qzeros"], state["scales"].float(), 4, GROUP)
    return state, weight.t().contiguous()


def gptq(n, k, generator, bits, version, desc_act):
    per_word, groups = 32 // bits, k // GROUP
    state = {"qweight": random_words((k // per_word, n), generator),
             "qzeros": random_words((groups, n // per_word), generator),
             "scales": random_scales((groups, n), generator, torch.float16),
             "g_idx": torch.arange(k, dtype=torch.int32) // GROUP}
    if desc_act:
        state["g_idx"] = state["g_idx"][torch.randperm(k, generator=generator)]
    module = TorchLinear(bits=bits, group_size=GROUP, sym=False, desc_act=desc_act, in_features=k, out_features=n)
    module.qweight, module.qzeros = state["qweight"].clone(), state["qzeros"].clone()
    module.scales, module.g_idx = state["scales"].float(), state["g_idx"].clone()
    if version == 1:
        convert_gptq_v1_to_v2_format_module(module, bits=bits, pack_dtype=torch.int32)
    module.enable_wf_unsqueeze = True
    module.post_init()
    return state, module.dequantize_weight().float().t().contiguous()


def packed_config(args):
    weights = {key: value for key, value in args.model_dump(mode="json").items() if value is not None}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def load_unpacker():
    """autoawq's module alone: its package needs a GPU's libraries."""
    package = pathlib.Path(importlib.util.find_spec("awq").origin).parent
    spec = importlib.util.spec_from_file_location("packing_utils", package / "utils/packing_utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/integers")
    out = parser.parse_args().out
    for args in (QuantizationArgs(num_bits=4, type="int", symmetric=False, strategy="group", group_size=GROUP),
                 QuantizationArgs(num_bits=8, type="int", symmetric=True, strategy="channel")):
        write(out / f"packed{args.num_bits}", packed_config(args),
              lambda n, k, generator, args=args: pack_quantized(n, k, generator, args))
    unpacker = load_unpacker()
    write(out / "awq", {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"},
          lambda n, k, generator: awq(n, k, generator, unpacker))
    for name, bits, version, desc_act in (("gptq", 4, 1, True), ("gptq8", 8, 1, False), ("gptq_v2", 4, 2, True)):
        config = {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": desc_act, "sym": False,
                  "checkpoint_format": "gptq" if version == 1 else "gptq_v2"}
        write(out / name, config,
              lambda n, k, generator, b=bits, v=version, d=desc_act: gptq(n, k, generator, b, v, d))
    for name in ("packed4", "packed8", "awq", "gptq", "gptq8", "gptq_v2"):
        write_logits(out / name)


if __name__ == "__main__":
    main()
