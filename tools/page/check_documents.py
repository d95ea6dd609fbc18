"""Documents that the server holds: recognised after a reload, in another tab and by another visitor, listed, freed.

Called by check_page.py.
"""

import json
import re

from playwright.sync_api import expect

from support import (ASK_CASTLE, LOOKS, Server, ask, check_axe, check_width, free_port, load, make_text, number_in,
                     open_page, open_tab, until, upload, wait_ready)

NAME = "A document of mine.txt"


def pins(server):
    return [pin["name"] for pin in json.loads(server.call("/sluice/pins"))["pins"]]


def expect_held(page):
    expect(page.locator("#progress-text")).to_have_text(re.compile(r"[\d,]+ tokens held by the server"))
    expect(page.locator("#load")).to_be_hidden()
    assert page.get_attribute("#progress", "aria-valuenow") == "100"


class Documents:
    def __init__(self, browser, server, path, look):
        self.browser, self.server, self.path = browser, server, path
        self.width, self.height, self.scheme = look

    def open(self):
        page, watch, _ = open_page(self.browser, self.server, self.width, self.height, color_scheme=self.scheme)
        wait_ready(page)
        return page, watch

    def loaded(self, page):
        """While it is computed, Enter says why nothing is asked. Then it is held, after a reload, too."""
        upload(page, self.path)
        page.fill("#question", ASK_CASTLE)
        page.press("#load", "Enter")
        page.press("#question", "Enter")
        expect(page.locator("#ask-note")).to_contain_text("The document is being computed")
        assert page.locator(".turn").count() == 0 and page.input_value("#question") == ASK_CASTLE
        expect(page.locator("#load")).to_be_hidden()
        expect(page.locator("#ask-note")).to_have_text("")
        (name,) = pins(self.server)
        assert re.fullmatch(r"page-A_document_of_mine.txt-[0-9a-f]{14}", name), name
        page.reload()
        wait_ready(page)
        expect(page.locator("#doc-name")).to_have_text(NAME)
        expect_held(page)
        page.focus("#memory canvas")
        page.keyboard.press("ArrowRight")
        expect(page.locator("#tip q")).not_to_be_empty()  # the blocks are known, too

    def other_tab(self, page):
        tab, watch, _ = open_tab(page.context, self.server)
        wait_ready(tab)
        expect(tab.locator("#held-sum")).to_have_text("1 document is held")
        tab.press("#held-sum", "Enter")
        check_axe(tab)
        check_width(tab)
        tab.get_by_role("button", name=f"Open {NAME}").press("Enter")
        expect(tab.locator("#doc-name")).to_have_text(NAME)
        expect_held(tab)
        answer, meta = ask(tab, ASK_CASTLE)
        assert "7391846" in answer, answer
        cached, total = re.search(r"([\d,]+) of ([\d,]+) prompt tokens from memory", meta).groups()
        assert number_in(cached) > 0.8 * number_in(total), meta
        expect(tab.locator("#strip")).to_have_class(re.compile("lit"))  # of blocks that another tab has loaded
        expect(tab.locator("#reader")).to_be_visible()
        tab.press("#remove", "Enter")
        expect(tab.locator("#drop")).to_be_visible()
        assert len(pins(self.server)) == 1, "a document that is closed stays held"
        watch.check()
        tab.close()

    def other_visitor(self):
        """A browser that does not know the text: a name, no overflow, and memory that can be freed."""
        page, watch = self.open()
        expect(page.locator("#memory .row", has_text="A_document_of_mine.txt")).to_contain_text("pinned,")
        check_width(page)
        page.press("#held-sum", "Enter")
        expect(page.locator("#held-list li")).to_contain_text("A_document_of_mine.txt")
        assert page.get_by_role("button", name="Open").count() == 0, "the text is not here"
        check_width(page)
        check_axe(page)
        renamed = self.path.with_name("renamed.txt")
        renamed.write_text(self.path.read_text())
        upload(page, renamed)
        expect_held(page)
        page.get_by_role("button", name="Free the memory").press("Enter")
        expect(page.locator("#held")).to_be_hidden()
        assert pins(self.server) == []
        watch.check()
        page.context.close()

    def system_text(self, page):
        """Another beginning is another prompt: it is not held before it is computed."""
        page.click("#open-settings")
        page.fill("#set-system", "You answer in short.")
        page.click("#settings-done")
        expect(page.locator("#progress-text")).to_have_text("Not computed yet")
        load(page)
        assert any(re.search(r"-[0-9a-f]{8}$", name) for name in pins(self.server)), pins(self.server)
        answer, meta = ask(page, ASK_CASTLE)
        assert "7391846" in answer, answer
        assert number_in(re.search(r"([\d,]+) of", meta).group(1)) > 4000, meta
        check_axe(page)
        for name in pins(self.server):
            self.server.call(f"/sluice/pins/{name}", method="DELETE")

    def run(self):
        page, watch = self.open()
        self.loaded(page)
        self.other_tab(page)
        self.other_visitor()
        expect(page.locator("#held")).to_be_hidden()
        self.system_text(page)
        check_width(page)
        watch.check()
        page.context.close()


def check_flat(browser, path):
    """Where decode reads everything, the strip says how to get the map of what is read."""
    server = Server(free_port(), "--kv-cache-bytes", "128M", policy=[])
    try:
        page, watch, _ = open_page(browser, server, 360, 740)
        wait_ready(page)
        upload(page, path)
        expect(page.locator("#flat")).to_contain_text("--sparse-policy full+quest")
        check_width(page)
        check_axe(page)
        watch.check()
        until(page, lambda: "full+quest" in open(server.log.name).read(), "the start of the server does not offer it")
    finally:
        server.stop()


def check_documents(browser, folder):
    path = folder / NAME
    server = Server(free_port(), "--kv-cache-bytes", "256M")
    try:
        for index, look in enumerate(LOOKS[:2]):
            path.write_text(f"Volume {index}. " + make_text(60_000))  # one that the server does not know
            Documents(browser, server, path, look).run()
    finally:
        server.stop()
    check_flat(browser, path)
