"""nginx (Debian) with deploy/routers/nginx.conf before two replicas: sessions stay, streams pass, a drain loses none.

run.sh unpacks nginx into this environment, where it has neither root nor a service.
"""

import http.client
import json
import pathlib
import signal
import sys
import tempfile
import threading
import urllib.parse

from checks import holds, run_checks, same
from fleet import (HEADERS, ROUTERS, Home, Replica, Router, complete, completion_body, document, free_port,
                   repeats_go_home, wait_until)

LONG_WORDS = 3000  # of which a thread computes the prompt for seconds
NUM_CLIENTS = 4
ANSWER_TOKENS = 40
LONG_TOKENS = 2000


class Nginx(Router):
    def __init__(self, replicas):
        self.directory = tempfile.TemporaryDirectory()
        port = free_port()
        text = (ROUTERS / "nginx.conf").read_text(encoding="utf-8")
        replacements = {"/run/sluice-nginx.pid": f"{self.directory.name}/pid",
                        "listen 8080": f"listen 127.0.0.1:{port}",
                        "worker_processes auto": "daemon off;\nworker_processes 1",
                        "access_log off;": "access_log off;\n" + "".join(
                            f"  {kind}_temp_path {self.directory.name};\n"
                            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))}
        for i, replica in enumerate(replicas):
            replacements[f"sluice-{i}:8000"] = f"127.0.0.1:{replica.port}"
        for old, new in replacements.items():
            holds(old in text, f"nginx.conf has {old}")
            text = text.replace(old, new)
        path = pathlib.Path(self.directory.name) / "nginx.conf"
        path.write_text(text, encoding="utf-8")
        super().__init__([str(pathlib.Path(sys.prefix) / "usr/sbin/nginx"), "-c", str(path), "-e", "stderr"], port)

    def __exit__(self, *_):
        super().__exit__()
        self.directory.cleanup()


def session(name):
    return {"X-Session-ID": name}


def events_of(url, body, headers):
    """The JSON of each event of a stream of completions, as it comes."""
    address = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=120)
    connection.request("POST", "/v1/completions", json.dumps(body), HEADERS | headers)
    answer = connection.getresponse()
    holds(answer.status == 200, f"status {answer.status}: {answer.read() if answer.status != 200 else ''}")
    for line in answer:
        if line.startswith(b"data: {"):
            yield json.loads(line[len(b"data: "):])
    connection.close()


def last_reason(events):
    """Why the answer of a stream ended."""
    return [choice["finish_reason"] for event in events for choice in event.get("choices", [])][-1]


def check_sessions_stay():
    with Replica() as first, Replica() as second, Nginx([first, second]) as nginx:
        repeats_go_home([first, second], lambda name: complete(nginx.url, document(name), session(name)))


def check_streams_are_not_buffered():
    """Progress of a prompt comes before the prompt is computed; the whole stream would fit into nginx's buffer."""
    with Replica() as first, Replica() as second, Nginx([first, second]) as nginx:
        body = completion_body(document("long", LONG_WORDS), stream=True, return_progress=True)
        events, num_parts = events_of(nginx.url, body, session("a")), 0
        for event in events:
            progress = event.get("prompt_progress", {"processed": 0, "total": 1})
            if progress["processed"] == progress["total"]:
                break
            generated = sum(replica.metric("vllm:generation_tokens_total") for replica in (first, second))
            same(generated, 0, f"tokens that were generated when {progress} came")
            num_parts += 1
        holds(num_parts > 3, f"the prompt has several parts: {num_parts}")
        same(last_reason(events), "length", "end of the stream")


class Clients:
    """Threads that ask without pause, each time in another session. Used as a context."""

    def __init__(self, url):
        self.url, self.stop, self.reasons, self.faults = url, threading.Event(), [], []
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(NUM_CLIENTS)]

    def run(self, client):
        turn = 0
        while not self.stop.is_set():
            name, turn = f"{client} {turn}", turn + 1
            try:
                body = completion_body(name, stream=True, max_tokens=ANSWER_TOKENS)
                self.reasons.append(last_reason(events_of(self.url, body, session(name))))
            except (AssertionError, OSError, http.client.HTTPException) as error:
                self.faults.append(repr(error))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def session_of(replica, home, url):
    """The name of a session whose requests this replica gets."""
    for name in map(str, range(64)):
        complete(url, name, session(name))
        if home.replicas[home.of_last()] is replica:
            return name
    raise AssertionError("no session is at home there")


def check_drain_loses_no_request():
    """One replica gets SIGTERM amid a long answer and many short ones: all end whole, and the other gets new ones."""
    with Replica("--drain-timeout", "60") as first, Replica() as second, Nginx([first, second]) as nginx:
        name = session_of(first, Home([first, second]), nginx.url)
        long_answer = events_of(nginx.url, completion_body(name, stream=True, max_tokens=LONG_TOKENS), session(name))
        next(long_answer)
        with Clients(nginx.url) as clients:
            wait_until(lambda: min(first.num_answered(), second.num_answered()) >= 10, "both replicas answer")
            first.process.send_signal(signal.SIGTERM)
            before = len(clients.reasons)
            wait_until(lambda: len(clients.reasons) >= before + 20 or clients.faults, "the other replica goes on")
            holds(first.process.poll() is None, "these answers came beside the drain")
            same(last_reason(long_answer), "length", "end of the long answer")
            same(first.process.wait(60), 0, "status of the replica that was drained")
            gone = len(clients.reasons)
            wait_until(lambda: len(clients.reasons) >= gone + 20 or clients.faults, "the other replica goes on")
        same(clients.faults, [], "requests that failed")
        same(set(clients.reasons), {"length"}, "ends of the answers")
        print(f"  {gone - before} answers beside the drain, {len(clients.reasons) - gone} after it; none failed")


if __name__ == "__main__":
    sys.exit(run_checks(globals()))
