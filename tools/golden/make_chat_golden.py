#!/usr/bin/env python3
"""Makes tests/golden/tokenizer/chat_requests.json: requests of a chat API as transformers renders
them with the templates of tests/golden/tokenizer/templates/.

    python3 -m venv VENV && VENV/bin/pip install jinja2 transformers
    VENV/bin/python tools/golden/make_chat_golden.py

Before transformers sees a request, `prepared` changes it as src/tokenizer/chat_template.h says. A
null for a text says that transformers or the template refuses the request.
"""
import copy
import json
import platform
from unittest import mock

import jinja2
import transformers
from transformers.utils import chat_template_utils

from make_jinja_golden import EVIL, NOW, ROOT, TOOLS

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
ASKED = {"role": "user", "content": "Weather?"}


def text_parts(*texts):
    return [{"type": "text", "text": text} for text in texts]


def call(arguments):
    return {"type": "function", "id": "call00001",
            "function": {"name": "get_weather", "arguments": arguments}}


def ending(*messages):
    """A request whose last message is continued."""
    return {"messages": list(messages), "add_generation_prompt": False,
            "continue_final_message": True}


REQUESTS = [
    {"messages": [{"role": "developer", "content": "Be brief."},
                  {"role": "user", "content": text_parts("one " + EVIL, " two ", "")}]},
    {"messages": [{"role": "system", "content": text_parts("sys", "tem")},
                  {"role": "user", "content": text_parts("q")},
                  {"role": "assistant", "content": text_parts("a1", "a2")}, ASKED],
     "add_generation_prompt": False},
    {"messages": [ASKED,
                  {"role": "assistant", "content": "", "reasoning": "hm " + EVIL,
                   "tool_calls": [call('{"place": "Z\\u00fcrich", "a": [1, 2.50, null, {"b": ""}]}')]},
                  {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
                   "content": text_parts("21 degrees")}], "tools": TOOLS},
    {"messages": [ASKED, {"role": "assistant", "content": "ok", "reasoning_content": "hm",
                          "tool_calls": [call("{}")]},
                  {"role": "tool", "name": "get_weather", "tool_call_id": "call00001",
                   "content": "x " + EVIL}, {"role": "assistant", "content": "It is x."},
                  {"role": "user", "content": "Thanks."}]},
    ending(ASKED, {"role": "assistant", "content": "It is \u3000 \n"}),
    ending(ASKED, {"role": "assistant", "content": "  It"}),
    ending(ASKED, {"role": "assistant", "content": text_parts("It", "is ")}),
    ending(ASKED, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nSo " + EVIL}),
    ending(ASKED),
    ending(ASKED, {"role": "assistant", "content": ""}),
    {"messages": [ASKED], "template_kwargs": {"enable_thinking": False}},
    {"messages": [ASKED], "template_kwargs": {"date_string": "01 Feb 2025 " + EVIL}},
    {"messages": [ASKED], "template_kwargs": {"tools_in_user_message": False}, "tools": TOOLS[1:]},
    {"messages": [ASKED, {"role": "assistant", "content": "ok", "reasoning_content": "hm"},
                  {"role": "user", "content": "Thanks."}], "template_kwargs": {"preserve_thinking": True}},
]


class Clock:
    @staticmethod
    def now():
        return NOW


def rendered(source, messages, request):
    """None where transformers or the template refuses. Python's errors inside of a template are of
    many types."""
    try:
        return chat_template_utils.render_jinja_template(
            [messages], tools=request.get("tools"), chat_template=source,
            add_generation_prompt=request.get("add_generation_prompt", True),
            continue_final_message=request.get("continue_final_message", False),
            **SPECIAL, **request.get("template_kwargs", {}))[0][0]
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, AttributeError, KeyError):
        return None


def probe(role, content):
    user = {"role": "user", "content": "p"}
    message = {"role": role, "content": content}
    if role == "tool":
        empty = {"role": "assistant", "content": "", "tool_calls": [call({})]}
        return [user, empty, message | {"name": "get_weather", "tool_call_id": "call00001"}]
    return {"system": [message, user], "user": [message], "assistant": [user, message, user]}[role]


def takes_parts(source, role):
    plain = rendered(source, probe(role, "p"), {})
    return plain is not None and rendered(source, probe(role, text_parts("p")), {}) == plain


def prepared(source, messages):
    messages = copy.deepcopy(messages)
    for message in messages:
        if message["role"] == "developer":
            message["role"] = "system"
        if isinstance(message["content"], list) and not takes_parts(source, message["role"]):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        for one in message.get("tool_calls", []):
            one["function"]["arguments"] = json.loads(one["function"]["arguments"])
    return messages


def main():
    cases = []
    with mock.patch.object(chat_template_utils, "datetime", Clock):
        for path in sorted((ROOT / "templates").glob("*.jinja")):
            source = path.read_text(encoding="utf-8")
            for index, request in enumerate(REQUESTS):
                if any(name not in source for name in request.get("template_kwargs", {})):
                    continue
                if "tools" in request and "tools" not in source:
                    continue
                messages = prepared(source, request["messages"])
                cases.append([path.stem, index, rendered(source, messages, request)])
    document = {
        "provenance": {"made_by": "tools/golden/make_chat_golden.py", "jinja2": jinja2.__version__,
                       "transformers": transformers.__version__,
                       "python": platform.python_version()},
        "now": NOW.strftime("%Y-%m-%d %H:%M:%S"), "evil": EVIL, "special_tokens": SPECIAL,
        "requests": REQUESTS}
    lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
             for key, value in document.items()]
    rows = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    lines.append(f'"cases":[\n{rows}]')
    (ROOT / "chat_requests.json").write_text("{" + ",\n".join(lines) + "}\n", encoding="utf-8")
    print(f"{len(cases)} requests, {sum(case[2] is None for case in cases)} of them refused")


if __name__ == "__main__":
    main()
