"""metrics.py on texts whose numbers are easy to count by hand."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
from metrics import functions, looks, measure, op_counts, percentile, public_functions  # noqa: E402

FUNCTIONS = r'''#pragma once
#define TWICE(x) { x; x; }
namespace sluice {
enum class Kind : int { kA, kB };
constexpr int kTable[] = {
    1,
    2,
};
template <class T, class... Rest>
struct Holder : Base<T> {
  Holder(int a,
         int b) noexcept
      : a_(a), b_{b} {
    if (a > 0) {
      run([&] {
        more("}{");  // }
      });
    }
  }
  int get() const { return a_; }
  int a_{7};
  std::vector<int> list_ = {1, 2};
};

template <class T>
auto free_one(T x) -> int {
  return R"(}}})"[0] == '}' ? 1'000 : x;
}

TEST(Holder, Works) {
  for (;;) {
  }
}
}  // namespace sluice
'''


def metric(files, name):
    found = [m for m in measure(files) if m.name.startswith(name)]
    assert len(found) == 1, found
    return found[0]


class Functions(unittest.TestCase):
    def test_names_places_and_lengths(self):
        self.assertEqual(functions(FUNCTIONS), [
            ("Holder", 11, 9), ("get", 20, 1), ("free_one", 25, 4), ("TEST", 30, 4)])

    def test_percentile_is_a_number_of_the_list(self):
        self.assertEqual(percentile(range(1, 11), 90), 9)
        self.assertEqual(percentile([5], 90), 5)
        self.assertEqual(percentile([], 90), 0)

    def test_limits_and_cuda_is_not_the_host(self):
        body = "void f() {\n" + "  g();\n" * 59 + "}\n"
        longest = metric({"src/core/x.cc": body, "src/ops/cuda/x.cc": body, "tests/x.cc": body},
                         "function length, longest")
        self.assertEqual((longest.value, longest.holds()), (61, False))
        self.assertEqual(longest.worst, ["    61 src/core/x.cc:1 f"])
        self.assertTrue(metric({"src/core/x.cc": body.replace("  g();\n", "", 1)},
                               "function length, longest").holds())


class Metrics(unittest.TestCase):
    def test_layers(self):
        files = {"include/sluice/a.h": '#pragma once\n#include "sluice/b.h"\n',
                 "include/sluice/b.h": '#pragma once\n#include "sluice/a.h"\n',
                 "include/sluice/llm.h": "#pragma once\n",
                 "src/core/x.cc": '#include "kv/x.h"\n#include "sluice/llm.h"\n'}
        self.assertEqual(metric(files, "include cycles").value, 1)
        self.assertEqual(metric(files, "upward includes").value, 2)

    def test_files_and_folders(self):
        self.assertFalse(metric({"tools/x.py": "\n" * 451}, "files over").holds())
        self.assertTrue(metric({"tools/x.py": "\n" * 450, "x.md": "\n" * 999}, "files over").holds())
        many = {f"src/kv/{i}.cc": "" for i in range(41)}
        self.assertEqual(metric(many, "folders over").worst, ["    41 src/kv"])
        self.assertTrue(metric({**dict(list(many.items())[1:]), "src/kv/a/x.cc": ""},
                               "folders over").holds())

    def test_comments(self):
        text = '// One.\n\nint x;  // two\nint y = f("// none");\n/* three\n   four */\n'
        self.assertEqual(metric({"src/core/x.cc": text}, "comment lines").value, 4 / 2)
        self.assertFalse(metric({"src/core/x.cc": "// a\n" + "int x;\n" * 5}, "comment").holds())

    def test_files_per_op(self):
        declared = "// x\nvoid twice(Stream& stream, const TwiceArgs& args);\n"
        files = {"src/ops/rows/twice.h": declared,
                 "src/ops/rows/twice.cc": "void twice(Stream& s) {}\n",
                 "src/ops/cpu/twice.cc": "int x = run(TwiceArgs{});\n",
                 "src/ops/other.cc": "// twice(x)\nint y = twice_as(x);\n",
                 "src/ops/CMakeLists.txt": "cpu/twice.cc twice.cc\n",
                 "tests/ops/twice_test.cc": "twice(x);\n",
                 "tests/ops/bits_test.cc": "twice(x);\n",
                 "src/model/x.cc": "twice(x);\n"}
        self.assertEqual(op_counts(files), {"twice": 4})
        del files["tests/ops/twice_test.cc"], files["tests/ops/bits_test.cc"]
        self.assertEqual(op_counts(files), {"twice": 3})


class Looks(unittest.TestCase):
    def test_public_functions_of_a_class(self):
        text = """class Door {
 public:
  Door();
  bool is_open() const { return open_; }
  using Bell = std::function<void(int)>;
  struct Size {
    int area() const;
  };
 private:
  void creak();
  bool open_ = false;
};
class Later;
"""
        self.assertEqual(public_functions(text), [("Size", 1), ("Door", 2)])

    def test_lines_without_a_limit(self):
        files = {"src/core/x.h": "class X {\n public:\n  int a();\n  int b();\n};\nPhase p;  // Phase\n",
                 "src/core/x.cc": '#include "core/x.h"\nPhase q;\n',
                 "src/core/y.cc": '#include "core/x.h"\n',
                 "src/engine/schedule/s.cc": "Phase r;\n"}
        text = "\n".join(looks(files, "/nowhere"))
        self.assertRegex(text, r"files of src +4")
        self.assertRegex(text, r"most of a class +2   X")
        self.assertRegex(text, r"name Phase +2")
        self.assertRegex(text, r"one consumer +1")


class Program(unittest.TestCase):
    def run_on(self, text, *options):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "src/core").mkdir(parents=True)
            (Path(folder) / "src/core/x.cc").write_text(text)
            return subprocess.run([sys.executable, str(TOOLS / "metrics.py"), "--root", folder,
                                   *options], capture_output=True, text=True, check=False)

    def test_check_fails_where_a_number_is_past_its_limit(self):
        self.assertEqual(self.run_on("// A.\nint x;\n", "--check").returncode, 0)
        bare = self.run_on("int x;\n", "--check")
        self.assertEqual(bare.returncode, 1)
        self.assertIn("NOT comment lines to code lines", bare.stdout)
        self.assertEqual(self.run_on("int x;\n").returncode, 0)


if __name__ == "__main__":
    unittest.main()
