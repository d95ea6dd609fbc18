"""The bundled model with random weights: a model that nothing but a grammar keeps from writing nonsense.

Standard library only.
"""

import json
import random
import shutil


def random_bf16(generator, size_bytes):
    """Numbers of either sign between 1/32 and 1/8: sign, seven bits of mantissa and the last of the exponent."""
    count = size_bytes // 2
    drawn = int.from_bytes(generator.randbytes(size_bytes), "little")
    keep = int.from_bytes(b"\xff\x80" * count, "little")
    exponent = int.from_bytes(b"\x00\x3d" * count, "little")
    return (drawn & keep | exponent).to_bytes(size_bytes, "little")


def make(bundled, directory, seed=1):
    """Copies the model directory `bundled`, but for the numbers of its matrices."""
    generator = random.Random(seed)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled / name, directory / name)
    with open(bundled / "model.safetensors", "rb") as source:
        size = source.read(8)
        header = source.read(int.from_bytes(size, "little"))
        data = bytearray(source.read())
    for name, tensor in json.loads(header).items():
        if name != "__metadata__" and len(tensor["shape"]) == 2:
            begin, end = tensor["data_offsets"]
            data[begin:end] = random_bf16(generator, end - begin)
    (directory / "model.safetensors").write_bytes(size + header + data)
