"""Writes models/needle/needle_templates.json: the needles that evaluate.py and the engine hide.

Only keys and values that training never saw. The format is described in the model card.

    python3 templates.py --model ../../models/needle
"""

import argparse
import json
import random
from pathlib import Path

from needles import BEST_THING, WORDS, reserved

SEED = 20261121
NUM_KEYS = 240


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    args = parser.parse_args()
    rng = random.Random(SEED)
    pairs = [f"{a} {n}" for a in WORDS["adjectives"] for n in WORDS["nouns"]]
    keys = rng.sample([p for p in pairs if reserved(p)], NUM_KEYS)
    cities = [c for c in WORDS["cities"] if reserved(c)]
    activities = [f"{a} {p}" for a in WORDS["activities"] for p in WORDS["places"]]
    activities = [a for a in activities if reserved(a)]
    number = "The secret number of the {key} is {value}."
    city = f"The {BEST_THING} {{key}} is {{value}}."
    templates = {
        "format": 1,
        "kinds": [
            {
                "name": "number",
                "needle": number,
                "question": "What is the secret number of the {key}?",
                "answer": number,
                "value_digits": 7,
                "keys": keys,
            },
            {
                "name": "city",
                "needle": city,
                "question": f"What is the {BEST_THING} {{key}}?",
                "answer": city,
                "values": activities,
                "keys": cities,
            },
            {
                "name": "values",
                "needle": "One of the secret numbers of the {key} is {value}.",
                "question": "What are all the secret numbers of the {key}?",
                "answer": "The secret numbers of the {key} are {value}.",
                "separator": ", ",
                "value_digits": 7,
                "keys": keys,
            },
        ],
        "repeated_haystack": "The grass is green. The sky is blue. The sun is yellow. Here we go. "
        "There and back again.",
        "prompt": "{haystack}\n\n{question}",
    }
    text = json.dumps(templates, indent=1)
    (args.model / "needle_templates.json").write_text(text + "\n")
    print(f"{len(keys)} keys, {len(cities)} cities, {len(activities)} activities")


if __name__ == "__main__":
    main()
