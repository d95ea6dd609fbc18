"""lab/compare gives the program and the package the same work, and each of them a rate for all of it."""

import json
import pathlib
import subprocess
import sys

from conftest import MODEL, program

COMPARE = pathlib.Path(__file__).resolve().parents[2] / "lab" / "compare" / "compare.py"


def test_two_rounds_of_program_and_package(tmp_path):
    out = tmp_path / "out.json"
    done = subprocess.run([sys.executable, COMPARE, "--sluice", program(), "--device", "cpu", "--model", MODEL,
                           "--engines", "sluice,sluice_python", "--work", "prefill,decode", "--rounds", "2",
                           "--prefill-lengths", "256,512", "--decode-lengths", "300", "--out", out],
                          capture_output=True, text=True, encoding="utf-8", check=True)
    results = json.loads(out.read_text(encoding="utf-8"))
    for engine in ("sluice", "sluice_python"):
        rates = results[engine]
        assert {"prefill_256", "prefill_512", "decode_300"} <= rates.keys(), done.stderr
        assert len(rates["rounds"]) == 2
        # Between those of the two rounds, as a median is.
        low, high = sorted(one["decode_300"] for one in rates["rounds"])
        assert 0 < low <= rates["decode_300"] <= high
    order = [line.split(",")[0] for line in done.stderr.splitlines() if ", round" in line]
    assert order == ["sluice", "sluice_python", "sluice_python", "sluice"]
    assert "| prefill 512, tok/s |" in done.stdout and "(Sluice x" in done.stdout
