"""Accuracy on held-out rows while a model trains: for every kind the share of values it gets right.

Used by train.py. Teacher forcing: the model sees the right tokens before each one that it predicts,
so one pass over a row checks all its answers; evaluate.py lets the model answer by itself.
"""

from pathlib import Path

import numpy as np
import torch

from data import SHARES, VALUE, RowMaker

SEED = 5
LEAST_ROWS = 4  # of each kind


def value_runs(classes: np.ndarray):
    """Start and end of every run of value tokens in a row."""
    edges = np.flatnonzero(np.diff((classes >= VALUE).astype(np.int8), prepend=0, append=0))
    return edges.reshape(-1, 2).tolist()


def parts(targets: np.ndarray, start: int, end: int, comma: int) -> list[tuple[int, int]]:
    """The values of a list, each with the comma after it."""
    ends = [start + i + 1 for i in np.flatnonzero(targets[start : end - 1] == comma).tolist()]
    return list(zip([start, *ends], [*ends, end]))


def right_parts(kind: str, predicted: np.ndarray, targets: np.ndarray, spans: list) -> list[bool]:
    """Which values of one answer are right.

    Common words may come in any order, so the first token is right if any word that is left has it.
    Their first word does not count: it has another first token than the same word in the list.
    """
    if kind != "cwe":
        return [bool((predicted[a:b] == targets[a:b]).all()) for a, b in spans]
    firsts = [targets[a] for a, _ in spans]
    return [
        predicted[a] in firsts[i:] and bool((predicted[a + 1 : b] == targets[a + 1 : b]).all())
        for i, (a, b) in enumerate(spans)
        if i > 0
    ]


class HeldOut:
    """Rows of every kind of one length, in batches of the shape that training has."""

    def __init__(self, model: Path, tokens: Path, length: int, rows: int):
        maker = RowMaker(model, tokens, SEED, evaluation=True)
        self.comma = maker.encode(",")[0]
        num_batches = -(-LEAST_ROWS * len(SHARES) // rows)
        self.kinds = [list(SHARES)[i % len(SHARES)] for i in range(num_batches * rows)]
        made = [maker.held_out_row(length + 1, kind) for kind in self.kinds]
        self.ids = torch.from_numpy(np.stack([ids for ids, _ in made])).long().split(rows)
        self.classes = np.stack([classes for _, classes in made])[:, 1:]

    def accuracy(self, model, device) -> dict[str, float]:
        """Kind -> share of the values that are right."""
        right = {kind: [] for kind in SHARES}
        predicted = []
        for ids in self.ids:
            best = model.predictions(ids[:, :-1].to(device))
            predicted.append(best.view(len(ids), -1).cpu().numpy())
        targets = torch.cat(self.ids)[:, 1:].numpy()
        rows = zip(self.kinds, np.concatenate(predicted), targets, self.classes)
        for kind, row, target, classes in rows:
            for start, end in value_runs(classes):
                whole = kind == "facts"
                spans = [(start, end)] if whole else parts(target, start, end, self.comma)
                right[kind] += right_parts(kind, row, target, spans)
        return {kind: round(sum(found) / len(found), 3) for kind, found in right.items() if found}
