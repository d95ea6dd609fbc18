"""Replicas of the bundled model and a router of others in front of them, for check_vllm_router.py and its like.

Each replica has one thread and a port of its own on the loopback address. The arguments of routers come from
deploy/routers, so that what is tested is what is printed there. Standard library only.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from checks import MODEL_NAME, Server, holds, same

ROUTERS = pathlib.Path(__file__).resolve().parents[2] / "deploy/routers"
BLOCK_TOKENS = 256
PATIENCE_SECONDS = 60  # for what takes a moment on a quiet machine
MOST_DOCUMENTS = 24
LEAST_AT_HOME = 2
NUM_REPEATS = 2
DOCUMENT_WORDS = 500  # of three letters and a blank: some 1,700 tokens of the bundled model
HEADERS = {"Authorization": f"Bearer {os.environ['SLUICE_API_KEY']}", "Content-Type": "application/json"}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def document(name, num_words=DOCUMENT_WORDS):
    """A text that no other name has; one with more words begins with the one with fewer."""
    generator = random.Random(name)
    letters = "abcdefghijklmnopqrstuvwxyz"
    return " ".join("".join(generator.choices(letters, k=3)) for _ in range(num_words))


def request_to(url, body=None, headers=None):
    return urllib.request.Request(url, body and json.dumps(body).encode(), HEADERS | (headers or {}))


def get_text(url, seconds=PATIENCE_SECONDS):
    with urllib.request.urlopen(request_to(url), timeout=seconds) as answer:
        return answer.read().decode()


def completion_body(text, **fields):
    return {"model": MODEL_NAME, "prompt": text, "max_tokens": 4, "temperature": 0, "ignore_eos": True} | fields


def complete(url, text, headers=None, **fields):
    """The answer of a completion of four tokens. urllib.error.HTTPError where the status is not 200."""
    with urllib.request.urlopen(request_to(f"{url}/v1/completions", completion_body(text, **fields), headers),
                                timeout=2 * PATIENCE_SECONDS) as answer:
        return json.loads(answer.read())


def cached_tokens(answer):
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def whole_blocks(answer):
    """The tokens of a prompt that a repeat finds: its whole blocks, but at least one token is computed."""
    return (answer["usage"]["prompt_tokens"] - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def wait_until(condition, what, seconds=PATIENCE_SECONDS):
    deadline = time.monotonic() + seconds
    while not condition():
        holds(time.monotonic() < deadline, f"{what} within {seconds} s")
        time.sleep(0.02)


class Replica(Server):
    def __init__(self, *options, port=0, kv_bytes="256M"):
        super().__init__(os.environ["MODEL"], "--threads", "1", "--block-size", str(BLOCK_TOKENS),
                         "--kv-offload", "off", *options, port=port, kv_bytes=kv_bytes)

    def num_answered(self):
        return len(re.findall(r" /v1/completions 200 ", self.logged()))

    def metric(self, name):
        """The sum of the samples of this name."""
        page = get_text(f"{self.url}/metrics")
        return sum(float(value) for value in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", page, re.MULTILINE))


class EventReplica(Replica):
    """One that tells of its KV. With the ports of another it comes back in that one's place."""

    def __init__(self, *options, kv_bytes="256M", in_place_of=None):
        self.events_port = in_place_of.events_port if in_place_of else free_port()
        self.replay_port = in_place_of.replay_port if in_place_of else free_port()
        super().__init__("--kv-events", f"tcp://127.0.0.1:{self.events_port}",
                         "--kv-events-replay", f"tcp://127.0.0.1:{self.replay_port}", *options,
                         port=in_place_of.port if in_place_of else 0, kv_bytes=kv_bytes)


class Home:
    """Which of several replicas has answered, when requests come one after the other, after `num_answers` before."""

    def __init__(self, replicas, num_answers=0):
        self.replicas, self.counts = replicas, [0] * len(replicas)
        self.wait_for(num_answers)

    def of_last(self):
        """The index of the replica that has answered since the call before. Its log has the line after the answer."""
        wait_until(lambda: self.now() != self.counts, "a replica says that it has answered")
        before, self.counts = self.counts, self.now()
        changes = [new - old for new, old in zip(self.counts, before)]
        same(sorted(changes), [0] * (len(changes) - 1) + [1], "answers since the last request")
        return changes.index(1)

    def wait_for(self, num_answers):
        """Until that many more were given; of_last counts from there."""
        wait_until(lambda: sum(self.now()) == sum(self.counts) + num_answers, f"{num_answers} answers are logged")
        self.counts = self.now()

    def now(self):
        return [replica.num_answered() for replica in self.replicas]


def repeats_go_home(replicas, ask, at_once=1):
    """`ask(name)` asks about a document of that name through a router: each goes home again, and all replicas are used.

    New documents come until each replica has two, since some routers choose among equals by chance; `at_once` of them
    together, since some fill one replica as long as no requests overlap. Each is then asked about twice in a row, so
    that a router that takes turns does not pass. Returns the index of each document's replica.
    """
    home, homes, names = Home(replicas), {}, []
    while min(split := home.now()) < LEAST_AT_HOME:
        holds(len(names) < MOST_DOCUMENTS, f"all replicas are used: {split}")
        new = [f"document {len(names) + i}" for i in range(at_once)]
        with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
            same([cached_tokens(answer) for answer in pool.map(ask, new)], [0] * at_once, "cached tokens")
        names += new
        home.wait_for(at_once)
    hits, num_repeats = 0, NUM_REPEATS * len(names)
    for name in (name for name in names for _ in range(NUM_REPEATS)):
        answer = ask(name)
        where = home.of_last()
        hits += homes.setdefault(name, where) == where and cached_tokens(answer) == whole_blocks(answer)
    print(f"  {len(names)} documents split {split}; {hits} of {num_repeats} repeats found all blocks at home",
          flush=True)
    same(hits, num_repeats, "repeats that found all blocks at home")
    return homes


class Router:
    """A program in front of replicas. `words` are its command; it serves once `url` and `ready` answers 200."""

    def __init__(self, words, port, ready="/health"):
        self.url = f"http://127.0.0.1:{port}"
        self.log = tempfile.NamedTemporaryFile(mode="w+", encoding="utf-8", prefix="router-")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        try:
            wait_until(lambda: self.serves(ready), "the router serves")
        except AssertionError as error:
            self.__exit__()
            raise AssertionError(f"{error}: {self.logged()[-2000:]}") from error

    def serves(self, path):
        holds(self.process.poll() is None, "the router runs")
        with contextlib.suppress(OSError):  # urllib.error.URLError is one
            get_text(self.url + path, seconds=2)
            return True
        return False

    def logged(self):
        return pathlib.Path(self.log.name).read_text(encoding="utf-8")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def shipped_command(name, replacements):
    """The words of the command in deploy/routers/NAME, with other addresses in place of those of a cluster.

    Every text that is to be replaced must be there, or the file and the test no longer speak of the same.
    """
    lines = (ROUTERS / name).read_text(encoding="utf-8").splitlines()
    command = " ".join(line.removesuffix("\\") for line in lines if not line.startswith("#"))
    for old, new in replacements.items():
        holds(old in command, f"{name} has {old}")
        command = command.replace(old, new)
    words = [os.path.expandvars(word) for word in shlex.split(command)]
    holds(words[0] == "exec", f"{name} is one command")
    return [str(pathlib.Path(sys.prefix) / "bin" / words[1]), *words[2:]]
