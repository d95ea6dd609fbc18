"""litellm: chat, text completion, stream, and errors mapped to the classes of its own."""

import asyncio
import json
import sys

import litellm

from checks import (AFTER_CALL, ANSWER, BEFORE_CALL, CALL, MESSAGES, MODEL_NAME, RESULT, TOOL, holds, raised,
                    run_checks, same, scripted_server)

litellm.suppress_debug_info = True


def chat(**fields):
    fields = {"model": f"openai/{MODEL_NAME}", "messages": MESSAGES, "temperature": 0, "num_retries": 0} | fields
    return litellm.completion(**fields)


def check_chat():
    answer = chat()
    (choice,) = answer.choices
    same((choice.message.content, choice.finish_reason), (ANSWER, "stop"))
    same(answer.usage.prompt_tokens + answer.usage.completion_tokens, answer.usage.total_tokens)
    same(len(chat(n=3, temperature=1, seed=1).choices), 3)


def check_stream():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    same("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), ANSWER)
    usage = [chunk.usage for chunk in chunks if getattr(chunk, "usage", None)][-1]
    same(usage.total_tokens, chat().usage.total_tokens)


def check_async():
    async def all_at_once():
        fields = {"model": f"openai/{MODEL_NAME}", "messages": MESSAGES, "temperature": 0}
        return await asyncio.gather(*(litellm.acompletion(**fields) for _ in range(6)))

    same([answer.choices[0].message.content for answer in asyncio.run(all_at_once())], [ANSWER] * 6)


def check_text_completion():
    fields = {"model": f"text-completion-openai/{MODEL_NAME}", "prompt": "It was a dark and",
              "temperature": 0, "max_tokens": 16}
    text = litellm.text_completion(**fields).choices[0].text
    holds(text, "a text")
    same("".join(chunk.choices[0].text or "" for chunk in litellm.text_completion(**fields, stream=True)), text)


def check_tool_round():
    with scripted_server() as server:
        fields = {"model": "openai/scripted", "api_base": server.url + "/v1", "tools": [TOOL]}
        (choice,) = chat(**fields).choices
        streamed = litellm.stream_chunk_builder(list(chat(stream=True, **fields))).choices[0]
        for each in (choice, streamed):
            same((each.message.content, each.finish_reason), (BEFORE_CALL, "tool_calls"))
            (call,) = each.message.tool_calls
            same((call.function.name, json.loads(call.function.arguments)), (CALL["name"], CALL["arguments"]))
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": RESULT}
        after = chat(**fields | {"messages": [*MESSAGES, choice.message, result]}).choices[0]
        same((after.message.content, after.finish_reason), (AFTER_CALL, "stop"))


def check_errors():
    raised(litellm.NotFoundError, lambda: chat(model="openai/none-of-this-name"))
    raised(litellm.AuthenticationError, lambda: chat(api_key="sk-wrong"))
    raised(litellm.BadRequestError, lambda: chat(temperature=-1))
    too_long = [{"role": "user", "content": "a purple castle, " * 50_000}]
    raised(litellm.ContextWindowExceededError, lambda: chat(messages=too_long))


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
