#!/usr/bin/env python3
"""Draws a stretch of a timeline as a picture: a lane for each stream, a box for each op.

Reads the file that `sluice run --timeline FILE` writes (docs/offload.md; plain or gzip) and
writes a self-contained SVG for documents, readable on light and dark pages. The stretch is some layers
in the middle of a step, or milliseconds of one. Boxes too narrow to be seen are merged into one, in
the colour of the kind with the most time; in a browser boxes have tooltips.

    python3 tools/timeline/timeline_svg.py timeline.json --step 3 --layers 2 --out picture.svg
    python3 tools/timeline/timeline_svg.py timeline.json --step -1 --ms 10:12.5 --out picture.svg

Steps are the spans of the row `engine`, from 0; negative ones count from the last. Exit status: 0 done,
2 the file is no timeline, or has no such stretch.
"""

import argparse
import collections
import html
import math
import sys
from pathlib import Path

from timeline import FILLS_SLOT, TimelineError, read_rows

EXIT_FAILED = 2
FIRST_OF_LAYER, ROPE, ATTENTION = "rms_norm", "rope_and_write_kv", "attention"
Box = collections.namedtuple("Box", "kind begin end spans")  # one or more spans

# Kind of work -> colour and text of the legend, in the legend's order.
KINDS = {
    "attention": ("#2f6fde", "attention"),
    "matmul": ("#7a4fd0", "matrix product"),
    "other": ("#158c8c", "other ops"),
    "h2d": ("#c8741a", "copy to the device"),
    "gather": ("#a98a00", "gather of listed pages"),
    "d2h": ("#c2417c", "copy to the host"),
    "step": ("#6b7688", "step of the engine"),
    "held": (None, "in the slot until it was read"),
    "wait": (None, "waits for another stream"),
}
SHORT = {"copy h2d": "copy", "copy d2h": "copy", "gather_pages": "gather", "rms_norm": "norm",
         "rope_and_write_kv": "rope", "select_pages": "select", "score_pages": "score",
         "update_key_bounds": "bounds"}

PALE = ("wait", "held")  # kinds in which nothing runs

# Sizes in points.
LEFT, RIGHT, TOP, LANE, GAP, AXIS, LEGEND, LEGEND_LINE, MARGIN = 98, 70, 84, 30, 9, 40, 30, 20, 20
HEIGHTS = {"engine": 18, "compute": 44}
LABEL_SIZE, CHARACTER = 10.5, 0.55  # of a box's label, and a character's width as a share of it
LEAST_LAYER = 20  # between the lines of two layers
NARROW = 3  # boxes narrower than this have no gap beside them and no tooltip
FONT = "Inter, 'Segoe UI', 'DejaVu Sans', 'Helvetica Neue', Arial, sans-serif"
STYLE = """.tl-back{fill:#ffffff}.tl-ink{fill:#1c2330}.tl-soft{fill:#5b6575}
.tl-lane{fill:#f1f3f7}.tl-grid{stroke:#1c2330;stroke-opacity:.09}.tl-layer{stroke:#1c2330;stroke-opacity:.45}
.tl-hatch{stroke:#8a95a6;stroke-width:1.3;stroke-opacity:.55}.tl-wait{fill:url(#hatch)}
.tl-edge{stroke:#8a95a6;stroke-opacity:.5}.tl-label{fill:#ffffff;font-size:10.5px;text-anchor:middle}
.tl-pale{fill:#5b6575;font-size:10.5px;text-anchor:middle;paint-order:stroke;stroke:#f1f3f7;stroke-width:4px}
@media (prefers-color-scheme:dark){.tl-back{fill:#12161d}.tl-ink{fill:#e8ebf1}.tl-soft{fill:#9aa5b5}
.tl-lane{fill:#1b212b}.tl-grid{stroke:#e8ebf1;stroke-opacity:.1}.tl-layer{stroke:#e8ebf1;stroke-opacity:.5}
.tl-pale{fill:#9aa5b5;stroke:#1b212b}}"""


# ---- The stretch ------------------------------------------------------------------------------


def lane_order(name):
    """Order of lanes: engine, compute, the slots by number, write-back, the rest."""
    if name.startswith("slot "):
        return 2, int(name[5:]), name
    return {"engine": 0, "compute": 1, "write-back": 3}.get(name, 4), 0, name


def clip(spans, begin, end):
    """The spans within a stretch, clipped to it."""
    return [s._replace(begin=max(s.begin, begin), end=min(s.end, end))
            for s in spans if s.begin < end and s.end > begin]


def layer_begins(spans):
    """The time at which each layer of a step begins: the norm before its first write of KV."""
    begins, norm, attended = [], None, True
    for span in spans:
        if span.name == FIRST_OF_LAYER:
            norm = span.begin
        elif span.name == ATTENTION:
            attended = True
        elif span.name == ROPE and attended and norm is not None:
            begins.append(norm)
            attended = False
    return begins


def find_stretch(rows, options):
    """Begin and end of what is drawn, the step's number, and its layers' begins (number -> time)."""
    steps = rows["engine"]
    number = options.step if options.step >= 0 else len(steps) + options.step
    if not 0 <= number < len(steps):
        raise TimelineError(f"--step: {options.step} is not one of the {len(steps)} steps; "
                            f"give 0 to {len(steps) - 1}")
    step = steps[number]
    layers = layer_begins(clip(rows["compute"], step.begin, step.end))
    if options.ms:
        begin, end = step.begin + 1e3 * options.ms[0], step.begin + 1e3 * options.ms[1]
    else:
        if len(layers) <= options.layers:
            raise TimelineError(f"--layers: {options.layers} and one to end at are more than step {number} shows "
                                f"({len(layers)}); give fewer, or --ms BEGIN:END")
        first = (len(layers) - options.layers) // 2
        # A margin before and after.
        begin, end = layers[first], layers[first + options.layers]
        begin, end = begin - 0.02 * (end - begin), end + 0.02 * (end - begin)
    if not any(clip(spans, begin, end) for spans in rows.values()):
        raise TimelineError(f"--ms: nothing happens in that stretch; step {number} takes "
                            f"{(step.end - step.begin) / 1e3:.3f} ms")
    return begin, end, number, {i: t for i, t in enumerate(layers) if begin <= t <= end}


# ---- Boxes -----------------------------------------------------------------------------------


def make_boxes(spans, us_per_point):
    """A box for each span; neighbours narrower than a point are merged to boxes of about a point."""
    boxes, narrow = [], []

    def end_narrow():
        if not narrow:
            return
        time_of = collections.Counter()
        for span in narrow:
            time_of[span.kind] += span.end - span.begin
        box = Box(time_of.most_common(1)[0][0], narrow[0].begin, narrow[-1].end, list(narrow))
        narrow.clear()
        before = boxes[-1] if boxes else None
        if before and len(before.spans) > 1 and before.kind == box.kind and box.begin - before.end <= us_per_point:
            boxes[-1] = Box(box.kind, before.begin, box.end, before.spans + box.spans)
        else:
            boxes.append(box)

    for span in spans:
        if span.end - span.begin >= us_per_point:
            end_narrow()
            boxes.append(Box(span.kind, span.begin, span.end, [span]))
            continue
        if narrow and (span.begin - narrow[-1].end > us_per_point or span.end - narrow[0].begin > 2 * us_per_point):
            end_narrow()
        narrow.append(span)
    end_narrow()
    return boxes


def describe(box, origin):
    """The tooltip of a box."""
    if len(box.spans) == 1:
        what = box.spans[0].name
    else:
        counts = collections.Counter(s.name for s in box.spans)
        what = f"{len(box.spans)} spans: " + ", ".join(f"{n} {name}" for name, n in counts.most_common())
    return f"{what}, {time_text(box.end - box.begin)} at {time_text(box.begin - origin)}"


def time_text(us):
    """Three digits: 8.12 ms, 202 µs."""
    value, unit = (us, "µs") if abs(us) < 999.5 else (us / 1e3, "ms")
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


# ---- Drawing ---------------------------------------------------------------------------------


class Canvas:
    """Collects elements; `x` turns microseconds into points."""

    def __init__(self, begin, end, width):
        self.begin, self.end, self.width = begin, end, width
        self.us_per_point = (end - begin) / (width - LEFT - RIGHT)
        self.elements = []

    def x(self, us):
        return LEFT + (us - self.begin) / self.us_per_point

    def add(self, element):
        self.elements.append(element)

    def text(self, x, y, words, css, size=12, anchor="start", extra=""):
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" class="{css}" text-anchor="{anchor}"{extra}>'
                 f"{html.escape(words)}</text>")


def draw_ground(canvas, name, boxes, y, height):
    """A lane, its name, and its share of busy time."""
    right = canvas.width - RIGHT
    canvas.add(f'<rect class="tl-lane" x="{LEFT}" y="{y}" width="{right - LEFT}" height="{height}" rx="3"/>')
    canvas.text(LEFT - 12, y + height / 2 + 4.3, name, "tl-ink", 12.5, "end")
    if name == "engine":
        return
    busy = sum(s.end - s.begin for box in boxes for s in box.spans if s.name != "wait")
    share = 100 * busy / (canvas.end - canvas.begin)
    canvas.text(right + 12, y + height / 2 + 4.3, f"{share:.0f} %", "tl-soft", 12.5)


def draw_boxes(canvas, name, boxes, y, height):
    """Draws work over waits. The time that a slot holds KV has the colour of its load."""
    canvas.add(f'<g transform="translate(0 {y})" data-lane="{html.escape(name)}">')
    loaded = "h2d"
    for box in boxes:
        loaded = box.kind if box.kind in FILLS_SLOT else loaded
        if box.kind in PALE:
            draw_box(canvas, box, height, loaded, labelled=name == "compute")
    for box in boxes:
        if box.kind not in PALE:
            draw_box(canvas, box, height, box.kind, labelled=True)
    canvas.add("</g>")


def look_of(kind, colour_of, edged=True):
    if kind == "wait":
        return 'class="tl-wait tl-edge"' if edged else 'class="tl-wait"'
    return f'fill="{KINDS[colour_of][0]}"' + (' fill-opacity=".4"' if kind == "held" else "")


def draw_box(canvas, box, height, colour_of, labelled):
    x, width = canvas.x(box.begin), max(1.0, (box.end - box.begin) / canvas.us_per_point)
    inset = height * 0.3 if box.kind in PALE else 3 if height > 20 else 2
    drawn = width - 0.6 if width > NARROW else width
    shape = f'x="{x:.1f}" y="{inset:g}" width="{drawn:.1f}" height="{height - 2 * inset:g}"'
    shape += ' rx="2"' if width > 2 * NARROW else ""
    look = look_of(box.kind, colour_of, width > 2 * NARROW)
    title = f"<title>{html.escape(describe(box, canvas.begin))}</title>" if width > NARROW else ""
    many = f' data-spans="{len(box.spans)}"' if len(box.spans) > 1 else ""
    canvas.add(f"<rect {look} {shape}{many}" + (f">{title}</rect>" if title else "/>"))
    label = box_label(box, drawn) if labelled else ""
    if label:
        css = "tl-pale" if box.kind == "wait" else "tl-label"
        canvas.add(f'<text x="{x + drawn / 2:.1f}" y="{height / 2 + 3.7:.1f}" class="{css}">{label}</text>')


def box_label(box, width):
    """Writes the span's name where it fits, and the time of a wait."""
    if len(box.spans) > 1:
        return ""
    span = box.spans[0]
    words = SHORT.get(span.name, span.name)
    timed = f"{words} {time_text(span.end - span.begin)}" if span.name == "wait" else words
    return next((html.escape(w) for w in (timed, words) if len(w) * LABEL_SIZE * CHARACTER + 4 < width), "")


def draw_axis(canvas, y, bottom):
    """Ticks at round times, counted from the left edge."""
    length = canvas.end - canvas.begin
    step = 10 ** math.floor(math.log10(length / 6))
    step *= next(f for f in (1, 2, 5, 10) if length / (step * f) <= 8.5)
    unit, name = (1e3, "ms") if length >= 2000 else (1, "µs")
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    for i in range(int(length / step) + 1):
        x = canvas.x(canvas.begin + i * step)
        canvas.add(f'<line class="tl-grid" x1="{x:.1f}" y1="{y}" x2="{x:.1f}" y2="{bottom}"/>')
        canvas.text(x, bottom + 17, f"{i * step / unit:.{digits}f}" + (f" {name}" if i == 0 else ""), "tl-soft", 11.5,
                    "middle")


def draw_layers(canvas, layers, y, bottom):
    """A line and a number where each layer begins on `compute`; none where lines would be too close."""
    places = [canvas.x(begin) for begin in layers.values()]
    distance = min((b - a for a, b in zip(places, places[1:])), default=math.inf)
    if distance < LEAST_LAYER:
        return
    for number, x in zip(layers, places):
        canvas.add(f'<line class="tl-layer" stroke-dasharray="3 3" x1="{x:.1f}" y1="{y - 10}" x2="{x:.1f}" '
                   f'y2="{bottom}"/>')
        if min(distance, canvas.width - RIGHT - x) > 50:
            canvas.text(x + 5, y - 3, f"layer {number}", "tl-soft", 11.5)


def place_legend(kinds, width):
    """The place in the legend of each kind in the picture: x and line."""
    places, x, line = {}, LEFT, 0
    for kind, (_, words) in KINDS.items():
        if kind not in kinds or kind == "step":
            continue
        length = 21 + len(words) * 6
        if x > LEFT and x + length > width - MARGIN:
            x, line = LEFT, line + 1
        places[kind] = x, line
        x += length + 22
    return places


def draw_legend(canvas, places, y):
    loaded = "gather" if "gather" in places else "h2d"
    for kind, (x, line) in places.items():
        look = look_of(kind, loaded if kind == "held" else kind)
        base = y + line * LEGEND_LINE
        canvas.add(f'<rect {look} x="{x}" y="{base - 10}" width="16" height="11" rx="2"/>')
        canvas.text(x + 21, base, KINDS[kind][1], "tl-ink", 12)


def subtitle(rows, stretch):
    begin, end, number, _ = stretch
    step = rows["engine"][number]
    relation = "of" if begin >= step.begin and end <= step.end else "around"
    return (f"{time_text(end - begin)} {relation} step {number}, a {step.name} step of "
            f"{time_text(step.end - step.begin)}")


def draw(rows, options):
    """The picture, as text."""
    stretch = find_stretch(rows, options)
    begin, end, _, layers = stretch
    canvas = Canvas(begin, end, options.width)
    names = sorted((name for name, spans in rows.items() if name in ("engine", "compute") or clip(spans, begin, end)),
                   key=lane_order)
    lanes, y = [], TOP
    for name in names:
        boxes = make_boxes(clip(rows[name], begin, end), canvas.us_per_point)
        lanes.append((name, boxes, y, HEIGHTS.get(name, LANE)))
        y += HEIGHTS.get(name, LANE) + GAP
    bottom = y - GAP
    legend = place_legend({box.kind for _, boxes, _, _ in lanes for box in boxes}, options.width)
    height = bottom + AXIS + LEGEND + LEGEND_LINE * max((line for _, line in legend.values()), default=0)

    canvas.text(MARGIN, 32, options.title, "tl-ink", 19, extra=' font-weight="600"')
    canvas.text(MARGIN, 53, subtitle(rows, stretch), "tl-soft", 12.5)
    canvas.text(options.width - RIGHT + 12, TOP + HEIGHTS["engine"] / 2 + 4.3, "busy", "tl-soft", 12.5)
    for lane in lanes:
        draw_ground(canvas, *lane)
    draw_axis(canvas, TOP, bottom)
    draw_layers(canvas, layers, TOP, bottom)
    for lane in lanes:
        draw_boxes(canvas, *lane)
    draw_legend(canvas, legend, bottom + AXIS + 10)
    label = html.escape(f"{options.title}: {subtitle(rows, stretch)}", quote=True)
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {options.width} {height}" width="{options.width}" '
        f'height="{height}" role="img" aria-label="{label}" font-family="{FONT}">',
        f"<style>\n{STYLE}\n</style>",
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><line class="tl-hatch" x1="0" y1="0" x2="0" y2="6"/></pattern></defs>',
        '<rect class="tl-back" width="100%" height="100%" rx="6"/>', *canvas.elements, "</svg>", ""])


def parse_stretch(text):
    try:
        begin, end = (float(part) for part in text.split(":"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not BEGIN:END, as in 10:12.5") from None
    if not end > begin:
        raise argparse.ArgumentTypeError(f"'{text}' ends before it begins")
    return begin, end


def parse_positive(text):
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 1 on")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("timeline", help="what --timeline FILE has written, .json or .json.gz")
    parser.add_argument("--step", type=int, default=-1, help="which step of the engine, from 0 (-1: the last)")
    parser.add_argument("--layers", type=parse_positive, default=2, help="this many from the middle of the step (2)")
    parser.add_argument("--ms", type=parse_stretch, metavar="BEGIN:END",
                        help="instead: milliseconds after the step began")
    parser.add_argument("--title", default="What the streams run", help="the picture's title")
    parser.add_argument("--width", type=parse_positive, default=1200, help="of the picture, in points (1200)")
    parser.add_argument("--out", required=True, metavar="FILE", help="the SVG")
    options = parser.parse_args()
    try:
        picture = draw(read_rows(options.timeline), options)
        Path(options.out).write_text(picture, encoding="utf-8")
    except TimelineError as error:
        print(f"timeline_svg: {error}", file=sys.stderr)
        return EXIT_FAILED
    except OSError as error:
        print(f"timeline_svg: {options.out}: {error.strerror}", file=sys.stderr)
        return EXIT_FAILED
    print(f"{options.out}: {len(picture.encode()) / 1024:.0f} KiB", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
