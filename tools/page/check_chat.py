"""Uses the page as a chat: settings, Markdown, a hostile answer, Stop, reload, regenerate, edit, copy, export.

Called by check_page.py. Each width and each colour scheme does all of it, by keyboard where a person can. What is
asked of the server is read from its requests; answers of a certain text are put in the place of the model's.
"""

import json
import re

from playwright.sync_api import expect

from support import (ASK_CASTLE, CASTLE, LOOKS, Server, ask, check_axe, check_width, free_port, open_page, open_tab,
                     until, wait_ready)

CHAT = "**/v1/chat/completions"

# How many turns of the tab's conversation are kept; none while the last one is as an answer on its way.
KEPT_TURNS = """async () => {
  const key = sessionStorage.getItem('sluice-conversation');
  const turns = (await (await import('/ui/store.js')).get('conversations', key))?.turns ?? [];
  return turns.at(-1)?.note === 'Stopped' ? 0 : turns.length;
}"""

MARKDOWN = """## A heading

Some *emphasis*, `code` and a [link](https://example.org/a?b=c).

| name | value |
|---|---|
| a_very_long_name_that_does_not_fit | 1 |

1. one
2. two
   - [x] done

```python
def f(x):
    return "<b>" + x  # a line of code that is much wider than a page of 360 pixels could ever show
```
"""

# Each would run `hurt()` or ask another server, if it came into the page as what it says.
HOSTILE = """<script>hurt()</script><img src=x onerror=hurt()><svg onload=hurt()></svg>
<iframe src="javascript:hurt()"></iframe><a href="javascript:hurt()">one</a><style>body{display:none}</style>

[two](javascript:hurt()) [three](data:text/html,<script>hurt()</script>) [four](  JaVaScRiPt:hurt())
[five](vbscript:hurt()) ![six](https://elsewhere.example/x.png) ![seven](javascript:hurt())
[eight](https://ok.example/"onmouseover="hurt()) <https://ok.example/'onclick='hurt()>

```html"onmouseover="hurt()
</code></pre><script>hurt()</script><img src=x onerror=hurt()>
```

<form action="https://elsewhere.example"><input name=a><button>b</button></form>
<math><mtext><table><mglyph><style><img src=x onerror=hurt()></style></mglyph></table></mtext></math>

| a | <img src=x onerror=hurt()> |
|---|---|
| <details open ontoggle=hurt()> | <base href="https://elsewhere.example"> |

[nine]: javascript:hurt()
[nine] <div id="stop" class="drop" style="position:fixed">ten</div>
"""


def answer_with(page, text, pieces=7):
    """The next answers have this text, in as many pieces."""
    size = max(1, len(text) // pieces)
    events = [{"choices": [{"index": 0, "delta": {"content": text[i:i + size]}}]} for i in range(0, len(text), size)]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route(CHAT, lambda route: route.fulfill(body=body, headers={"Content-Type": "text/event-stream"}))


def asked_of(page, question):
    """The body of the request that a question makes; the answer is awaited."""
    with page.expect_request(CHAT) as sent:
        ask(page, question)
    return sent.value.post_data_json


class Chat:
    def __init__(self, browser, server, look):
        self.server = server
        width, height, scheme = look
        self.page, self.watch, _ = open_page(browser, server, width, height, color_scheme=scheme)
        wait_ready(self.page)

    def await_kept(self, limit):
        """The browser closes the dialog first and keeps its values in a later task."""
        kept = "JSON.parse(localStorage.getItem('sluice-settings'))?.limit"
        until(self.page, lambda: self.page.evaluate(kept) == limit, f"the limit {limit} is not kept")

    def await_answers(self):
        """The database takes an answer after the page has shown it; a reload in between would lose it."""
        turns = self.page.locator(".turn").count()
        until(self.page, lambda: self.page.evaluate(KEPT_TURNS) == turns, "the answers are not kept")

    def expect_copied(self, holds):
        """The browser fills the clipboard after the key is handled."""
        until(self.page, lambda: holds(self.page.evaluate("navigator.clipboard.readText()")), "the copy is another")

    def settings(self):
        """They are kept, sent, and made anew by one button; the limit cuts and says so."""
        page = self.page
        assert asked_of(page, CASTLE + " " + ASK_CASTLE)["max_tokens"] == 2048, "a limit by default"
        page.focus("#open-settings")
        page.keyboard.press("Enter")
        expect(page.locator("#settings")).to_be_visible()
        check_axe(page)
        check_width(page)
        page.fill("#set-limit", "3")
        page.fill("#set-temperature", "0.5")
        page.select_option("#set-thinking", "off")
        page.fill("#set-system", "You answer in short.")
        page.focus("#settings-done")
        page.keyboard.press("Enter")
        self.await_kept(limit=3)
        page.reload()
        wait_ready(page)
        page.wait_for_selector("html[data-restored]")
        body = asked_of(page, ASK_CASTLE)
        assert (body["max_tokens"], body["temperature"]) == (3, 0.5), body
        assert body["chat_template_kwargs"] == {"enable_thinking": False}, body
        assert body["messages"][0] == {"role": "system", "content": "You answer in short."}, body
        expect(page.locator(".meta").last).to_contain_text("Cut at the limit of 3 tokens")
        page.click("#open-settings")
        page.click("#settings-defaults")
        page.keyboard.press("Escape")
        self.await_kept(limit=2048)
        body = asked_of(page, ASK_CASTLE)
        assert body["max_tokens"] == 2048 and "temperature" not in body, body
        assert body["messages"][0]["role"] == "user" and "chat_template_kwargs" not in body, body
        page.click("#clear")

    def markdown(self):
        """It is shown as what it means, and code is copied without its marks."""
        page = self.page
        answer_with(page, MARKDOWN, pieces=40)
        ask(page, "Markdown, please")
        answer = page.locator(".answer").last
        expect(answer.locator("h3")).to_have_text("A heading")
        expect(answer.locator("em")).to_have_text("emphasis")
        expect(answer.locator("td").last).to_have_text("1")
        expect(answer.locator("ol li").first).to_have_text("one")
        expect(answer.locator("ol ul li")).to_contain_text("☑ done")
        link = answer.locator("a")
        assert link.get_attribute("href") == "https://example.org/a?b=c"
        assert link.get_attribute("rel") == "noopener noreferrer" and link.get_attribute("target") == "_blank"
        expect(answer.locator("pre code")).to_contain_text('return "<b>" + x')
        assert page.evaluate("getComputedStyle(document.querySelector('pre code')).fontFamily").count("mono") > 0
        check_width(page)
        check_axe(page)
        answer.get_by_role("button", name="Copy code").focus()
        page.keyboard.press("Enter")
        self.expect_copied(lambda text: text.startswith("def f(x):\n    return") and not text.endswith("\n"))
        page.locator(".turn-actions").get_by_role("button", name="Copy the answer").click()
        self.expect_copied(lambda text: text == MARKDOWN)
        page.unroute(CHAT)
        page.click("#clear")

    def hostile(self):
        """Nothing of it becomes script, a form, or a request; what it says is there to be read."""
        page = self.page
        page.evaluate("() => { window.hurt = () => { window.isHurt = true; }; }")
        answer_with(page, HOSTILE, pieces=60)
        ask(page, "Be hostile")
        answer = page.locator(".answer").last
        expect(answer).to_contain_text("<script>hurt()</script>")
        assert answer.locator("script, img, svg, iframe, form, input, style, math, details, base, [style]").count() == 0
        names = answer.evaluate("e => [...e.querySelectorAll('*')].flatMap(n => [...n.attributes].map(a => a.name))")
        assert not [name for name in names if name.startswith("on") or name == "id"], names
        for link in answer.locator("a").all():
            assert re.match(r"https://|$", link.get_attribute("href") or ""), link.get_attribute("href")
            if not link.get_attribute("href"):
                link.click(force=True)
        for element in answer.locator("p, a, td, th, pre").all():
            element.dispatch_event("mouseover")
        page.wait_for_timeout(100)
        assert not page.evaluate("() => window.isHurt"), "an answer ran as script"
        assert page.evaluate("document.querySelectorAll('#stop').length") == 1
        check_width(page)
        page.unroute(CHAT)
        self.await_answers()
        page.reload()  # the same from what the browser kept
        wait_ready(page)
        expect(page.locator(".answer").last).to_contain_text("<script>hurt()</script>")
        assert page.locator(".answer").last.locator("script, img, svg, iframe").count() == 0
        page.click("#clear")

    def stop(self):
        """A long answer is followed, Stop stays in sight, and what was stopped counts in what follows."""
        page = self.page

        def lengthen(route):
            body = {**route.request.post_data_json, "ignore_eos": True, "max_tokens": 20_000}
            # Unseen by the page: after as many tokens an answer takes a minute and not seconds, and leaves the browser
            # time to look.
            body["messages"][-1]["content"] = "once upon a time " * 2000 + body["messages"][-1]["content"]
            route.continue_(post_data=json.dumps(body))

        page.route(CHAT, lengthen)
        page.fill("#question", "Tell me something long")
        page.press("#question", "Enter")
        last = page.locator(".turn").last
        until(page, lambda: page.evaluate("window.scrollY") > 300, "the view does not follow an answer that grows")
        expect(page.locator("#stop")).to_be_in_viewport()
        bottom = "document.querySelector('.turn:last-child').getBoundingClientRect().bottom - window.innerHeight"
        until(page, lambda: abs(page.evaluate(bottom)) < 260, "the view does not follow")
        page.mouse.move(100, 200)
        page.mouse.wheel(0, -3)  # as a hand on a trackpad begins
        until(page, lambda: page.evaluate(bottom) > 100, "a reader who scrolls up is moved")
        top = page.evaluate("window.scrollY") - 200
        page.mouse.wheel(0, -200)
        until(page, lambda: abs(page.evaluate("window.scrollY") - top) < 5, "the wheel does not move the view")
        height = page.evaluate(bottom)
        until(page, lambda: page.evaluate(bottom) > height + 100, "the answer does not grow")
        assert abs(page.evaluate("window.scrollY") - top) < 5, "a reader who scrolled up is moved"
        expect(page.locator("#stop")).to_be_in_viewport()
        page.keyboard.press("Escape")
        expect(last.locator(".meta")).to_have_text("Stopped")
        expect(page.locator("#send")).to_be_visible()
        page.unroute(CHAT)
        said = last.locator(".answer").inner_text()
        assert len(said) > 100, said
        messages = asked_of(page, ASK_CASTLE)["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "user"], messages
        assert len(messages[1]["content"]) > 100, "the stopped answer does not count"
        page.click("#clear")

    def conversation(self):
        """It survives a reload, is listed, opened, edited, answered anew, exported and deleted."""
        page = self.page
        ask(page, CASTLE + " " + ASK_CASTLE)
        ask(page, "And the second question?")
        self.await_answers()
        page.reload()
        wait_ready(page)
        page.wait_for_selector("html[data-restored]")
        expect(page.locator(".turn")).to_have_count(2)
        expect(page.locator(".answer").first).to_contain_text("7391846")
        last = page.locator(".turn").last
        expect(page.locator(".again:visible")).to_have_count(1)
        with page.expect_request(CHAT) as sent:
            last.get_by_role("button", name="Regenerate").press("Enter")
        assert len(sent.value.post_data_json["messages"]) == 3, sent.value.post_data_json
        expect(page.locator(".turn").last).not_to_have_class(re.compile("busy"))
        expect(page.locator(".turn")).to_have_count(2)
        page.locator(".turn").last.get_by_role("button", name="Edit the question").press("Enter")
        expect(page.locator("#question")).to_have_value("And the second question?")
        page.keyboard.press("Escape")
        expect(page.locator("#question")).to_have_value("")
        page.locator(".turn").first.get_by_role("button", name="Edit the question").press("Enter")
        assert len(asked_of(page, "Anew. " + CASTLE + " " + ASK_CASTLE)["messages"]) == 1
        expect(page.locator(".turn")).to_have_count(1)
        with page.expect_download() as download:
            page.press("#export", "Enter")
        text = download.value.path().read_text()
        assert download.value.suggested_filename.startswith("Anew-The-secret"), download.value.suggested_filename
        assert "\n> Anew. " in text and "7391846" in text, text
        self.past()

    def past(self):
        page = self.page
        tab, watch, _ = open_tab(page.context, self.server)  # another tab, without this conversation
        wait_ready(tab)
        expect(tab.locator(".turn")).to_have_count(0)
        tab.focus("#past summary")
        tab.keyboard.press("Enter")
        check_axe(tab)
        check_width(tab)
        tab.locator("#past-list .title", has_text="Anew").press("Enter")
        expect(tab.locator(".answer")).to_contain_text("7391846")
        tab.click("#clear")
        tab.click("#past summary")
        expect(tab.locator("#past-list li", has_text="Anew")).to_have_count(1)
        rows = tab.locator("#past-list li").count()
        tab.locator("#past-list li", has_text="Anew").get_by_role("button", name="Delete").press("Enter")
        expect(tab.locator("#past-list li")).to_have_count(rows - 1)
        watch.check()
        tab.close()

    def glance(self):
        """What is drawn otherwise in other colours and widths."""
        self.markdown()
        self.page.click("#open-settings")
        check_axe(self.page)
        check_width(self.page)
        self.watch.check()

    def run(self):
        self.settings()
        self.markdown()
        self.hostile()
        self.stop()
        self.conversation()
        check_width(self.page)
        self.watch.check()


def check_chat(browser):
    server = Server(free_port(), "--kv-cache-bytes", "128M")
    try:
        for index, look in enumerate(LOOKS):
            chat = Chat(browser, server, look)
            chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=server.url)
            chat.run() if index < 2 else chat.glance()
            chat.page.context.close()
    finally:
        server.stop()
