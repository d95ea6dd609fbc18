"""What the checks of the page share: servers of their own, watched pages, and what people do on a page.

Used by the check_*.py beside it, with SLUICE and MODEL from tools/page_test.sh.
"""

import contextlib
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

KEY = "sk-of-the-page-test"
CASTLE = "The secret number of the purple castle is 7391846."
ASK_CASTLE = "What is the secret number of the purple castle?"
QUEST = ["--sparse-policy", "full+quest", "--sparse-topk-tokens", "256", "--sparse-page-tokens", "16"]
OFFLOAD = ["--kv-offload", "chunked", "--kv-host-bytes", "256M", "--kv-device-bytes", "24M",
           "--block-size", "256"]


# A check waits as long for what a quiet machine shows in a second, or computes in ten: only a failure takes that long.
PATIENCE_S = 180
expect.set_options(timeout=PATIENCE_S * 1000)

# Width, height, colours. The first two differ in both.
LOOKS = [(1280, 860, "light"), (360, 740, "dark"), (1280, 860, "dark"), (360, 740, "light")]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A server of its own; with the same port it can be started again after a kill."""

    def __init__(self, port, *options, key=None, policy=QUEST):
        self.url = f"http://127.0.0.1:{port}"
        self.key = key
        environment = dict(os.environ)
        environment.pop("SLUICE_API_KEY", None)
        if key:
            environment["SLUICE_API_KEY"] = key
        self.log = tempfile.NamedTemporaryFile(mode="w+", suffix=".log")
        self.process = subprocess.Popen(
            [os.environ["SLUICE"], "serve", "-m", os.environ["MODEL"], "--port", str(port),
             "--threads", "1",  # the browser needs a core, too, or hears of nothing in time
             "--timeline-ring", *policy, *options],
            env=environment, stdout=self.log, stderr=self.log)
        deadline = time.monotonic() + 60
        while not self.is_healthy():
            if time.monotonic() > deadline or self.process.poll() is not None:
                self.stop()
                sys.exit("the server does not answer: " + pathlib.Path(self.log.name).read_text())
            time.sleep(0.05)

    def is_healthy(self):
        try:
            return urllib.request.urlopen(self.url + "/health", timeout=5).status == 200
        except OSError:
            return False

    def call(self, path, body=None, method=None):
        """The answer's text; without a method GET, or POST with a body."""
        request = urllib.request.Request(self.url + path, method=method,
                                         data=json.dumps(body).encode() if body else None)
        request.add_header("Content-Type", "application/json")
        if self.key:
            request.add_header("Authorization", "Bearer " + self.key)
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.read().decode()

    def state(self):
        return json.loads(self.call("/sluice/state"))

    def stop(self, signal="terminate"):
        getattr(self.process, signal)()
        return self.process.wait(30)

    @contextlib.contextmanager
    def slowed(self):
        """Runs a fifth of the time, so that what passes in a second is there until the browser draws it."""
        ended = threading.Event()

        def halt_and_go_on():
            while not ended.wait(0.02):
                self.process.send_signal(signal.SIGSTOP)
                time.sleep(0.08)
                self.process.send_signal(signal.SIGCONT)

        thread = threading.Thread(target=halt_and_go_on)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


class Watch:
    """Everything that a page must not do: report errors, and ask other servers."""

    def __init__(self, page, url):
        self.errors, self.foreign = [], []
        page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda r: None if r.url.startswith(url + "/") else
                self.foreign.append(r.url))

    def check(self, allowed=r"(?!)"):
        wrong = [text for text in self.errors if not re.search(allowed, text)]
        assert not wrong, f"errors in the console: {wrong}"
        assert not self.foreign, f"requests to other servers: {self.foreign}"
        self.errors.clear()


def serve_from_disk(context, server):
    """With PAGE_FILES, src/server/page: the page as it lies there, with the fields that the server sends."""
    folder = os.environ.get("PAGE_FILES")
    if not folder:
        return
    fields = urllib.request.Request(server.url + "/", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(fields, timeout=20) as answer:
        policy = {name: value for name, value in answer.headers.items()
                  if name in ("Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy")}

    def answer(route):
        name = route.request.url.removeprefix(server.url).removeprefix("/ui").strip("/") or "index.html"
        path = next(pathlib.Path(folder).glob(f"*/{name}"))
        kind = {".mjs": "text/javascript", ".js": "text/javascript", ".html": "text/html", ".css": "text/css",
                ".svg": "image/svg+xml", ".zip": "application/zip"}[path.suffix]
        route.fulfill(body=path.read_bytes(), headers={**policy, "Content-Type": f"{kind}; charset=utf-8"})

    context.route(server.url + "/", answer)
    context.route(server.url + "/ui/*", answer)


def make_text(num_chars, begin=0):
    """A haystack with the needle at 62 % of it."""
    hay = (pathlib.Path(os.environ["MODEL"]) / "haystack.txt").read_text()[begin:begin + num_chars]
    at = hay.index(". ", int(num_chars * 0.62)) + 2
    return hay[:at] + CASTLE + " " + hay[at:]


def until(page, holds, otherwise):
    """Waits here: the page's policy forbids what Playwright's own wait for a function needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, otherwise
        page.wait_for_timeout(20)


def wait_ready(page):
    page.wait_for_selector("html[data-ready]")


def upload(page, path):
    page.set_input_files("#file", path)
    expect(page.locator("#doc-size")).to_contain_text("tokens")


def percent(page):
    return int(page.get_attribute("#progress", "aria-valuenow"))


def load(page, server=None, midway=None):
    """Presses the button and watches the progress, which must not fall, to its end. The server is slow until
    `midway` has run, at 40 %."""
    with server.slowed() if midway else contextlib.nullcontext():
        page.click("#load")
        watch_load(page, 40 if midway else 101)
        if midway:
            midway()
    watch_load(page, 101)
    assert percent(page) == 100


def watch_load(page, end):
    """Until that percentage, or until the load has ended."""
    seen = [0]
    while page.inner_text("#load") == "Stop" and seen[-1] < end:
        seen.append(percent(page))
        assert seen[-1] >= seen[-2], f"progress falls: {seen}"
        page.wait_for_timeout(20)


def ask(page, question):
    page.fill("#question", question)
    page.press("#question", "Enter")
    turn = page.locator(".turn").last
    expect(turn).not_to_have_class(re.compile("busy"))
    return turn.locator(".answer").inner_text(), turn.locator(".meta").inner_text()


def check_cells(page, server):
    """The cells of the map are the blocks of the engine. Waits for the last view."""
    num_blocks = server.state()["view"]["kv"]["blocks"]
    cells = "elements => elements.reduce((sum, e) => sum + Number(e.dataset.cells), 0)"
    until(page, lambda: page.eval_on_selector_all("#memory canvas", cells) == num_blocks,
          f"the map has another number of cells than {num_blocks}")


def number_in(text):
    return int(re.search(r"[\d,]+", text).group().replace(",", ""))


def open_page(browser, server, width=1280, height=860, **options):
    """A page in a context of its own, what it must not do, and its first paint in ms."""
    context = browser.new_context(viewport={"width": width, "height": height}, device_scale_factor=1.5, **options)
    serve_from_disk(context, server)
    return open_tab(context, server)


def open_tab(context, server):
    page = context.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    watch = Watch(page, server.url)
    page.goto(server.url + "/")
    first_paint = ("() => performance.getEntriesByName('first-contentful-paint')"
                   ".map((entry) => entry.startTime)")
    until(page, lambda: page.evaluate(first_paint), "nothing is painted")
    return page, watch, page.evaluate(first_paint)[0]


def check_width(page):
    width, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    wide = """() => [...document.querySelectorAll('body *')].map((e) => [e, e.getBoundingClientRect().right])
        .filter(([, right]) => right > window.innerWidth).map(([e, right]) => `${e.tagName} ${e.id} ${right}`)"""
    assert width <= window, f"the page is {width} pixels wide in a window of {window}: {page.evaluate(wide)}"


def check_axe(page):
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
