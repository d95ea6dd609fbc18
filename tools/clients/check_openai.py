"""OpenAI's own client, openai: every answer that it types, and each error as the class that it has."""

import asyncio
import json
import os
import pathlib
import subprocess
import sys
import time

import openai

from checks import (AFTER_CALL, ANSWER, BEFORE_CALL, CALL, FUNCTION, MESSAGES, MODEL_NAME, QUESTION, RESULT, TOOL,
                    close, holds, raised, run_checks, same, score, scripted_server)

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROMPT = "It was a dark and"
# Retries would hide an error that comes once.
client = openai.OpenAI(max_retries=0)
async_client = openai.AsyncOpenAI(max_retries=0)


def complete(prompt=PROMPT, **fields):
    fields = {"temperature": 0, "max_tokens": 24} | fields
    return client.completions.create(model=MODEL_NAME, prompt=prompt, **fields)


def chat(**fields):
    fields = {"temperature": 0, "messages": MESSAGES, "model": MODEL_NAME} | fields
    return client.chat.completions.create(**fields)


def respond(**fields):
    fields = {"temperature": 0, "input": QUESTION, "model": MODEL_NAME} | fields
    return client.responses.create(**fields)


def well_formed(thing):
    """The answer or event, after its members have been checked: the client itself takes any."""
    type(thing).model_validate(thing.to_dict())
    return thing


def streamed_texts(chunks):
    """Text and finish_reason by index, of a stream of completions."""
    texts, reasons = {}, {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    return texts, reasons


def check_models():
    same([model.id for model in client.models.list()], [MODEL_NAME])
    same(client.models.retrieve(MODEL_NAME).owned_by, "sluice")
    raised(openai.NotFoundError, lambda: client.models.retrieve("none-of-this-name"))


def check_completion():
    answer = complete()
    (choice,) = answer.choices
    same((answer.object, answer.model, choice.index), ("text_completion", MODEL_NAME, 0))
    same((choice.finish_reason, answer.usage.completion_tokens), ("length", 24))
    same(answer.usage.prompt_tokens, len(score(PROMPT)["token_ids"]), "prompt_tokens")
    same(answer.usage.total_tokens, answer.usage.prompt_tokens + 24, "total_tokens")
    ids = score(PROMPT)["token_ids"]
    same(complete(ids).choices[0].text, choice.text, "answer to the prompt as ids")


def check_chat():
    answer = chat()
    (choice,) = answer.choices
    same((choice.message.role, choice.message.content), ("assistant", ANSWER))
    same((answer.object, choice.finish_reason), ("chat.completion", "stop"))
    same(chat(max_completion_tokens=3).choices[0].finish_reason, "length")


def check_cached_tokens():
    long = "The sun is high. " * 120
    first, second = complete(long, max_tokens=4), complete(long, max_tokens=4)
    same(first.usage.prompt_tokens_details.cached_tokens, 0, "cached tokens of the first")
    cached = second.usage.prompt_tokens_details.cached_tokens
    holds(0 < cached < second.usage.prompt_tokens, f"{cached} cached tokens of the second")
    same(second.choices[0].text, first.choices[0].text, "answer from the cache")


def check_cache_salts():
    def cached(salt):
        answer = complete("A prefix that two strangers have. " * 60, extra_body={"cache_salt": salt})
        return answer.usage.prompt_tokens_details.cached_tokens

    same(cached("one"), 0)
    holds(cached("one") > 0, "the same salt finds it")
    same(cached("two"), 0)


def check_choices_are_requests_with_their_seeds():
    together = complete(n=4, seed=11, temperature=1)
    same([choice.index for choice in together.choices], [0, 1, 2, 3])
    same(together.usage.completion_tokens, 4 * 24, "completion_tokens")
    alone = [complete(seed=11 + i, temperature=1).choices[0].text for i in range(4)]
    same([choice.text for choice in together.choices], alone)
    same(len(set(alone)), 4, "different answers")
    texts, reasons = streamed_texts(complete(n=4, seed=11, temperature=1, stream=True))
    same([texts[i] for i in range(4)], alone, "streamed")
    same(set(reasons.values()), {"length"})
    chats = chat(n=3, seed=5, temperature=1)
    same([choice.index for choice in chats.choices], [0, 1, 2])


def check_batch_of_prompts():
    prompts = [PROMPT, "Once upon a time", "The sun"]
    together = complete(prompts, n=2, seed=3, temperature=1)
    alone = [choice.text for prompt in prompts for choice in complete(prompt, n=2, seed=3, temperature=1).choices]
    same([choice.index for choice in together.choices], list(range(6)))
    same([choice.text for choice in together.choices], alone)
    texts, _ = streamed_texts(complete(prompts, n=2, seed=3, temperature=1, stream=True))
    same([texts[i] for i in range(6)], alone, "streamed")


def check_stream_of_chat():
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    same(chunks[0].choices[0].delta.role, "assistant")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    same(text, ANSWER)
    same(chunks[-2].choices[0].finish_reason, "stop")
    same(chunks[-1].choices, [], "choices of the last chunk")
    whole = chat().usage
    same(chunks[-1].usage.model_dump(), whole.model_dump(), "usage")
    holds(all(chunk.usage is None for chunk in chunks[:-1]), "only the last chunk has usage")
    same(len({chunk.id for chunk in chunks}), 1, "ids of a stream")
    with client.chat.completions.stream(model=MODEL_NAME, messages=MESSAGES, temperature=0) as stream:
        same(stream.get_final_completion().choices[0].message.content, ANSWER, "by the stream helper")


def check_progress_of_the_prompt():
    chunks = list(chat(stream=True, extra_body={"return_progress": True}))
    progress = [chunk.prompt_progress for chunk in chunks if hasattr(chunk, "prompt_progress")]
    holds(progress, "no chunk has prompt_progress")
    same(progress[-1]["processed"], progress[-1]["total"], "processed at the end")
    same(progress[-1]["total"], chat().usage.prompt_tokens, "total")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    same(text, ANSWER)


def check_stop_string_over_tokens():
    # "castle" is two tokens of the bundled model; "e cas" begins in one and ends in another.
    for stop in ("castle", "e cas"):
        want = ANSWER[:ANSWER.index(stop)]
        (choice,) = chat(stop=[stop]).choices
        same((choice.message.content, choice.finish_reason, choice.stop_reason), (want, "stop", stop))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chat(stop=stop, stream=True))
        same(text, want, "streamed")
    (choice,) = chat(stop="castle", extra_body={"include_stop_str_in_output": True}).choices
    same(choice.message.content, ANSWER[:ANSWER.index("castle")] + "castle")


def check_text_of_many_bytes():
    # With the tokens of " é" alone, an answer has whole characters, or bytes that are none. Chance
    # decides which; among these seeds are both.
    fields = {"max_tokens": 30, "temperature": 1}
    fields["extra_body"] = {"allowed_token_ids": score(" é")["token_ids"]}
    texts = []
    for seed in range(8):
        text = complete("naïve é " * 8, seed=seed, **fields).choices[0].text
        chunks = complete("naïve é " * 8, seed=seed, stream=True, **fields)
        same("".join(chunk.choices[0].text for chunk in chunks), text, "streamed")
        texts.append(text)
    for seen in ("é", "\ufffd"):
        holds(any(seen in text for text in texts), f"{texts!r} do not have {seen!r}")
    same(complete("Grüße, 日本 🙂", echo=True, max_tokens=1).choices[0].text[:11], "Grüße, 日本 🙂")


def check_log_probabilities():
    answer = complete(logprobs=3).choices[0]
    lists = answer.logprobs
    same("".join(lists.tokens), answer.text, "tokens")
    for token, logprob, top in zip(lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True):
        same(max(top.values()), logprob, f"the likeliest, greedily chosen {token!r}")
        same(top[token], logprob)
        same(len(top), 3, "likeliest tokens")
    offsets = [len(PROMPT + "".join(lists.tokens[:i])) - len(PROMPT) for i in range(len(lists.tokens))]
    same(lists.text_offset, offsets)
    content = chat(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    written = b"".join(bytes(entry.bytes) for entry in content)
    same(written.decode().removesuffix("<|im_end|>"), ANSWER, "bytes")
    for entry in content:
        same(len(entry.top_logprobs), 2)
        same((entry.top_logprobs[0].token, entry.top_logprobs[0].logprob), (entry.token, entry.logprob))
    streamed = [entry for chunk in chat(logprobs=True, top_logprobs=2, stream=True)
                if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    same(streamed, content, "streamed")


def check_echo_is_score():
    text = "The sun is high, and the old dog sleeps under a tree. Grüße."
    want = score(text)
    answer = complete(text, echo=True, logprobs=1, max_tokens=0).choices[0]
    same(answer.text, text)
    same(answer.logprobs.token_logprobs[0], None)
    same(len(answer.logprobs.token_logprobs), len(want["logprobs"]))
    for i, (ours, theirs) in enumerate(zip(answer.logprobs.token_logprobs, want["logprobs"])):
        if i > 0:
            close(ours, theirs, f"log-probability of token {i}")
    more = complete(text, echo=True, logprobs=1, max_tokens=4).choices[0]
    same(len(more.logprobs.tokens), len(want["logprobs"]) + 4)
    holds(more.text.startswith(text), "an echo begins with the prompt")
    streamed, _ = streamed_texts(complete(text, echo=True, max_tokens=4, stream=True))
    same(streamed[0], more.text, "streamed")


def check_response():
    answer = well_formed(respond())
    same((answer.object, answer.status, answer.output_text), ("response", "completed", ANSWER))
    (message,) = answer.output
    same((message.type, message.role, message.status), ("message", "assistant", "completed"))
    usage = chat().usage
    same((answer.usage.input_tokens, answer.usage.output_tokens), (usage.prompt_tokens, usage.completion_tokens))
    same(answer.usage.total_tokens, usage.total_tokens, "total_tokens")
    cut = well_formed(respond(max_output_tokens=3))
    same((cut.status, cut.incomplete_details.reason, cut.usage.output_tokens),
         ("incomplete", "max_output_tokens", 3))
    same(respond(max_output_tokens=10**9).output_text, ANSWER, "with more tokens than the room has")
    told = respond(instructions="Be brief.", metadata={"a": "b"}, input=[{"role": "user", "content": QUESTION}])
    same((told.instructions, told.metadata, told.temperature), ("Be brief.", {"a": "b"}, 0))
    system = {"role": "system", "content": "Be brief."}
    same(told.output_text, chat(messages=[system, *MESSAGES]).choices[0].message.content, "with instructions")


def check_response_to_a_conversation():
    first = respond(tools=[{"type": "web_search"}], include=["reasoning.encrypted_content"])
    same(first.output_text, ANSWER, "with a tool that is not there")
    messages = [*MESSAGES, {"role": "assistant", "content": ANSWER}, *MESSAGES]
    items = [*MESSAGES, *first.output, *MESSAGES]
    same(respond(input=items).output_text, chat(messages=messages).choices[0].message.content)


def check_stream_of_response():
    events = [well_formed(event) for event in respond(stream=True)]
    same([event.sequence_number for event in events], list(range(len(events))), "numbers")
    types = [event.type for event in events]
    same(types[:2], ["response.created", "response.in_progress"])
    same(types[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done",
                      "response.completed"])
    holds(events[1].prompt_progress["total"] > 0, "the progress of the prompt")
    same("".join(event.delta for event in events if event.type == "response.output_text.delta"), ANSWER)
    same(events[-1].response.output_text, ANSWER, "the last event's")
    same(events[-1].response.usage.total_tokens, respond().usage.total_tokens, "total_tokens")
    with client.responses.stream(model=MODEL_NAME, input=QUESTION, temperature=0) as stream:
        same(stream.get_final_response().output_text, ANSWER, "by the stream helper")
    same([event.type for event in respond(stream=True, max_output_tokens=3)][-1], "response.incomplete")


def check_errors_of_responses():
    bad = [({"previous_response_id": "resp_1"}, "previous_response_id"),
           ({"background": True}, "background"),
           ({"tool_choice": "required"}, "tool_choice"),
           ({"input": []}, "input"),
           ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
           ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format")]
    for fields, param in bad:
        for is_stream in (False, True):
            error = raised(openai.BadRequestError, lambda: respond(stream=is_stream, **fields))
            same((error.status_code, error.param), (400, param))
    raised(openai.NotFoundError, lambda: respond(model="none-of-this-name"))
    limit = next(iter(client.models.list())).max_model_len
    error = raised(openai.BadRequestError, lambda: respond(input="castle " * limit))
    holds(f"This model's maximum context length is {limit} tokens" in error.message, error.message)
    raised(openai.NotFoundError, lambda: client.responses.retrieve("resp_1"))


def check_tool_round():
    with scripted_server() as server:
        completions = client.with_options(base_url=server.url + "/v1").chat.completions
        fields = {"model": "scripted", "tools": [TOOL]}
        answer = well_formed(completions.create(messages=MESSAGES, **fields))

        with completions.stream(messages=MESSAGES, **fields) as stream:
            parts = [event.arguments_delta for event in stream
                     if event.type == "tool_calls.function.arguments.delta"]
            streamed = stream.get_final_completion()
        same(json.loads("".join(parts)), CALL["arguments"])
        for choice in (answer.choices[0], streamed.choices[0]):
            same((choice.message.content, choice.finish_reason), (BEFORE_CALL, "tool_calls"))
            (call,) = choice.message.tool_calls
            same((call.function.name, json.loads(call.function.arguments)), (CALL["name"], CALL["arguments"]))
        message = answer.choices[0].message
        result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": RESULT}
        after = completions.create(messages=[*MESSAGES, message, result], **fields).choices[0]
        same((after.message.content, after.finish_reason), (AFTER_CALL, "stop"))


def check_tool_round_of_responses():
    with scripted_server() as server:
        responses = client.with_options(base_url=server.url + "/v1").responses
        fields = {"model": "scripted", "tools": [FUNCTION | {"type": "function", "strict": True}]}
        response = well_formed(responses.create(input=QUESTION, **fields))
        with responses.stream(input=QUESTION, **fields) as stream:
            parts = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
            streamed = stream.get_final_response()
        same(json.loads("".join(parts)), CALL["arguments"])
        for each in (response, streamed):
            message, call = each.output
            same((message.content[0].text, call.name), (BEFORE_CALL, CALL["name"]))
            same(json.loads(call.arguments), CALL["arguments"])
        result = {"type": "function_call_output", "call_id": response.output[1].call_id, "output": RESULT}
        same(responses.create(input=[*MESSAGES, *response.output, result], **fields).output_text, AFTER_CALL)


def check_errors():
    bad = [(lambda: complete(max_tokens=0), "max_tokens"),
           (lambda: complete([]), "prompt"),
           (lambda: complete(temperature=-1), "temperature"),
           (lambda: complete(suffix="x"), "suffix"),
           (lambda: complete(best_of=2), "best_of"),
           (lambda: complete(extra_body={"cache_salt": "no spaces"}), "cache_salt"),
           (lambda: chat(messages=[]), "messages"),
           (lambda: chat(top_logprobs=2), "top_logprobs"),
           (lambda: chat(response_format={"type": "json_schema"}), "response_format")]
    for call, param in bad:
        error = raised(openai.BadRequestError, call)
        same((error.status_code, error.param, error.type), (400, param, "BadRequestError"))
        holds(param in error.message, f"{error.message!r} does not name {param}")
    same(raised(openai.NotFoundError, lambda: chat(model="none-of-this-name")).param, "model")
    same(raised(openai.NotFoundError, lambda: client.embeddings.create(model="m", input="x")).status_code, 404)
    wrong_key = client.with_options(api_key="sk-wrong")
    same(raised(openai.AuthenticationError, wrong_key.models.list).status_code, 401)
    error = raised(openai.APIStatusError, lambda: chat(extra_headers={"Content-Type": "text/plain"}))
    same((error.status_code, error.type), (415, "UnsupportedMediaType"))
    # The error of a stream that never began is not in the stream.
    raised(openai.BadRequestError, lambda: chat(stream=True, max_tokens=0))


def check_context_overflow():
    limit = next(iter(client.models.list())).max_model_len
    # More than the room is the room.
    usage = complete(max_tokens=limit, stop=["e", "a", " "]).usage
    same(usage.clamped_max_tokens, limit - usage.prompt_tokens, "clamped_max_tokens")
    error = raised(openai.BadRequestError, lambda: complete([5] * (limit + 1)))
    holds(error.message.find(f"This model's maximum context length is {limit} tokens") >= 0, error.message)
    same((error.body["context_length"]["limit"], error.code), (limit, "context_length_exceeded"))


def server_load():
    server = client.with_options(base_url=str(client.base_url).removesuffix("v1/"))
    return server.get("/load", cast_to=object)["server_load"]


def wait_until_idle():
    for _ in range(600):
        if server_load() == 0:
            return
        time.sleep(0.1)
    raise AssertionError(f"{server_load()} requests still run 60 s after their client went")


def check_too_many_choices():
    # More than may ever wait: a client that is told to come again would do it without end.
    error = raised(openai.BadRequestError, lambda: complete(["a"] * 1024, n=128))
    same((error.param, error.response.headers.get("Retry-After")), ("n", None))
    wait_until_idle()
    same(chat().choices[0].message.content, ANSWER)


def check_async():
    async def one_chat(stream):
        answer = await async_client.chat.completions.create(model=MODEL_NAME, messages=MESSAGES,
                                                            temperature=0, stream=stream)
        if not stream:
            return answer.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in answer])

    async def all_at_once():
        same(await asyncio.gather(*(one_chat(i % 2 == 0) for i in range(12))), [ANSWER] * 12)
        texts = await asyncio.gather(*(async_client.completions.create(
            model=MODEL_NAME, prompt=PROMPT, max_tokens=24, temperature=1, seed=i) for i in range(6)))
        want = [complete(temperature=1, seed=i).choices[0].text for i in range(6)]
        same([answer.choices[0].text for answer in texts], want, "answers of a batch")
        try:
            await async_client.chat.completions.create(model="none-of-this-name", messages=MESSAGES)
        except openai.NotFoundError:
            return
        raise AssertionError("a wrong name of the model raised no error")

    asyncio.run(all_at_once())


def run_example(name, **environment):
    """The standard output of a program of examples/."""
    done = subprocess.run([sys.executable, ROOT / "examples" / name], capture_output=True, text=True, check=False,
                          env=os.environ | environment)
    same(done.returncode, 0, f"status of {name}: {done.stderr}")
    return done.stdout


def check_examples():
    lines = run_example("server_openai.py").splitlines()
    holds(len(lines) == 3 and "7391846" in lines[0] and "7391846" in lines[1], lines)
    holds(lines[2].split()[0] != "0", lines[2])
    with scripted_server({"name": "get_weather", "arguments": {"city": "Paris"}}) as server:
        same(run_example("agent.py", OPENAI_BASE_URL=f"{server.url}/v1").strip(), AFTER_CALL)


def check_stream_that_is_left():
    stream = complete(max_tokens=20000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until_idle()


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
