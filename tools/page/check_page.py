"""Uses the page in chromium: a document is uploaded, computed, asked about; the server is killed.

Run by tools/page_test.sh, with SLUICE and MODEL. Everything that the page shows is compared with
what the server says; no step waits for a fixed time. Then come the checks of the other files.
"""

import argparse
import pathlib
import re
import shutil
import sys
import tempfile

from playwright.sync_api import expect, sync_playwright

from check_chat import check_chat
from check_documents import check_documents
from check_files import check_files
from support import (ASK_CASTLE, CASTLE, KEY, OFFLOAD, Server, ask, check_cells, free_port, load, make_text,
                     number_in, open_page, until, upload, wait_ready, watch_load)


class Checks:
    def __init__(self, browser, folder, pictures):
        self.browser = browser
        self.folder = pathlib.Path(folder)
        self.pictures = pictures
        self.options = [*OFFLOAD, "--kv-store", str(self.folder / "store"), "--kv-store-min-tokens", "0"]
        self.server = Server(free_port(), *self.options)
        self.paint_ms = []  # of each opened page
        self.path = self.folder / "haystack.txt"
        self.path.write_text(make_text(100_000))

    def open(self, server, **options):
        page, watch, paint_ms = open_page(self.browser, server, **options)
        self.paint_ms.append(paint_ms)
        return page, watch

    def picture(self, page, name, full=False):
        if not self.pictures:
            return
        window = page.viewport_size
        if full:  # a window as high as the page, at whose lower edge the question stays
            height = page.evaluate("document.documentElement.scrollHeight")
            page.set_viewport_size({**window, "height": height})
            page.wait_for_timeout(200)
        page.screenshot(path=pathlib.Path(self.pictures) / name)
        page.set_viewport_size(window)

    def document(self):
        """Upload, progress, answer with the needle, and the strip that leads to it."""
        page, watch = self.open(self.server)
        wait_ready(page)
        upload(page, self.path)
        load(page, self.server, midway=lambda: self.loading(page))
        expect(page.locator("#memory .row", has_text="haystack.txt")).to_contain_text("pinned,")
        check_cells(page, self.server)
        expect(page.locator("#load")).to_be_hidden()  # all of it is in memory
        answer, meta = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        cached, total = re.search(r"([\d,]+) of ([\d,]+) prompt tokens from memory", meta).groups()
        assert number_in(cached) > 0.9 * number_in(total), meta
        expect(page.locator("#reader-text")).to_contain_text("7391846")
        marks = page.locator("#reader-text mark")
        until(page, lambda: "7391846" in "".join(marks.all_text_contents()), "the answer's place is not marked as read")
        place = re.search(r"(\d+) % into the document", page.inner_text("#reader-where"))
        assert abs(int(place.group(1)) - 62) <= 2, place.group()
        check_cells(page, self.server)
        expect(page.locator("#timeline")).to_be_visible()
        page.wait_for_timeout(700)  # the last spans, for the picture
        self.picture(page, "page.png", full=True)
        self.keyboard(page)
        page.reload()
        wait_ready(page)
        expect(page.locator("#doc-name")).to_have_text("haystack.txt")
        answer, meta = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        assert number_in(re.search(r"([\d,]+) of", meta).group(1)) > 20_000, meta
        watch.check()
        return page, watch

    def loading(self, page):
        """The history of the prompt comes through the slots of the ring, layer by layer."""
        ring = page.locator("#memory .row", has_text="Ring")
        expect(ring).to_contain_text(re.compile(r"slots of [\d,]+ blocks of one layer, layer \d"))
        assert ring.locator("canvas").get_attribute("data-cells") == "0", "slots are no blocks"
        self.picture(page, "page_loading.png")

    def keyboard(self, page):
        """The strip, the map and the file by keys alone."""
        page.focus("#strip")
        page.keyboard.press("Home")
        assert page.get_attribute("#strip", "aria-valuenow") == "0"
        page.keyboard.press("End")
        assert int(page.get_attribute("#strip", "aria-valuenow")) >= 99
        page.keyboard.press("Enter")
        expect(page.locator("#reader-text")).to_contain_text("7391846")
        page.focus("#memory canvas")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tip")).to_contain_text("Block ")
        page.keyboard.press("Escape")
        expect(page.locator("#tip")).to_be_hidden()
        page.evaluate("document.activeElement.blur()")
        reached = set()
        for _ in range(40):
            page.keyboard.press("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        missing = {"remove", "strip", "question", "send", "follow"} - reached
        assert not missing, f"keys do not reach {missing}"

    def stop(self):
        """A stopped load leaves what it has computed."""
        page, watch = self.open(self.server, color_scheme="dark")
        wait_ready(page)
        other = self.folder / "other.txt"
        other.write_text(make_text(90_000, begin=110_000))
        upload(page, other)
        with self.server.slowed():
            page.click("#load")
            watch_load(page, 30)
            page.click("#load")
            expect(page.locator("#progress-text")).to_contain_text("Stopped")
        until(page, lambda: not self.server.state()["view"]["sequences"], "the engine goes on")
        load(page)
        expect(page.locator("#progress-from")).to_contain_text(
            re.compile("from host memory|found in memory"))
        check_cells(page, self.server)
        self.picture(page, "page_dark.png")
        page.click("#remove")
        expect(page.locator("#drop")).to_be_visible()
        watch.check()

    def refusals(self):
        """Files that are no text; a page of 360 pixels."""
        page, watch = self.open(self.server)
        page.set_viewport_size({"width": 360, "height": 740})
        wait_ready(page)
        wrong = self.folder / "wrong.txt"
        wrong.write_bytes("bytes that are ".encode() + b"\xff\xfe not text")
        page.set_input_files("#file", wrong)
        expect(page.locator("#doc-error")).to_contain_text("byte 15 (offset 0xf)")
        upload(page, self.path)
        expect(page.locator("#doc-error")).to_be_hidden()
        answer, _ = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, f"the page is {width} pixels wide"
        watch.check()

    def restart(self, page, watch):
        """The page outlives its server, and the document's KV does, too."""
        self.server.stop("kill")
        expect(page.locator("#status")).to_contain_text("does not answer")
        port = int(self.server.url.rsplit(":", 1)[1])
        self.server = Server(port, *self.options)
        expect(page.locator("#status")).to_have_text("")
        check_cells(page, self.server)
        answer, _ = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        from_disk = page.inner_text("#progress-from")
        assert "from disk" in from_disk and number_in(from_disk) > 20_000, from_disk
        watch.check(r"ERR_|503|network error|Failed to load resource")

    def key(self):
        """A server with a key; KV on the device."""
        server = Server(free_port(), "--kv-cache-bytes", "128M", key=KEY)
        page, watch = self.open(server)
        page.fill("#key", "another")
        page.press("#key", "Enter")
        expect(page.locator("#key-wrong")).to_be_visible()
        page.fill("#key", KEY)
        page.press("#key", "Enter")
        wait_ready(page)
        assert page.evaluate("sessionStorage.getItem('sluice-key')") == KEY
        check_cells(page, server)
        answer, _ = ask(page, CASTLE + " " + ASK_CASTLE)
        assert "7391846" in answer, answer
        self.pin_of_another_client(page, server)
        watch.check("401")
        assert server.stop() == 0, "the server ends with an error while a page is open"

    def pin_of_another_client(self, page, server):
        """It has a row with its blocks until it is deleted."""
        server.call("/sluice/pins", {"name": "another.pin", "prompt": make_text(4000)})
        row = page.locator("#memory .row", has_text="another.pin")
        expect(row).to_contain_text("pinned,")
        (pin,) = server.state()["view"]["pins"]
        cells = sum(length for _, length, _ in pin["blocks"])
        assert cells > 0, pin
        expect(row.locator("canvas")).to_have_attribute("data-cells", str(cells))
        check_cells(page, server)
        server.call("/sluice/pins/another.pin", method="DELETE")
        expect(row).to_have_count(0)
        check_cells(page, server)

    def run(self):
        page, watch = self.document()
        self.stop()
        self.refusals()
        self.restart(page, watch)
        self.key()
        assert self.server.stop() == 0, "the server ends with an error while pages are open"
        # A busy machine delays some of them.
        assert min(self.paint_ms) < 500, f"first paint after {self.paint_ms} ms"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", metavar="DIR", help="where pictures of the page go")
    options = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium; run tools/setup.sh page")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        # Containers run as root, for which chromium has no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        checks = Checks(browser, folder, options.pictures)
        try:
            checks.run()
            check_chat(browser)
            check_documents(browser, checks.folder)
            check_files(browser, checks.folder)
        finally:
            checks.server.process.kill()
            browser.close()
    print("page: uploaded, computed, answered, stopped, reloaded, restarted; settings, Markdown, conversations, "
          f"documents, files; no errors, no requests to other servers; first paint after {min(checks.paint_ms):.0f} ms")


if __name__ == "__main__":
    main()
