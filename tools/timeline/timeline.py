"""Reads the timelines that `sluice run --timeline FILE` writes (docs/offload.md), plain or compressed with gzip."""

import collections
import gzip
import json
import zlib
from pathlib import Path

Span = collections.namedtuple("Span", "kind name begin end")  # microseconds

# Kinds of spans by name. Other names have the kind "other"; spans on the row `engine` are "step".
KIND_OF_NAME = {"attention": "attention", "matmul": "matmul", "copy h2d": "h2d", "copy d2h": "d2h",
                "gather_pages": "gather", "wait": "wait"}
FILLS_SLOT = ("h2d", "gather")


class TimelineError(Exception):
    """An error for the user. The text names the thing, the value and the remedy."""


def read_rows(path):
    """The rows of a timeline: name -> spans in order of time."""
    try:
        data = Path(path).read_bytes()
        trace = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
        events = trace["traceEvents"]
        names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
        rows = {name: [] for name in names.values()}
        for event in events:
            if event["ph"] == "X":
                begin = float(event["ts"])
                rows[names[event["tid"]]].append(Span("", event["name"], begin, begin + float(event["dur"])))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TimelineError(f"{path} is no timeline; make one with `sluice run --timeline FILE`") from error
    except OSError as error:
        raise TimelineError(f"{path}: {error.strerror}") from error
    if not rows.get("engine") or not rows.get("compute"):
        raise TimelineError(f"{path} has no steps; record a run that computes something")
    return {name: with_kinds(name, sorted(spans, key=lambda s: s.begin)) for name, spans in rows.items()}


def with_kinds(lane, spans):
    """Spans with their kinds. The first wait after a load of a slot ends when compute has drained the slot."""
    result, before = [], None
    for span in spans:
        kind = "step" if lane == "engine" else KIND_OF_NAME.get(span.name, "other")
        if kind == "wait" and before in FILLS_SLOT and lane.startswith("slot "):
            kind = "held"
        result.append(span._replace(kind=kind))
        before = kind
    return result
