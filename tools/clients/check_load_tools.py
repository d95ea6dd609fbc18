"""slowhttptest and wrk, programs of Debian: slow clients and many clients beside an answer, which they must not change.

slowhttptest holds connections open by headers, bodies or reads of a few bytes at a time; a probe of its own asks
whether the server still answers. wrk asks as fast as it can on many connections.
"""

import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import time
import urllib.parse

from checks import MODEL_NAME, holds, run_checks, same

SERVER = urllib.parse.urlsplit(os.environ["ANTHROPIC_BASE_URL"])
HEADERS = {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}", "Content-Type": "application/json"}
# Long enough to last through a test: the bundled model writes some hundred tokens a second.
ANSWER_TOKENS = 2000
NUM_SLOW = 500
SECONDS = 12
# For what the allocator keeps of the buffers of 500 connections.
MEMORY_TOLERANCE_MIB = 64


def answer():
    """Text, and the longest time between two parts of it, of a stream of ANSWER_TOKENS tokens."""
    connection = http.client.HTTPConnection(SERVER.hostname, SERVER.port, timeout=120)
    connection.request("POST", "/v1/completions", headers=HEADERS, body=json.dumps(
        {"model": MODEL_NAME, "prompt": "It was a dark and", "max_tokens": ANSWER_TOKENS, "temperature": 0,
         "ignore_eos": True, "stream": True}))
    response = connection.getresponse()
    same(response.status, 200, "status of the stream")
    text, longest, last = "", 0.0, None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        now = time.monotonic()
        longest = max(longest, now - last) if last else longest
        last = now
        text += json.loads(line[len("data: "):])["choices"][0]["text"]
    connection.close()
    return text, longest


def status_of(path):
    connection = http.client.HTTPConnection(SERVER.hostname, SERVER.port, timeout=10)
    connection.request("GET", path, headers=HEADERS)
    status = connection.getresponse().status
    connection.close()
    return status


def resident_mib():
    """Of the server, whose process number run.sh sets."""
    text = pathlib.Path(f"/proc/{os.environ['SERVER_PID']}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) / 1024


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", check=False)
    # slowhttptest colours what it prints.
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", done.stdout + done.stderr)


ALONE = answer()[0]


def beside(*words):
    """What the program printed while answers were made, which must be those of a quiet server."""
    before, texts, gaps, stop = resident_mib(), [], [], threading.Event()

    def answer_again():
        while not stop.is_set():
            text, longest = answer()
            texts.append(text)
            gaps.append(longest)

    thread = threading.Thread(target=answer_again)
    thread.start()
    try:
        printed = run(*words)
    finally:
        stop.set()
        thread.join()
    holds(texts and all(text == ALONE for text in texts), f"{len(texts)} answers are those without load")
    same(status_of("/health"), 200, "status of /health afterwards")
    grown = resident_mib() - before
    holds(grown < MEMORY_TOLERANCE_MIB, f"{grown:.0f} MiB more than before")
    print(f"  {len(texts)} answers beside it, longest gap {max(gaps):.2f} s, {grown:+.1f} MiB")
    return printed


def slow(*options, path="/health", is_held=True):
    """Runs slowhttptest. Its probe must be answered to the end. is_held: the server waits for these clients."""
    url = f"http://{SERVER.hostname}:{SERVER.port}{path}"
    printed = beside("slowhttptest", "-c", str(NUM_SLOW), "-r", "250", "-l", str(SECONDS), "-p", "3", "-u", url,
                     *options)
    states = re.findall(r"service available:\s+(\w+)", printed)
    holds(states, f"slowhttptest says whether the service is available, not: {printed[-500:]}")
    same(set(states), {"YES"}, "service available")
    if is_held:
        connected = max(int(n) for n in re.findall(r"connected:\s+(\d+)", printed))
        holds(connected > NUM_SLOW // 2, f"{connected} of {NUM_SLOW} connections were open at once")
    else:
        holds("No open connections left" in printed, f"the server closes them, not: {printed[-500:]}")


def check_slow_headers():
    slow("-H", "-i", "2", "-x", "24")


def check_slow_bodies():
    # slowhttptest sends no key, so its heads are refused before their bodies come. Slow bodies with a key are in
    # tests/server/http_attack_test.cc.
    slow("-B", "-i", "2", "-s", "8192", "-t", "POST", "-f", "application/json", path="/v1/completions",
         is_held=False)


def check_slow_readers():
    slow("-X", "-w", "1", "-y", "8", "-n", "2", "-z", "4", path="/openapi.json")


def check_many_requests():
    printed = beside("wrk", "-t", "1", "-c", "64", "-d", f"{SECONDS}s",
                     f"http://{SERVER.hostname}:{SERVER.port}/health")
    holds("Socket errors" not in printed and "Non-2xx" not in printed, f"no errors in: {printed}")
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", printed).group(1))
    print(f"  {rate:.0f} requests of /health a second")
    holds(rate > 100, f"{rate} requests a second")


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
