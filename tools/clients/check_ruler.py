"""lm-eval's RULER tasks whose texts are made up: their prompts of 4K tokens through local-completions.

The tokenizer that sizes the prompts is the model's directory; no data set is read.
"""

import logging
import os
import sys

import nltk

# The tasks fetch a sentence splitter when they are imported; only those with essays use it.
nltk.download = lambda *_, **__: False

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

from checks import MODEL_NAME, holds, run_checks, same  # noqa: E402

logging.getLogger().setLevel(logging.WARNING)
TASKS = ["niah_single_1", "niah_multikey_2", "ruler_vt", "ruler_fwe"]
NUM_TOKENS = 4096
NUM_DOCS = 3


def score_of(results, task):
    return results[task][f"{NUM_TOKENS},none"]


def check_tasks():
    model = get_model("local-completions")(
        base_url=f"{os.environ['OPENAI_BASE_URL']}/completions", model=MODEL_NAME,
        tokenizer=os.environ["MODEL"], auth_token=os.environ["OPENAI_API_KEY"], max_length=32768)
    found = simple_evaluate(model=model, tasks=TASKS, limit=NUM_DOCS, log_samples=True,
                            metadata={"max_seq_lengths": [NUM_TOKENS], "tokenizer": os.environ["MODEL"]})
    for task in TASKS:
        answers = [sample["resps"][0][0] for sample in found["samples"][task]]
        same(len(answers), NUM_DOCS, f"answers of {task}")
        holds(all(answers), f"an answer without text among those of {task}: {answers}")
        print(f"  {task}: {score_of(found['results'], task)}")
    # The bundled model is trained to find one needle; the others are hard for its size.
    for task in TASKS[:2]:
        same(score_of(found["results"], task), 1.0, f"score of {task}")


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
