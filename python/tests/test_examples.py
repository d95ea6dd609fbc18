"""The examples that need the Python package, as a user runs them."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/needle"


def output_of(*command: object, **variables: str) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False,
                          env={**os.environ, **variables})
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_policies_keep_the_answer() -> None:
    printed = output_of(sys.executable, ROOT / "examples/policies.py", MODEL)
    assert printed.count("7391846") == 3, printed


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
def test_lm_eval_counts_the_facts_that_were_found(tmp_path: pathlib.Path) -> None:
    """All of them with full attention and with Quest; a window that holds neither fact loses them."""
    shares = []
    for options in ("", ",sparse_policy=full+quest,sparse_topk_tokens=256",
                    ",sparse_policy=streaming,sparse_recent_tokens=256"):
        printed = output_of(ROOT / "examples/lm_eval/run.sh", MODEL, "device=cpu,kv_cache_bytes=64M" + options,
                            PYTHON=sys.executable, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
        (share,) = re.findall(r"castles.*exact_match.*?\|([ 0-9.]+)\|±", printed)
        shares.append(float(share))
    assert shares[:2] == [1, 1] and shares[2] < 0.5, shares
