"""A replica is killed, and another answers what it was asked about, from the KV store that they share.

vllm-router from PyPI stands before both; that it notices is a matter of its health checks, every second here. Printed
are the seconds until the other replica's answer, which has whole blocks from the store.
"""

import os
import pathlib
import signal
import sys
import tempfile
import time
import urllib.error

from checks import holds, run_checks, same
from fleet import (BLOCK_TOKENS, Home, Replica, Router, cached_tokens, complete, document, free_port, wait_until,
                   whole_blocks)

DOCUMENT = document("of the one that dies", 1000)


def vllm_router(replicas):
    port = free_port()
    command = [str(pathlib.Path(sys.prefix) / "bin/vllm-router"), "--host", "127.0.0.1", "--port", str(port),
               "--prometheus-port", str(free_port()), "--policy", "cache_aware",
               "--worker-urls", *(replica.url for replica in replicas), "--api-key", os.environ["SLUICE_API_KEY"],
               "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1",
               "--health-failure-threshold", "1", "--health-success-threshold", "1"]
    return Router(command, port)


def first_answer(url, text, seconds=60):
    """(seconds, statuses before it, the answer) of a client that asks again after each refusal."""
    start, refusals = time.monotonic(), []
    while True:
        try:
            answer = complete(url, text)
            return time.monotonic() - start, refusals, answer
        except urllib.error.HTTPError as error:
            refusals.append(error.code)
        holds(time.monotonic() - start < seconds, f"an answer within {seconds} s; got {refusals}")
        time.sleep(0.1)


def check_the_other_answers_from_the_store():
    with tempfile.TemporaryDirectory() as store:
        options = ["--kv-store", store, "--kv-store-min-tokens", "0"]
        with Replica(*options) as first, Replica(*options) as second, vllm_router([first, second]) as router:
            home = Home([first, second])
            before = complete(router.url, DOCUMENT)
            same(cached_tokens(before), 0, "cached tokens of the first answer")
            holder = home.of_last()
            num_blocks = whole_blocks(before) // BLOCK_TOKENS
            wait_until(lambda: len(list(pathlib.Path(store).rglob("*.kv"))) >= num_blocks, "all blocks are stored")
            home.replicas[holder].process.send_signal(signal.SIGKILL)
            seconds, refusals, after = first_answer(router.url, DOCUMENT)
            same(home.of_last(), 1 - holder, "the replica that answers")
            same(after["choices"][0]["text"], before["choices"][0]["text"], "text of the answer")
            same(cached_tokens(after), whole_blocks(before), "cached tokens")
            print(f"  answered {seconds:.1f} s after the kill, {cached_tokens(after)} of "
                  f"{after['usage']['prompt_tokens']} tokens from the store; refusals before: {refusals}")


if __name__ == "__main__":
    sys.exit(run_checks(globals()))
