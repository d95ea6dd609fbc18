"""The work that every engine of the comparison gets: prompt lengths, and many requests at once."""

import random

PREFILL_LENGTHS = [16384, 32768]
DECODE_LENGTHS = [1024, 16384]
DECODE_TOKENS = 64
NUM_REQUESTS = 256


def requests(seed=0):
    """(prompt tokens, output tokens) of nano-vllm's benchmark: 100 to 1024 of each, drawn as it draws them.

    Its script draws all prompts first (a length, then that many ids), then all output lengths.
    """
    rng = random.Random(seed)
    prompts = []
    for _ in range(NUM_REQUESTS):
        length = rng.randint(100, 1024)
        for _ in range(length):
            rng.randint(0, 10000)
        prompts.append(length)
    return [(length, rng.randint(100, 1024)) for length in prompts]


def token_ids(length, vocab_size, seed):
    rng = random.Random(seed)
    return [rng.randrange(vocab_size) for _ in range(length)]
