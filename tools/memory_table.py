#!/usr/bin/env python3
"""Prints which prompts fit which GPU, as the Markdown table of docs/measured/memory.md.

Every cell is a plan of `sluice inspect`; no model and no GPU is needed.

    python3 tools/memory_table.py build/release/sluice
"""
import argparse
import json
import pathlib
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).parent.parent / "models/shapes"
CARDS = ["24G", "32G", "48G", "80G"]
LENGTHS = ["32K", "128K", "256K", "1M"]
HOST = "512G"
KINDS = ["bfloat16", "fp8"]


def shapes():
    """All of models/shapes, but for one that differs from another in the scaling of positions alone: its plans are
    the same."""
    names = sorted(path.parent.name for path in ROOT.glob("*/config.json"))
    return [name for name in names if not name.endswith("-yarn")]


def extended(shape, directory):
    """A folder of the shape's configuration with positions up to 1M and no scaling of them."""
    config = json.loads((ROOT / shape / "config.json").read_text())
    text = config.get("text_config", config)
    text["max_position_embeddings"] = 1 << 20
    text.pop("rope_scaling", None)
    folder = pathlib.Path(directory) / shape
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def cell(program, folder, card, length, kv):
    """ "GPU", the GiB of host memory that KV takes, or "-"."""
    command = [program, "inspect", str(folder), "--gpu-memory", card, "--host-memory", HOST,
               "--max-model-len", length, "--max-num-seqs", "1", "--kv-cache-dtype", kv,
               "--weights-offload", "off", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if not result.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)}: {result.stderr}")
    plan = json.loads(result.stdout)["plan"]
    if not plan["fits"]:
        return "-"
    host = sum(entry["bytes"] for entry in plan["entries"] if entry["name"] == "KV host tier")
    return f"{host / 2**30:.1f}" if host else "GPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", help="the sluice program")
    program = parser.parse_args().program
    print("| shape | GPU | " + " | ".join(LENGTHS) + " |")
    print("|---" * (2 + len(LENGTHS)) + "|")
    with tempfile.TemporaryDirectory() as directory:
        for shape in shapes():
            folder = extended(shape, directory)
            for card in CARDS:
                cells = [", ".join(cell(program, folder, card, length, kv) for kv in KINDS)
                         for length in LENGTHS]
                print(f"| {shape} | {card[:-1]} GiB | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
