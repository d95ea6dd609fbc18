"""Clients whose machine vanishes: no FIN, no RST, no byte more. The server must free what it holds for them.

The server and the clients are in network namespaces of their own, whose link is cut while answers are made. Needs
Linux's `ip` and `unshare`, and root or user namespaces: without them the status is 75, and the reason is printed.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

from checks import Server, holds, run_checks, same

SKIPPED = 75
NEW_NAMESPACES = ["unshare", "--user", "--map-root-user", "--mount", "--net"]
SERVER_ADDRESS, CLIENT_ADDRESS = "10.99.0.1", "10.99.0.2"
# docs/serving.md says when they are noticed: this time after the last byte that they acknowledged, and a sixth or two
# of it (each at least 1 s) later. That byte may be a ping, which comes up to 10 s after the link is cut.
STALL_SECONDS = 6
LATEST_SECONDS = STALL_SECONDS + 2 + 10
# What makes the test fail, and no more: a machine may be slow, but the answers of TCP itself take 15 minutes.
BOUND_SECONDS = 120
# The last word of a client is an answer to keep-alive, half of the time apart. One that is noticed much earlier has
# said that it goes.
LEAST_SECONDS = STALL_SECONDS / 3
PATIENCE_SECONDS = 60  # for what takes a moment
DOCUMENT = "It was a dark and stormy night. " * 100
# Lasts longer than a client is waited for: the time of a token grows with the context.
ANSWER_TOKENS = 30_000
# Sends its request, says so, and reads whatever comes, for ever.
CLIENT = """
import socket, sys
address, port, request = sys.argv[1:]
client = socket.create_connection((address, int(port)))
client.sendall(request.encode())
print("sent", flush=True)
while client.recv(65536):
    pass
"""


def sh(*words):
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False, timeout=20)
    if done.returncode != 0:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")


def set_up_network():
    """This namespace is the server's, `peer` the clients'. All ends with this process and its children."""
    sh("mount", "-t", "tmpfs", "none", "/run")  # where `ip` keeps the names of namespaces
    sh("ip", "link", "set", "lo", "up")
    sh("ip", "netns", "add", "peer")
    sh("ip", "link", "add", "to-peer", "type", "veth", "peer", "name", "to-server", "netns", "peer")
    for words, address, link in [([], SERVER_ADDRESS, "to-peer"), (["-n", "peer"], CLIENT_ADDRESS, "to-server")]:
        sh("ip", *words, "address", "add", f"{address}/24", "dev", link)
        sh("ip", *words, "link", "set", link, "up")


class WatchedServer(Server):
    """Two requests run; more wait."""

    def __init__(self):
        super().__init__(os.environ["MODEL"], "--host", "0.0.0.0", "--kv-offload", "off", "--block-size", "64",
                         "--max-num-seqs", "2", "--client-stall-s", str(STALL_SECONDS))

    def ask(self, path, body=None):
        """From the server's own namespace, whose loopback is not cut."""
        request = urllib.request.Request(self.url + path, body and body.encode(), headers())
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.read().decode()

    def metric(self, name):
        """The sum of the samples that begin so, with any model."""
        page = self.ask("/metrics")
        values = re.findall(rf"^{name} (\S+)$", page, re.MULTILINE)
        holds(values, f"{name} is in {page}")
        return sum(float(value) for value in values)

    def num_left(self):
        """A write that the network does not take may be noticed as that of a client that stalls."""
        return self.metric(r'sluice:requests_aborted_total\{.*reason="(?:disconnect|slow_client)".*\}')

    def held(self):
        """Requests that run, requests that wait, bytes of KV that requests hold."""
        return (self.metric(r"vllm:num_requests_running\{.*\}"), self.metric(r"vllm:num_requests_waiting\{.*\}"),
                self.metric(r'sluice:kv_bytes\{.*state="used".*\}'))


def headers():
    return {"Authorization": f"Bearer {os.environ['SLUICE_API_KEY']}", "Content-Type": "application/json"}


def body(name, stream, max_tokens=ANSWER_TOKENS):
    return json.dumps({"prompt": f"{name} {DOCUMENT}", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
                       "stream": stream})


def start_client(server, name, stream):
    """In the other namespace. Returns when its request is sent."""
    text = body(name, stream)
    fields = "".join(f"{key}: {value}\r\n" for key, value in headers().items())
    request = (f"POST /v1/completions HTTP/1.1\r\nHost: {SERVER_ADDRESS}\r\n{fields}"
               f"Content-Length: {len(text)}\r\n\r\n{text}")
    words = ["ip", "netns", "exec", "peer", sys.executable, "-c", CLIENT, SERVER_ADDRESS, str(server.port),
             request]
    client = subprocess.Popen(words, stdout=subprocess.PIPE, encoding="utf-8")
    same(client.stdout.readline(), "sent\n", f"what the client {name} says")
    return client


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while not condition():
        holds(time.monotonic() < deadline, f"{what} within {seconds} s")
        time.sleep(0.2)


def start_clients(server, clients):
    """Two are answered: the first does not acknowledge what it is sent once it is gone, the second is owed nothing yet,
    so that only keep-alive can tell. Two wait behind them, one with pings and one without a byte."""
    for name, stream in [("A", True), ("B", False), ("C", True), ("D", False)]:
        clients.append(start_client(server, name, stream))
        wait_until(lambda: sum(server.held()[:2]) == len(clients), PATIENCE_SECONDS,
                   f"the request of {name} is known")
    wait_until(lambda: server.held()[:2] == (2, 2), PATIENCE_SECONDS, "two run and two wait")


def seconds_until_noticed(server, num_clients):
    """Of each, after the link was cut."""
    sh("ip", "-n", "peer", "link", "set", "to-server", "down")
    cut, seconds = time.monotonic(), []
    while len(seconds) < num_clients:
        since = time.monotonic() - cut
        seconds += [since] * (int(server.num_left()) - len(seconds))
        holds(since < BOUND_SECONDS, f"only {len(seconds)} of {num_clients} are noticed")
        time.sleep(0.2)
    return seconds


def check_vanished_clients():
    with WatchedServer() as server:
        same(server.held(), (0, 0, 0), "what is held before")
        clients = []
        try:
            start_clients(server, clients)
            seconds = seconds_until_noticed(server, len(clients))
            holds(all(client.poll() is None for client in clients), "the clients are still there")
        finally:
            for client in clients:
                client.kill()
        print(f"  noticed after {', '.join(f'{each:.1f}' for each in seconds)} s; on a quiet machine within "
              f"{LATEST_SECONDS} s", flush=True)
        holds(min(seconds) > LEAST_SECONDS, f"the link was silent: {seconds}")
        wait_until(lambda: server.held() == (0, 0, 0), PATIENCE_SECONDS, "everything is free")
        usage = json.loads(server.ask("/v1/completions", body("A", False, max_tokens=1)))["usage"]
        holds(usage["prompt_tokens_details"]["cached_tokens"] > 0, f"a retry finds what was computed: {usage}")


def main():
    if sys.argv[1:] != ["inside"]:
        done = subprocess.run([*NEW_NAMESPACES, "true"], capture_output=True, text=True, encoding="utf-8", check=False)
        if done.returncode != 0:
            print(f"skipped: no network namespaces: {done.stderr.strip()}")
            return SKIPPED
        return subprocess.run([*NEW_NAMESPACES, sys.executable, __file__, "inside"], check=False).returncode
    try:
        set_up_network()
    except OSError as error:
        print(f"skipped: no network namespaces: {error}")
        return SKIPPED
    return run_checks({"check_vanished_clients": check_vanished_clients})


if __name__ == "__main__":
    sys.exit(main())
