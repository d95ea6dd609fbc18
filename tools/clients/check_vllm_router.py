"""vllm-router, from PyPI, with deploy/routers/vllm-router.sh before two replicas: by the KV that each says it holds."""

import sys
import time

from checks import holds, run_checks, same
from fleet import (EventReplica, Home, Router, cached_tokens, complete, document, free_port, repeats_go_home,
                   shipped_command)

NUM_AT_ONCE = 6
NUM_MESSAGES = 20
BLOCK_WORDS = 110  # of which a prompt has one whole block
SHORT_WORDS, LONG_WORDS = 300, 900


def vllm_router(replicas):
    port = free_port()
    addresses = {}
    for i, replica in enumerate(replicas):
        addresses |= {f"sluice-{i}:8000": f"127.0.0.1:{replica.port}",
                      f"sluice-{i}:5557": f"127.0.0.1:{replica.events_port}",
                      f"sluice-{i}:5558": f"127.0.0.1:{replica.replay_port}"}
    command = shipped_command("vllm-router.sh", addresses | {
        "--host 0.0.0.0": "--host 127.0.0.1",
        "--port 8080": f"--port {port} --prometheus-port {free_port()}"})
    return Router(command, port)


def check_repeats_go_home():
    with EventReplica() as first, EventReplica() as second, vllm_router([first, second]) as router:
        repeats_go_home([first, second], lambda name: complete(router.url, document(name)), at_once=NUM_AT_ONCE)


def check_a_restart_is_noticed():
    """Both hold a document, one of them more of it: that one is asked. Once it has restarted, the other is.

    The router sees it by the number of the first message after it has connected again, if that is lower than the last
    one. What was sent before is lost, so many messages come before the restart, and few after it.
    """
    short, long = document("both", SHORT_WORDS), document("both", LONG_WORDS)
    with EventReplica() as first, EventReplica() as second, vllm_router([first, second]) as router:
        for i in range(NUM_MESSAGES):
            complete(first.url, document(f"before {i}", BLOCK_WORDS), max_tokens=1)
        complete(first.url, long)
        complete(second.url, short)
        home = Home([first, second], NUM_MESSAGES + 2)
        complete(router.url, long)
        same(home.of_last(), 0, "the replica that holds more")
        first.process.kill()
        first.process.wait()
        with EventReplica(in_place_of=first) as again:
            seconds, num_asked = seconds_until_noticed(again, router)
            home = Home([again, second], num_asked + 1)
            holds(cached_tokens(complete(router.url, long)) > 0, "something was cached")
            same(home.of_last(), 1, "the replica that still holds some")
            print(f"  noticed {seconds:.1f} s after the replica served again")


def seconds_until_noticed(replica, router):
    """And the number of requests until then."""
    start = time.monotonic()
    for i in range(NUM_MESSAGES):
        time.sleep(0.25)
        complete(replica.url, document(f"after {i}", BLOCK_WORDS), max_tokens=1)
        if "restart seq" in router.logged():
            return time.monotonic() - start, i + 1
    raise AssertionError("the router does not see a lower number")


if __name__ == "__main__":
    sys.exit(run_checks(globals()))
