"""check_layers.py against small trees that break one rule each."""

import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from check_layers import RANKS, Checker, read_tree  # noqa: E402

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

    def test_the_server_stays_apart_from_the_engine(self):
        self.assert_one({"src/server/http/x.cc": '#include "engine/runner.h"\n'},
                        'server may not include "engine/runner.h"')

    def test_folder_without_rank(self):
        self.assert_one({"src/misc/x.cc": '#include <string>\n'}, "has no rank")

    def test_the_table_in_the_documents_has_the_same_ranks(self):
        table = "".join(f"| {rank} | `{folder}/` | x |\n" for folder, rank in RANKS.items())
        self.assertEqual(findings({"docs/architecture.md": table}), [])
        self.assert_one({"docs/architecture.md": table.replace("| 3 | `kv/`", "| 4 | `kv/`")},
                        "rank of kv: 4 in the table, 3 in")
        self.assert_one({"docs/architecture.md": table + "| 10 | `gateway/` | x |\n"},
                        "rank of gateway: 10 in the table, None in")

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


class Roof(unittest.TestCase):
    """The rules for public headers."""
    LLM = {"include/sluice/llm.h": HEADER + '#include "sluice/options.h"\n',
           "include/sluice/options.h": HEADER}

    def assert_one(self, files, words):
        found = findings({**self.LLM, **files})
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_values_are_for_everybody_and_the_engine_implements_the_roof(self):
        self.assertEqual(findings({
            **self.LLM,
            "src/core/x.cc": '#include "sluice/options.h"\n',
            "src/engine/llm.cc": '#include "sluice/llm.h"\n',
            "src/cli/run.cc": '#include <sluice/llm.h>\n',
            "tests/core/x_test.cc": '#include "sluice/llm.h"\n'}), [])

    def test_the_house_may_not_include_the_roof(self):
        for name in ('"sluice/llm.h"', "<sluice/llm.h>"):
            self.assert_one({"src/tokenizer/chat.h": HEADER + f"#include {name}\n"},
                            "src/tokenizer/chat.h:2: tokenizer (rank 2) may not include the roof")

    def test_what_includes_the_roof_is_roof(self):
        self.assert_one({"include/sluice/all.h": HEADER + "#include <sluice/llm.h>\n",
                         "src/model/x.cc": '#include "sluice/all.h"\n'}, "may not include the roof")

    def test_cycles_through_public_headers(self):
        for first, second in (('"sluice/b.h"', "<sluice/a.h>"), ('"b.h"', '"sluice/a.h"')):
            self.assert_one({"include/sluice/a.h": HEADER + f"#include {first}\n",
                             "include/sluice/b.h": HEADER + f"#include {second}\n"},
                            "include cycle: include/sluice/a.h")

    def test_src_includes_nothing_that_stands_on_it(self):
        for name in ("tests/support/seeds.h", "lab/kernels/timer.h", "eval/grid.h"):
            included = name.removeprefix("tests/").removeprefix("lab/kernels/")
            self.assert_one({name: HEADER, "src/kv/x.cc": f'#include "{included}"\n'},
                            "stands above src/")


class Ops(unittest.TestCase):
    SLOTS = [f"// {slot}: words\n" for slot in ("Shapes", "Types", "Aliasing", "Order", "Errors")]
    DECLARATION = "void twice(Stream& stream, const TwiceArgs& args);\n"

    def check(self, comment, declaration=DECLARATION, path="src/ops/twice.h"):
        return findings({path: f"{HEADER}\n{comment}{declaration}"})

    def test_a_whole_contract(self):
        comment = "// out = 2 * x.\n" + "".join(self.SLOTS)
        self.assertEqual(self.check(comment), [])
        self.assertEqual(self.check(comment + "// Source: a paper.\n"), [])

    def test_each_slot_is_obligatory_and_not_empty(self):
        for i, slot in enumerate(self.SLOTS):
            name = slot[3:slot.index(":")]
            for instead in ("", f"// {name}:\n"):
                slots = [*self.SLOTS[:i], instead, *self.SLOTS[i + 1:]]
                found = self.check("// out = 2 * x.\n" + "".join(slots))
                self.assertEqual(len(found), 1, found)
                self.assertIn(f'twice has no words for the slot "{name}:"', found[0])

    def test_a_slot_is_there_once(self):
        found = self.check("// out = 2 * x.\n" + "".join(self.SLOTS) + self.SLOTS[0])
        self.assertEqual(len(found), 1, found)
        self.assertIn("twice has a slot twice", found[0])

    def test_a_sentence_comes_first(self):
        found = self.check("".join(self.SLOTS))
        self.assertEqual(len(found), 1, found)
        self.assertIn("twice has no sentence", found[0])

    def test_no_comment_at_all(self):
        self.assertEqual(len(self.check("")), 6)

    def test_a_declaration_over_two_lines(self):
        self.assertEqual(len(self.check("", "void x(Stream& stream,\n       const XArgs& args);\n")), 6)

    def test_of_another_op_is_not_its_own(self):
        comment = "// out = 2 * x.\n" + "".join(self.SLOTS)
        self.assertEqual(len(self.check(comment + self.DECLARATION + "\n")), 6)

    def test_backends_and_other_functions_are_free(self):
        self.assertEqual(self.check("", path="src/ops/cpu/twice.h"), [])
        self.assertEqual(self.check("", "void prepare_ops(Stream& stream);\n"), [])


class House(unittest.TestCase):
    def assert_one(self, path, text, words):
        found = findings({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(words, found[0])

    def test_cuda_header(self):
        self.assert_one("src/ops/x.cc", "#include <cuda_runtime.h>\n", "belongs under a cuda/")
        self.assertEqual(findings({"src/ops/cuda/x.cu": "#include <cuda_runtime.h>\n"}), [])

    def test_a_header_that_one_of_ours_includes(self):
        self.assert_one("tests/io/x.cc", "#include <nlohmann/json.hpp>\n", "include src/io/json_type.h instead")
        self.assertEqual(findings({"src/io/json_type.h": HEADER + "#include <nlohmann/json.hpp>\n"}), [])

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
            text = f"a/{folder}/me and ~/{folder}/x and /usr/share\n"
            self.assertEqual(findings({"README.md": text}), [])


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
