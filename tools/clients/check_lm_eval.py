"""lm-eval's model local-completions: what it computes from echoed log-probabilities is what score prints.

The tokenizer is the server's (GET /tokenizer_info, POST /tokenize); no data set is read.
"""

import logging
import os
import sys

from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from checks import ANSWER, MODEL_NAME, QUESTION, close, holds, run_checks, same, score

logging.getLogger().setLevel(logging.WARNING)
PAIRS = [("The sun is high,", " and the old dog sleeps under a tree."),
         ("It was a dark and", " stormy night"),
         ("Grüße aus", " Köln und 日本."),
         ("The king of France", " was the king of France was")]
# Special tokens written out in a raw prompt count.
CHAT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


def model(**options):
    # Requests take the key from the environment, those of the tokenizer only from auth_token.
    return get_model("local-completions")(base_url=f"{os.environ['OPENAI_BASE_URL']}/completions",
                                          auth_token=os.environ["OPENAI_API_KEY"], model=MODEL_NAME,
                                          **options)


def instances(kind, arguments):
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def sum_of_rest(context, continuation):
    """The sum and whether each token was the likeliest, from `sluice score` of the whole text."""
    whole, head = score(context + continuation), score(context)
    first = len(head["token_ids"])
    same(whole["token_ids"][:first], head["token_ids"], "ids of the context")
    rest = range(first, len(whole["token_ids"]))
    return (sum(whole["logprobs"][i] for i in rest),
            all(whole["token_ids"][i] == whole["top_token_ids"][i] for i in rest))


def check_tokenizer_of_the_server():
    remote = model()
    same(remote.tokenizer_backend, "remote")
    for text in [PAIRS[0][0], PAIRS[2][1]]:
        same(remote.tok_encode(text), score(text)["token_ids"], f"ids of {text!r}")


def check_loglikelihood():
    want = [sum_of_rest(*pair) for pair in PAIRS]
    for options in ({}, {"batch_size": 3}, {"num_concurrent": 3}):
        found = model(**options).loglikelihood(instances("loglikelihood", PAIRS))
        for pair, (ours, is_greedy), (theirs, want_greedy) in zip(PAIRS, found, want, strict=False):
            close(ours, theirs, f"loglikelihood of {pair} with {options}")
            same(is_greedy, want_greedy, f"greedy flag of {pair}")


def check_greedy_answer_is_greedy():
    # lm-eval counts the space at the end of a context to what follows, so the context ends in a word.
    first, rest = ANSWER.split(" ", 1)
    ((found, is_greedy),) = model().loglikelihood(instances("loglikelihood", [(CHAT + first, " " + rest)]))
    same(is_greedy, True)
    holds(-0.1 < found < 0, f"loglikelihood {found} of the trained answer")


def check_loglikelihood_rolling():
    text = "".join(PAIRS[0])
    (found,) = model().loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    # lm-eval puts a token before the text, so that the first one has a value.
    close(found, score([model().prefix_token_id, *score(text)["token_ids"]])["sum"])


def check_generate_until():
    until = {"until": ["castle"], "max_gen_toks": 24, "temperature": 0}
    (found,) = model().generate_until(instances("generate_until", [(CHAT, until)]))
    same(found, ANSWER[:ANSWER.index("castle")])


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
