#!/usr/bin/env python3
"""Makes small models with weights in FP8 and what they stand for, for the tests of loading and of logits.

    python3 tools/golden/make_fp8_golden.py [--out tests/golden/fp8]

Written: a directory for each form with config.json, model.safetensors, expected.safetensors, which has the weights in
F32 as others' decoders make them, and the logits of transformers with these (quantized_layer.py):
- blocks_f32, blocks_bf16, blocks_ue8m0: the method fp8 with blocks of 128 x 128, as Qwen's releases: scales in F32, in
  BF16, and as powers of two in F8_E8M0. Quantized by compressed-tensors (transformers leaves out matrices with partial
  blocks), dequantized by transformers' Fp8Dequantize, of partial blocks with padding to whole ones;
- compressed_blocks, channel, tensor: compressed-tensors' float-quantized with scales in BF16, BF16 and F32, quantized
  and dequantized by its own compressor, which gets the scales in F32, so that nothing is rounded.
Blocks are partial at the edges: of rows, of columns or of both. In blocks_bf16 gate and up begin with a block.
Needs: compressed-tensors 0.20.1, transformers 5.24.0, torch 2.15.0, safetensors. The written bytes are always the same.
"""

import argparse
import pathlib

import torch
from compressed_tensors.compressors.naive_quantized.base import FloatQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

import quantized_layer

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = 128
LARGEST = 448.0


def fp8_args(strategy):
    more = {"block_structure": [BLOCK, BLOCK]} if strategy == "block" else {}
    return QuantizationArgs(num_bits=8, type="float", symmetric=True, strategy=strategy, **more)


def in_blocks(weight):
    """The weight with zeros up to whole blocks, as [rows of blocks, 128, columns of blocks, 128]."""
    rows, columns = (-size % BLOCK for size in weight.shape)
    padded = torch.nn.functional.pad(weight, (0, columns, 0, rows))
    return padded.reshape(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)


def scales_of(weight, strategy, dtype):
    """What makes the largest number of each part 448, rounded to the type; up to a power of two for F8_E8M0."""
    if strategy == "block":
        largest = in_blocks(weight).abs().amax(dim=(1, 3))
    else:
        largest = weight.abs().amax(dim=1, keepdim=True) if strategy == "channel" else weight.abs().max()[None]
    scales = largest / LARGEST
    if dtype == torch.float8_e8m0fnu:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    return scales.to(dtype)


def quantized(n, k, generator, strategy, dtype):
    """The codes, and scales of the type. Rows differ in size, so that a wrong scale shows."""
    weight = torch.randn(n, k, generator=generator) * (0.02 + 0.2 * torch.rand(n, 1, generator=generator))
    scales = scales_of(weight, strategy, dtype)
    scheme = QuantizationScheme(targets=["Linear"], weights=fp8_args(strategy))
    state = FloatQuantizationCompressor.compress({"weight": weight, "weight_scale": scales.float()}, scheme)
    return state["weight"], scales, scheme


def method_fp8(n, k, generator, dtype):
    codes, scales, _ = quantized(n, k, generator, "block", dtype)
    padded = in_blocks(codes.float()).reshape(scales.shape[0] * BLOCK, scales.shape[1] * BLOCK)
    weight = Fp8Dequantize(None)._dequantize_one(padded.to(codes.dtype), scales, torch.float32)
    return {"weight": codes, "weight_scale_inv": scales}, weight[:n, :k].contiguous()


def compressed(n, k, generator, strategy, dtype):
    codes, scales, scheme = quantized(n, k, generator, strategy, dtype)
    state = {"weight": codes, "weight_scale": scales.float()}
    weight = FloatQuantizationCompressor.decompress(state, scheme)["weight"].float()
    return {"weight": codes, "weight_scale": scales}, weight.contiguous()


def compressed_config(strategy):
    weights = {key: value for key, value in fp8_args(strategy).model_dump(mode="json").items() if value is not None}
    return {"quant_method": "compressed-tensors", "format": "float-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "tests/golden/fp8")
    out = parser.parse_args().out
    fp8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [BLOCK, BLOCK]}
    made = []
    for name, dtype, width, more in (("blocks_f32", torch.float32, 144, {}),
                                     ("blocks_bf16", torch.bfloat16, BLOCK, {}),
                                     ("blocks_ue8m0", torch.float8_e8m0fnu, 144, {"scale_fmt": "ue8m0"})):
        made.append(out / name)
        quantized_layer.write(made[-1], fp8 | more, lambda n, k, g, dtype=dtype: method_fp8(n, k, g, dtype),
                              {"hidden_size": 136, "intermediate_size": width})
    for name, strategy, dtype, sizes in (
            ("compressed_blocks", "block", torch.bfloat16, {"hidden_size": 136}),
            ("channel", "channel", torch.bfloat16, {}), ("tensor", "tensor", torch.float32, {})):
        made.append(out / name)
        quantized_layer.write(made[-1], compressed_config(strategy),
                              lambda n, k, g, s=strategy, d=dtype: compressed(n, k, g, s, d), sizes)
    for directory in made:
        quantized_layer.write_logits(directory)


if __name__ == "__main__":
    main()
