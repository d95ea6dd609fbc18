"""Writes rope_golden.h: rotary frequencies in double precision, straight from the papers.

    python3 tests/model/make_rope_golden.py > tests/model/rope_golden.h

Needs only the standard library and shares no code with src/model/rope_scaling.cc: wavelengths and
rotation counts are the variables here, as in the papers, and not inverse frequencies.
Sources: RoFormer (arXiv 2104.09864), position interpolation (arXiv 2306.15595), YaRN (arXiv
2309.00071, section 3.2, with the integer bounds of its reference code), Llama 3.1 model card code.
"""

import textwrap
from math import ceil, floor, log, tau


def wavelengths(theta, dim):
    """Positions per turn of each channel pair."""
    return [tau * theta ** (2 * i / dim) for i in range(dim // 2)]


def default(theta, dim, **_):
    return [tau / w for w in wavelengths(theta, dim)], 1.0


def linear(theta, dim, factor, **_):
    return [tau / (w * factor) for w in wavelengths(theta, dim)], 1.0


def llama3(theta, dim, factor, original, low_freq_factor, high_freq_factor):
    result = []
    for w in wavelengths(theta, dim):
        turns = original / w  # over the original context
        if turns < low_freq_factor:
            share = 0.0
        elif turns > high_freq_factor:
            share = 1.0
        else:
            share = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        result.append(tau / w * (share + (1 - share) / factor))
    return result, 1.0


def yarn(theta, dim, factor, original, beta_fast=32.0, beta_slow=1.0, truncate=True,
         attention_factor=None, mscale=None, mscale_all_dim=None):
    def pair_with_turns(turns):
        # turns = original / (tau * theta ** (2 i / dim)), solved for i
        return dim / 2 * log(original / (tau * turns), theta)

    low, high = pair_with_turns(beta_fast), pair_with_turns(beta_slow)
    if truncate:
        low, high = floor(low), ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    result = []
    for i, w in enumerate(wavelengths(theta, dim)):
        interpolated = min(max((i - low) / width, 0.0), 1.0)
        result.append(tau / w * (interpolated / factor + 1 - interpolated))

    def scale(m):
        return 0.1 * m * log(factor) + 1 if factor > 1 else 1.0

    if attention_factor is None:
        attention_factor = (scale(mscale) / scale(mscale_all_dim)
                            if mscale and mscale_all_dim else scale(1.0))
    return result, attention_factor


# Name, config.json of the case, formula, its arguments.
CASES = [
    ("Qwen3-0.6B", '"rope_theta": 1000000', default, dict(theta=1e6, dim=128)),
    ("no rope keys", '"x": 0', default, dict(theta=1e4, dim=64)),
    ("linear", '"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2.5}',
     linear, dict(theta=1e4, dim=64, factor=2.5)),
    ("Llama-3.1-8B",
     '"rope_theta": 500000.0, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, '
     '"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}',
     llama3, dict(theta=5e5, dim=128, factor=8.0, original=8192, low_freq_factor=1.0,
                  high_freq_factor=4.0)),
    ("Llama-3.2-1B, new keys",
     '"rope_parameters": {"rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0, '
     '"high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"}',
     llama3, dict(theta=5e5, dim=64, factor=32.0, original=8192, low_freq_factor=1.0,
                  high_freq_factor=4.0)),
    ("Qwen2.5 with YaRN",
     '"rope_theta": 1000000.0, "rope_scaling": {"factor": 4.0, '
     '"original_max_position_embeddings": 32768, "type": "yarn"}',
     yarn, dict(theta=1e6, dim=128, factor=4.0, original=32768)),
    ("YaRN, no rounding, own betas",
     '"rope_parameters": {"rope_type": "yarn", "rope_theta": 150000, "factor": 32, "beta_fast": 16,'
     ' "beta_slow": 2, "truncate": false, "original_max_position_embeddings": 4096}',
     yarn, dict(theta=150000.0, dim=64, factor=32.0, original=4096, beta_fast=16.0,
                beta_slow=2.0, truncate=False)),
    ("YaRN, mscale",
     '"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 40.0, '
     '"mscale": 0.707, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096}',
     yarn, dict(theta=1e4, dim=64, factor=40.0, original=4096, mscale=0.707, mscale_all_dim=1.0)),
    ("YaRN, attention_factor, original by default",
     '"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25}',
     yarn, dict(theta=1e4, dim=32, factor=2.0, original=32768, attention_factor=1.25)),
    ("YaRN, bounds that meet",
     '"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 4, "beta_slow": 4, '
     '"truncate": false, "original_max_position_embeddings": 8192}',
     yarn, dict(theta=1e4, dim=32, factor=2.0, original=8192, beta_fast=4.0, beta_slow=4.0,
                truncate=False)),
]


def main():
    print("// Written by make_rope_golden.py; do not edit. Double precision, from the papers.")
    print("#pragma once\n\n#include <vector>\n")
    print("namespace sluice {\n\n// clang-format off")
    print("struct RopeGolden {\n  const char* name;\n  const char* keys;  // of config.json")
    print("  int head_dim;\n  double attention_factor;\n  std::vector<double> inv_freq;\n};\n")
    print("inline const std::vector<RopeGolden> kRopeGolden = {")
    for name, keys, formula, arguments in CASES:
        frequencies, attention_factor = formula(**arguments)
        print(f'    {{"{name}",')
        for part in textwrap.wrap(keys, 85, drop_whitespace=False):
            print(f'     R"({part})"')
        print(f"     , {arguments['dim']}, {attention_factor:.17g},\n     {{")
        for i in range(0, len(frequencies), 4):
            row = ", ".join(f"{f:.13e}" for f in frequencies[i:i + 4])
            print(f"      {row},")
        print("     }},")
    print("};\n// clang-format on\n\n}  // namespace sluice")


if __name__ == "__main__":
    main()
