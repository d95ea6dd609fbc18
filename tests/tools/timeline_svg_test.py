"""timeline_svg.py on a made-up step of four layers: lanes, boxes, windows, and invalid files."""

import gzip
import json
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "tools/timeline/timeline_svg.py"
SVG = "{http://www.w3.org/2000/svg}"
LAYER = ["rms_norm", "matmul", "rope_and_write_kv", "wait", "attention", "attention", "matmul", "rms_norm", "matmul",
         "swiglu", "matmul"]
DURATION = {"attention": 300, "wait": 40}  # microseconds; all others 20
LAYER_US = sum(DURATION.get(name, 20) for name in LAYER)
STEP_US = 4 * LAYER_US
LANES = ["engine", "compute", "slot 0", "slot 1", "slot 10", "write-back"]


def made_up_rows():
    """Two steps, 100 us apart. Each slot: a copy, a wait until it is drained, a short second wait."""
    rows = {name: [] for name in LANES}
    for begin in (0, STEP_US + 100):
        rows["engine"].append(("prefill", begin, STEP_US))
        time = begin
        for _ in range(4):
            for name in LAYER:
                rows["compute"].append((name, time, DURATION.get(name, 20)))
                time += DURATION.get(name, 20)
            for slot, offset in (("slot 0", 0), ("slot 1", 150), ("slot 10", 300)):
                at = time - LAYER_US + offset
                rows[slot] += [("copy h2d", at, 100), ("wait", at + 100, 200), ("wait", at + 302, 5)]
            rows["write-back"].append(("copy d2h", time - 400, 250))
    return rows


def trace_of(rows):
    """The text of a timeline; its rows are not in the order of lanes."""
    events = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "sluice"}}]
    for number, name in enumerate(sorted(rows, reverse=True)):
        events.append({"ph": "M", "pid": 1, "tid": number, "name": "thread_name", "args": {"name": name}})
        events += [{"ph": "X", "pid": 1, "tid": number, "name": what, "ts": begin, "dur": length}
                   for what, begin, length in rows[name]]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


class Picture:
    """The elements of a picture, in its order."""

    def __init__(self, text):
        self.text = text
        self.root = xml.etree.ElementTree.fromstring(text)
        self.words = [element.text for element in self.root.iter(SVG + "text")]
        self.groups = {e.get("data-lane"): e for e in self.root.iter(SVG + "g")}

    def lanes(self):
        """Names from top to bottom."""
        return [word for word in self.words if word in LANES]

    def boxes_of(self, lane):
        return list(self.groups[lane].iter(SVG + "rect"))

    def num_spans(self, lane):
        return sum(num_spans(box) for box in self.boxes_of(lane))


def num_spans(box):
    return int(box.get("data-spans", 1))


class TimelineSvg(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_script(self, data, *options):
        timeline, picture = self.folder / "timeline.json", self.folder / "picture.svg"
        timeline.write_bytes(data if isinstance(data, bytes) else data.encode())
        done = subprocess.run([sys.executable, str(SCRIPT), str(timeline), "--out", str(picture), *options],
                              capture_output=True, text=True, check=False)
        return done, picture

    def draw(self, data, *options):
        done, picture = self.run_script(data, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return Picture(picture.read_text(encoding="utf-8"))

    def test_lanes_come_in_order_with_a_share_of_work(self):
        picture = self.draw(trace_of(made_up_rows()), "--ms", f"0:{STEP_US / 1e3}")
        self.assertEqual(picture.lanes(), LANES)
        heights = [float(group.get("transform").split()[1].rstrip(")")) for group in picture.groups.values()]
        self.assertEqual(heights, sorted(heights))
        self.assertEqual(list(picture.groups), LANES)
        busy = 100 - 100 * 4 * DURATION["wait"] / STEP_US
        self.assertIn(f"{busy:.0f} %", picture.words)
        self.assertIn(f"{100 * 4 * 100 / STEP_US:.0f} %", picture.words, "a slot's copies")

    def test_every_span_of_the_window_is_in_a_box(self):
        rows = made_up_rows()
        for begin, end, width in ((0, STEP_US, 1200), (500, 1300, 1200), (0, STEP_US, 250)):
            picture = self.draw(trace_of(rows), "--step", "0", "--ms", f"{begin / 1e3}:{end / 1e3}",
                                "--width", str(width))
            for lane, spans in rows.items():
                expected = sum(1 for _, at, length in spans if at < end and at + length > begin)
                if expected:
                    self.assertEqual(picture.num_spans(lane), expected, f"{lane}, {width} points")

    def test_neighbours_too_narrow_to_be_seen_are_one_box(self):
        rows = made_up_rows()
        rows["compute"] = [("attention", 0, 1000)] + [("rms_norm", 1000 + i, 0.7) for i in range(600)]
        rows["compute"] += [("matmul", 1800, 500), ("swiglu", 2400, 0.5)]
        picture = self.draw(trace_of(rows), "--step", "0", "--ms", f"0:{STEP_US / 1e3}")
        boxes = picture.boxes_of("compute")
        self.assertEqual(sorted(num_spans(box) for box in boxes), [1, 1, 1, 600])
        titles = [e.text for e in picture.root.iter(SVG + "title")]
        self.assertTrue(any(title.startswith("600 spans: 600 rms_norm, ") for title in titles), titles)
        self.assertTrue(all(float(box.get("width")) >= 1 for box in boxes))

    def test_a_box_of_many_has_the_colour_of_most_of_their_time(self):
        rows = made_up_rows()
        rows["compute"] = [("rms_norm", 0, 100), ("matmul", 200, 100)]
        for i in range(100):
            rows["compute"] += [("matmul", 1000 + 2 * i, 1.5), ("rms_norm", 1001.5 + 2 * i, 0.5)]
        picture = self.draw(trace_of(rows), "--step", "0", "--ms", f"0:{STEP_US / 1e3}")
        norm, matmul, *mixed = sorted(picture.boxes_of("compute"), key=lambda box: float(box.get("x")))
        self.assertNotEqual(norm.get("fill"), matmul.get("fill"))
        self.assertEqual({box.get("fill") for box in mixed}, {matmul.get("fill")})

    def test_a_long_stretch_is_a_small_picture(self):
        rows = made_up_rows()
        rows["compute"] = [(LAYER[i % len(LAYER)], i * 0.05, 0.04) for i in range(int(STEP_US / 0.05))]
        picture = self.draw(trace_of(rows), "--step", "0", "--ms", f"0:{STEP_US / 1e3}")
        self.assertEqual(picture.num_spans("compute"), len(rows["compute"]))
        self.assertLess(len(picture.text), 150 << 10)

    def test_layers_from_the_middle_of_a_step(self):
        picture = self.draw(trace_of(made_up_rows()), "--step", "1", "--layers", "2")
        self.assertIn("layer 1", picture.words)
        self.assertIn("layer 2", picture.words)
        self.assertNotIn("layer 0", picture.words)
        lines = [e for e in picture.root.iter(SVG + "line") if e.get("class") == "tl-layer"]
        distance = float(lines[1].get("x1")) - float(lines[0].get("x1"))
        self.assertAlmostEqual(distance, (1200 - 98 - 70) / (2 * 1.04), delta=0.2, msg="a layer's width")

    def test_a_slot_holds_what_was_copied_until_it_is_drained(self):
        picture = self.draw(trace_of(made_up_rows()), "--step", "0", "--ms", "0:0.33")
        held = [box for box in picture.boxes_of("slot 0") if box.get("fill-opacity")]
        waits = [box for box in picture.boxes_of("slot 0") if "tl-wait" in box.get("class", "")]
        self.assertEqual((len(held), len(waits)), (1, 1))
        self.assertLess(float(held[0].get("x")), float(waits[0].get("x")))
        self.assertIn("in the slot until it was read", picture.words)
        self.assertNotIn("gather of listed pages", picture.words, "the legend has what is there")

    def test_boxes_say_what_they_are(self):
        picture = self.draw(trace_of(made_up_rows()), "--step", "0", "--ms", "0:1")
        titles = [e.text for e in picture.root.iter(SVG + "title")]
        self.assertIn("attention, 300 µs at 100 µs", titles)
        self.assertIn("wait, 40.0 µs at 60.0 µs", titles)

    def test_the_picture_stands_alone_and_knows_dark_pages(self):
        picture = self.draw(trace_of(made_up_rows()), "--title", "Loads & <compute>")
        self.assertIn("prefers-color-scheme:dark", picture.text)
        self.assertIn("Loads & <compute>", picture.words)
        self.assertNotRegex(picture.text, r"href|@import|<script|<image")

    def test_a_compressed_timeline_is_the_same(self):
        text = trace_of(made_up_rows())
        self.assertEqual(self.draw(gzip.compress(text.encode())).text, self.draw(text).text)

    def refused(self, data, *options):
        done, picture = self.run_script(data, *options)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertFalse(picture.exists())
        return done.stderr

    def test_files_that_are_no_timeline(self):
        for data in ("", "hello", "[]", "{}", '{"traceEvents": 3}', '{"traceEvents": [{"ph": "X"}]}', b"\x1f\x8bxx",
                     b"\x1f\x8b", b"\x1f\x8b" + bytes(20), b"\x1f\x8b\x08" + bytes(20), b"\xff\xfe\x00"):
            self.assertIn("is no timeline", self.refused(data), data)
        self.assertIn("has no steps", self.refused(trace_of({"compute": [("matmul", 0, 1)]})))

    def test_stretches_that_there_are_not(self):
        text = trace_of(made_up_rows())
        self.assertIn("--step: 2 is not one of the 2 steps", self.refused(text, "--step", "2"))
        self.assertIn("--step: -3", self.refused(text, "--step", "-3"))
        self.assertIn("--layers: 4", self.refused(text, "--layers", "4"))
        self.assertIn("nothing happens", self.refused(text, "--ms", "100:200"))
        for bad in ("5", "3:2", "a:b"):
            self.assertIn(f"'{bad}'", self.refused(text, "--ms", bad))


if __name__ == "__main__":
    unittest.main()
