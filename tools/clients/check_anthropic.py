"""Anthropic's own client, anthropic: messages whole, streamed and as classes, counts, and each error as its class.

A recorded answer with thoughts and calls is played to the client: the stream that tests/server/messages_writer_test.cc
expects.
"""

import asyncio
import http.server
import json
import pathlib
import sys
import threading

import anthropic

import castles
from castles import Castle, Colours, Door
from checks import (AFTER_CALL, ANSWER, BEFORE_CALL, CALL, FUNCTION, MESSAGES, MODEL_NAME, RESULT, holds,
                    raised, run_checks, same, scripted_server)

RECORDED = pathlib.Path(__file__).parents[2] / "tests/golden/server/messages_stream.txt"
TOOLS = [{"name": "f", "description": "a function", "input_schema": {"type": "object", "properties": {}}}]
# Retries would hide an error that comes once.
client = anthropic.Anthropic(max_retries=0)
async_client = anthropic.AsyncAnthropic(max_retries=0)


def arguments(temperature=0, **fields):
    """The client has no temperature of its own any more."""
    return {"model": MODEL_NAME, "max_tokens": 64, "messages": MESSAGES,
            "extra_body": {"temperature": temperature}} | fields


def ask(**fields):
    return client.messages.create(**arguments(**fields))


def count(**fields):
    return client.messages.count_tokens(**({"model": MODEL_NAME, "messages": MESSAGES} | fields)).input_tokens


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def without_cache(message):
    """What two answers to the same request share: their ids, and what the cache had, differ."""
    content = [(block.type, block.text) for block in message.content]
    usage = (prompt_tokens(message.usage), message.usage.output_tokens)
    return message.role, message.model, content, message.stop_reason, message.stop_sequence, usage


def check_message():
    message = ask()
    same((message.type, message.role, message.model), ("message", "assistant", MODEL_NAME))
    same([(block.type, block.text) for block in message.content], [("text", ANSWER)])
    same((message.stop_reason, message.stop_sequence), ("end_turn", None))
    same(prompt_tokens(message.usage), count(), "tokens of the prompt")
    holds(message.id.startswith("msg_"), message.id)


def check_agents_fields():
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
              {"type": "text", "text": "Answer.", "cache_control": {"type": "ephemeral"}}]
    fields = {"system": system, "metadata": {"user_id": "u"}, "thinking": {"type": "adaptive"},
              "tools": [{"type": "web_search_20250305", "name": "web_search"}],
              "extra_headers": {"anthropic-beta": "a-2025-01-01"}, "extra_query": {"beta": "true"}}
    message = ask(max_tokens=1_000_000, timeout=60, **fields)
    same(message.stop_reason, "end_turn", "stop_reason; max_tokens is clamped")
    same(prompt_tokens(message.usage), count(system="Answer."), "tokens of the prompt")
    blocks = [{"role": "user", "content": [{"type": "text", "text": MESSAGES[0]["content"]}]}]
    same(without_cache(ask(messages=blocks)), without_cache(ask()), "answer to blocks")


def check_prefix_cache():
    system = "The sun is high. " * 120
    first, second = ask(system=system).usage, ask(system=system).usage
    same(first.cache_read_input_tokens, 0, "cached tokens of the first")
    holds(second.cache_read_input_tokens > 0, "the second found nothing in the cache")
    same(prompt_tokens(second), prompt_tokens(first), "tokens of the prompt")


def check_ends():
    message = ask(max_tokens=3)
    same((message.stop_reason, message.usage.output_tokens), ("max_tokens", 3))
    message = ask(stop_sequences=["e cas"])
    same((message.stop_reason, message.stop_sequence), ("stop_sequence", "e cas"))
    same(message.content[0].text, ANSWER[:ANSWER.index("e cas")])
    # The answer goes on after a text of the assistant.
    front = ANSWER[:ANSWER.index(" is ")]
    same(ask(messages=MESSAGES + [{"role": "assistant", "content": front}]).content[0].text, ANSWER[len(front):])


def check_stream():
    with client.messages.stream(**arguments()) as stream:
        same("".join(stream.text_stream), ANSWER)
        same(without_cache(stream.get_final_message()), without_cache(ask()))
    events = list(ask(stream=True))
    same([event.type for event in events[:2]], ["message_start", "content_block_start"])
    same([event.type for event in events[-3:]], ["content_block_stop", "message_delta", "message_stop"])
    same(prompt_tokens(events[0].message.usage), count(), "tokens of the prompt at the start")
    same(events[-2].usage.output_tokens, ask().usage.output_tokens, "output_tokens")


def check_async():
    async def one():
        async with async_client.messages.stream(**arguments()) as stream:
            return "".join([text async for text in stream.text_stream])

    async def many():
        return await asyncio.gather(*(one() for _ in range(8)))

    same(set(asyncio.run(many())), {ANSWER})


class Player(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.end_headers()
        self.wfile.write(RECORDED.read_bytes())

    def log_message(self, *_):
        pass


def check_calls_of_a_recorded_stream():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Player) as player:
        threading.Thread(target=player.serve_forever, daemon=True).start()
        local = client.with_options(base_url=f"http://127.0.0.1:{player.server_port}")
        with local.messages.stream(**arguments(tools=TOOLS)) as stream:
            message = stream.get_final_message()
        player.shutdown()
    same([block.type for block in message.content], ["thinking", "text", "tool_use", "tool_use"])
    thought, text, first, second = message.content
    same((thought.thinking, text.text), ("It asks for the time.", "I look it up."))
    same((first.name, first.input, second.input), ("f", {"city": "Zürich", "n": [1, 2]}, {}))
    holds(first.id.startswith("toolu_") and first.id != second.id, f"ids {first.id} and {second.id}")
    same((message.stop_reason, prompt_tokens(message.usage)), ("tool_use", 3))


def check_tool_round():
    tool = {"name": FUNCTION["name"], "description": "d", "input_schema": FUNCTION["parameters"]}
    with scripted_server() as server:
        local = client.with_options(base_url=server.url)
        fields = {"model": "scripted", "max_tokens": 1000, "tools": [tool]}

        with local.messages.stream(messages=MESSAGES, **fields) as stream:
            parts = [event.partial_json for event in stream if event.type == "input_json"]
            streamed = stream.get_final_message()
        same(json.loads("".join(parts)), CALL["arguments"])
        message = local.messages.create(messages=MESSAGES, **fields)
        for each in (streamed, message):
            text, call = each.content
            same((text.text, call.name, call.input), (BEFORE_CALL, CALL["name"], CALL["arguments"]))
            same(each.stop_reason, "tool_use")
        result = {"type": "tool_result", "tool_use_id": message.content[1].id, "content": RESULT}
        turns = [*MESSAGES, {"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
        after = local.messages.create(messages=turns, **fields)
        same([block.text for block in after.content], [AFTER_CALL])
        same(after.stop_reason, "end_turn")


def check_answers_as_classes():
    fields = {"model": MODEL_NAME, "max_tokens": 300, "messages": [{"role": "user", "content": castles.QUESTION}]}
    message = client.messages.parse(**fields, output_format=Door)
    holds(isinstance(message.parsed_output, Door), message)
    same(message.stop_reason, "end_turn")
    with client.messages.stream(**fields, output_format=Door) as stream:
        holds(isinstance(stream.get_final_message().parsed_output, Door), "streamed")
    output = {"format": {"type": "json_schema", "schema": Castle.model_json_schema()}}
    Castle.model_validate_json(client.messages.create(**fields, output_config=output).content[0].text)
    output["format"]["schema"] = Colours.model_json_schema()
    error = raised(anthropic.BadRequestError, lambda: client.messages.create(**fields, output_config=output))
    holds("uniqueItems at /properties/names" in error.message, error.message)


def check_forced_calls():
    classes = {"castle": Castle, "door": Door}
    tools = [{"name": name, "description": "d", "input_schema": each.model_json_schema()}
             for name, each in classes.items()]
    fields = {"model": MODEL_NAME, "max_tokens": 300, "tools": tools,
              "messages": [{"role": "user", "content": castles.QUESTION}]}
    with castles.server_that_reads_tools() as server:
        local = client.with_options(base_url=server.url)
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "door"}):
            message = local.messages.create(**fields, tool_choice=choice)
            same(message.stop_reason, "tool_use")
            (call,) = (block for block in message.content if block.type == "tool_use")
            classes[call.name].model_validate(call.input)
            holds(choice["type"] == "any" or call.name == "door", call)


def check_errors():
    error = raised(anthropic.BadRequestError, lambda: ask(temperature=-1))
    same((error.status_code, error.body["type"], error.type), (400, "error", "invalid_request_error"))
    holds("temperature is -1" in error.message, error.message)
    holds(error.body["request_id"], "no request_id")
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    for fields, part in (({"tools": TOOLS}, "tools"),
                         ({"tool_choice": {"type": "any"}}, "tool_choice"),
                         ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0]"),
                         ({"messages": []}, "messages")):
        error = raised(anthropic.BadRequestError, lambda: ask(**fields))
        holds(part in error.message, f"{error.message!r} does not name {part}")
    same(raised(anthropic.NotFoundError, lambda: ask(model="claude")).type, "not_found_error")
    wrong_key = client.with_options(api_key="sk-wrong")
    same(raised(anthropic.AuthenticationError, lambda: wrong_key.messages.create(**arguments())).type,
         "authentication_error")
    long = [{"role": "user", "content": "The sun is high. " * 40_000}]
    tokens = count(messages=long)
    for stream in (False, True):
        error = raised(anthropic.BadRequestError, lambda: ask(messages=long, stream=stream))
        holds(f"prompt is too long: {tokens} tokens > " in error.message, error.message)
    with client.messages.stream(**arguments()) as stream:  # and it still answers
        same(stream.get_final_text(), ANSWER)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
