"""check_layers.py against small trees that break one rule each."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_layers import Checker, read_tree  # noqa: E402

HEADER = "#pragma once\n"


def findings(files):
    return Checker(files).run()


class Ladder(unittest.TestCase):
    def assert_one(self, files, words):
        found = findings(files)
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_includes_downwards_and_sideways_are_fine(self):
        self.assertEqual(findings({
            "include/sluice/error.h": HEADER,
            "include/sluice/llm.h": HEADER + '#include "sluice/error.h"\n',
            "src/core/error.h": HEADER + '#include <string>\n\n#include "sluice/error.h"\n',
            "src/kv/pool.h": HEADER + '#include "core/error.h"\n',
            "src/kv/pool.cc": '#include "kv/pool.h"\n',
        }), [])

    def test_upwards_is_refused(self):
        self.assert_one({"src/kv/pool.h": HEADER + '#include "model/decoder.h"\n',
                         "src/model/decoder.h": HEADER}, "src/kv/pool.h:2: kv (rank 3) may not")

    def test_same_rank_of_another_folder_is_refused(self):
        self.assert_one({"src/io/x.h": HEADER + '#include "device/device.h"\n',
                         "src/device/device.h": HEADER}, "io (rank 1) may not")

    def test_upwards_is_refused_even_if_the_file_is_not_there_yet(self):
        self.assert_one({"src/core/x.cc": '#include "engine/llm.h"\n'}, "core (rank 0) may not")

    def test_folder_without_rank(self):
        self.assert_one({"src/misc/x.cc": '#include <string>\n'}, "has no rank")

    def test_public_header_stays_public(self):
        self.assert_one({"include/sluice/x.h": HEADER + '#include "core/error.h"\n',
                         "src/core/error.h": HEADER}, "a public header may not")

    def test_cycle(self):
        self.assert_one({"src/kv/a.h": HEADER + '#include "kv/b.h"\n',
                         "src/kv/b.h": HEADER + '#include "kv/c.h"\n',
                         "src/kv/c.h": HEADER + '#include "kv/a.h"\n'}, "include cycle: src/kv/a.h")

    def test_diamond_is_no_cycle(self):
        self.assertEqual(findings({"src/kv/a.h": HEADER + '#include "kv/b.h"\n#include "kv/c.h"\n',
                                   "src/kv/b.h": HEADER + '#include "kv/d.h"\n',
                                   "src/kv/c.h": HEADER + '#include "kv/d.h"\n',
                                   "src/kv/d.h": HEADER}), [])

    def test_include_relative_to_the_own_folder(self):
        self.assert_one({"src/kv/pool.cc": '#include "pool.h"\n', "src/kv/pool.h": HEADER},
                        "is written relative to src/")


class House(unittest.TestCase):
    def assert_one(self, path, text, words):
        found = findings({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_cuda_header(self):
        self.assert_one("src/ops/x.cc", "#include <cuda_runtime.h>\n", "belongs under a cuda/")
        self.assertEqual(findings({"src/ops/cuda/x.cu": "#include <cuda_runtime.h>\n"}), [])

    def test_conditions(self):
        for condition in ("#ifdef __AVX2__", "#if defined(X)", "#  ifndef X"):
            self.assert_one("src/ops/x.cc", condition + "\n#endif\n", "outside src/device/debug_fill.h")
        self.assertEqual(findings({"src/device/debug_fill.h": HEADER + "#ifdef X\n#endif\n"}), [])

    def test_pragma_once(self):
        self.assert_one("src/core/x.h", "int x();\n", "no #pragma once")

    def test_lengths(self):
        self.assert_one("src/core/x.cc", "//" + "x" * 99 + "\n", "src/core/x.cc:1: 101 columns")
        self.assertEqual(findings({"src/core/x.cc": "//" + "x" * 98 + "\n"}), [])
        self.assert_one("src/core/x.cc", "\n" * 501, "501 lines")

    def test_machine_path(self):
        for folder in ("home", "root", "work"):
            self.assert_one("README.md", f"see /{folder}/me/x\n", "README.md:1: absolute path")
        self.assertEqual(findings({"README.md": "a/work/me and ~/work/x and /usr/share\n"}), [])


class Tree(unittest.TestCase):
    def read(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("src/core/x.h", "tools/x.py", "build/dev/x.h", "out/x.md",
                         "tools/__pycache__/x.py", "src/core/x.bin"):
                path = Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(HEADER)
            return sorted(read_tree(Path(folder)))

    def test_of_an_unpacked_archive_is_all_but_what_was_made_here(self):
        self.assertEqual(self.read(), ["src/core/x.h", "tools/x.py"])

    def test_needs_no_git(self):
        with mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            self.assertEqual(self.read(), ["src/core/x.h", "tools/x.py"])


if __name__ == "__main__":
    unittest.main()
