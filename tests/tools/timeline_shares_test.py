"""timeline_shares.py on a made-up prefill of two steps: stretches, shares, and invalid files."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools/timeline/timeline_shares.py"
# Two passes, then a token. Each entry: name, microseconds.
PREFILL = [("copy h2d", 40), ("embedding", 100), ("matmul", 200), ("attention", 500), ("wait", 100),
           ("copy h2d", 50), ("embedding", 100), ("attention", 700), ("swiglu", 50), ("sample", 50)]
GAP = 15  # microseconds after each span


def trace_of(ops):
    events = [{"ph": "M", "pid": 1, "tid": 0, "name": "thread_name", "args": {"name": "engine"}},
              {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "compute"}}]
    time = 0
    for name, length in ops:
        events.append({"ph": "X", "pid": 1, "tid": 1, "name": name, "ts": time, "dur": length})
        time += length + GAP
    events.append({"ph": "X", "pid": 1, "tid": 0, "name": "prefill", "ts": 0, "dur": time})
    return json.dumps({"traceEvents": events})


class TimelineShares(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_script(self, text, *options):
        path = self.folder / "chunked.json"
        path.write_text(text, encoding="utf-8")
        return subprocess.run([sys.executable, str(SCRIPT), str(path), *options], capture_output=True, text=True,
                              check=False)

    def test_a_prefill_of_two_passes_is_one_row(self):
        done = self.run_script(trace_of(PREFILL))
        self.assertEqual(done.returncode, 0, done.stderr)
        cells = [cell.strip() for cell in done.stdout.splitlines()[-1].strip("|").split("|")]
        # The copy before the first embedding is not in the stretch; the one between the passes is other work.
        whole = (1850 + 8 * GAP) / 1e3
        gaps = 100 + 8 * GAP
        self.assertEqual(cells, ["chunked", f"{whole:.1f}", f"1.2 ({1.2 / whole:.1%})", f"0.2 ({0.2 / whole:.1%})",
                                 f"0.3 ({0.35 / whole:.1%})", f"{gaps / 1e3:.1f} ({gaps / 1e3 / whole:.1%})"])

    def test_the_last_stretch_unless_told(self):
        longer = [(name, 2 * length if name == "attention" else length) for name, length in PREFILL]
        text = trace_of(PREFILL + longer + [("embedding", 9000)])
        self.assertIn("2.4", self.run_script(text).stdout, "what was not sampled is no stretch")
        self.assertIn("1.2", self.run_script(text, "--stretch", "0").stdout)

    def test_what_there_is_not(self):
        self.assertIn("--stretch: 1 is not one of the 1", self.run_script(trace_of(PREFILL), "--stretch", "1").stderr)
        done = self.run_script("hello")
        self.assertEqual(done.returncode, 2)
        self.assertIn("is no timeline", done.stderr)


if __name__ == "__main__":
    unittest.main()
