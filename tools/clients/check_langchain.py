"""langchain-openai: its chat and completion models, streams, structured output, errors that they let through."""

import asyncio
import sys

import openai
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

import castles
from castles import Castle
from checks import (AFTER_CALL, ANSWER, BEFORE_CALL, CALL, MODEL_NAME, QUESTION, RESULT, TOOL, holds, raised,
                    run_checks, same, scripted_server)

PROMPT = "It was a dark and"


def chat_model(**options):
    return ChatOpenAI(**({"model": MODEL_NAME, "temperature": 0, "max_retries": 0} | options))


def check_chat():
    message = chat_model().invoke(QUESTION)
    same(message.content, ANSWER)
    same(message.response_metadata["finish_reason"], "stop")
    usage = message.usage_metadata
    same(usage["input_tokens"] + usage["output_tokens"], usage["total_tokens"])
    same(chat_model(stop_sequences=["castle"]).invoke(QUESTION).content, ANSWER[:ANSWER.index("castle")])


def check_conversation():
    # The first message has the number, the last one asks for it.
    told, asked = QUESTION.split(". ", 1)
    turns = [("system", "You answer."), ("human", told + "."), ("ai", "Yes."), ("human", asked)]
    holds(chat_model().invoke(turns).content, "an answer to a conversation")


def check_stream():
    chunks = list(chat_model(stream_usage=True).stream(QUESTION))
    same("".join(chunk.content for chunk in chunks), ANSWER)
    same([chunk.usage_metadata for chunk in chunks if chunk.usage_metadata][-1],
         chat_model().invoke(QUESTION).usage_metadata, "usage")


def check_async_batch():
    answers = asyncio.run(chat_model().abatch([QUESTION] * 6))
    same([answer.content for answer in answers], [ANSWER] * 6)


def check_completion_model():
    model = OpenAI(model=MODEL_NAME, temperature=0, max_tokens=16, max_retries=0)
    text = model.invoke(PROMPT)
    holds(text, "a text")
    same("".join(model.stream(PROMPT)), text, "streamed")


def check_log_probabilities():
    content = chat_model(logprobs=True, top_logprobs=2).invoke(QUESTION).response_metadata["logprobs"]["content"]
    same(content[0]["token"], ANSWER.split()[0])


def check_structured_output():
    for options in ({}, {"strict": True}, {"method": "json_schema"}):
        model = chat_model(max_tokens=300).with_structured_output(Castle, **options)
        holds(isinstance(model.invoke(castles.QUESTION), Castle), f"with {options}")
    responses = chat_model(max_tokens=300, use_responses_api=True).with_structured_output(Castle)
    holds(isinstance(responses.invoke(castles.QUESTION), Castle), "of responses")
    as_dictionary = chat_model(max_tokens=300).with_structured_output(Castle.model_json_schema())
    Castle.model_validate(as_dictionary.invoke(castles.QUESTION))
    holds(isinstance(list(model.stream(castles.QUESTION))[-1], Castle), "streamed")


def check_structured_output_of_forced_calls():
    with castles.server_that_reads_tools() as server:
        for strict in (None, True):
            model = chat_model(base_url=server.url + "/v1", max_tokens=300)
            model = model.with_structured_output(Castle, method="function_calling", strict=strict)
            holds(isinstance(model.invoke(castles.QUESTION), Castle), f"strict {strict}")


def check_tool_round():
    with scripted_server() as server:
        model = chat_model(model="scripted", base_url=server.url + "/v1").bind_tools([TOOL])
        message = model.invoke(QUESTION)
        same(message.content, BEFORE_CALL)
        same([(call["name"], call["args"]) for call in message.tool_calls], [(CALL["name"], CALL["arguments"])])
        chunks = list(model.stream(QUESTION))
        joined = sum(chunks[1:], chunks[0])
        same(joined.content, BEFORE_CALL)
        same([(call["name"], call["args"]) for call in joined.tool_calls], [(CALL["name"], CALL["arguments"])])
        result = ToolMessage(content=RESULT, tool_call_id=message.tool_calls[0]["id"])
        same(model.invoke([HumanMessage(QUESTION), message, result]).content, AFTER_CALL)


def check_errors():
    raised(openai.NotFoundError, lambda: chat_model(model="none-of-this-name").invoke(QUESTION))
    raised(openai.AuthenticationError, lambda: chat_model(api_key="sk-wrong").invoke(QUESTION))
    raised(openai.BadRequestError, lambda: chat_model(temperature=-1).invoke(QUESTION))


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
