"""pydantic-ai: chats and responses, streams, typed output, a round with a tool, errors of its own classes."""

import asyncio
import sys

from pydantic_ai import Agent, NativeOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import castles
from castles import Castle, Door
from checks import (AFTER_CALL, ANSWER, CALL, MODEL_NAME, QUESTION, RESULT, holds, in_parts, raised,
                    run_checks, same, scripted_server)


# The provider reads the address and the key from the environment.
def agent(model_class=OpenAIChatModel, name=MODEL_NAME, key=None, base_url=None, output_type=str, **settings):
    return Agent(model_class(name, provider=OpenAIProvider(api_key=key, base_url=base_url)),
                 output_type=output_type, model_settings={"temperature": 0} | settings)


def check_chat():
    result = agent().run_sync(QUESTION)
    same(result.output, ANSWER)
    holds(result.usage.input_tokens > result.usage.output_tokens > 0, f"usage {result.usage}")


def check_responses():
    same(agent(OpenAIResponsesModel).run_sync(QUESTION).output, ANSWER)


def check_stream():
    async def streamed(model_class):
        async with agent(model_class).run_stream(QUESTION) as result:
            return [delta async for delta in result.stream_text(delta=True, debounce_by=None)], None

    for model_class in (OpenAIChatModel, OpenAIResponsesModel):
        deltas, _ = in_parts(lambda: asyncio.run(streamed(model_class)), "answers")
        same("".join(deltas), ANSWER)


def check_history():
    first = agent().run_sync(QUESTION)
    again = agent().run_sync("What is it?", message_history=first.all_messages())
    holds(again.usage.input_tokens > first.usage.input_tokens, "the history is a part of the prompt")


def check_typed_output():
    for model_class in (OpenAIChatModel, OpenAIResponsesModel):
        typed = agent(model_class, output_type=NativeOutput(Castle), max_tokens=300)
        holds(isinstance(typed.run_sync(castles.QUESTION).output, Castle), model_class.__name__)
    either = agent(output_type=NativeOutput([Castle, Door]), max_tokens=300).run_sync(castles.QUESTION).output
    holds(isinstance(either, (Castle, Door)), f"one of two classes: {either!r}")


def check_typed_output_of_forced_calls():
    with castles.server_that_reads_tools() as server:
        for model_class in (OpenAIChatModel, OpenAIResponsesModel):
            typed = agent(model_class, base_url=server.url + "/v1", output_type=[Castle, Door], max_tokens=300)
            holds(isinstance(typed.run_sync(castles.QUESTION).output, (Castle, Door)), model_class.__name__)


def check_streamed_typed_output():
    async def streamed():
        async with agent(output_type=NativeOutput(Castle), max_tokens=300).run_stream(castles.QUESTION) as result:
            return [part async for part in result.stream_output(debounce_by=None)]

    holds(isinstance(asyncio.run(streamed())[-1], Castle), "the last part is whole")


def agent_with_tool(colours, **options):
    """Adds the colours that it is asked for."""
    with_tool = agent(**options)

    @with_tool.tool_plain
    def number_of(colour: str) -> str:
        colours.append(colour)
        return RESULT

    return with_tool


async def streamed_output(with_tool):
    async with with_tool.run_stream(QUESTION) as result:
        return await result.get_output()


def check_tool_round():
    with scripted_server() as server:
        for model_class in (OpenAIChatModel, OpenAIResponsesModel):
            colours = []
            with_tool = agent_with_tool(colours, model_class=model_class, name="scripted", base_url=server.url + "/v1")
            same(with_tool.run_sync(QUESTION).output, AFTER_CALL)
            same(colours, [CALL["arguments"]["colour"]])


def check_streamed_tool_round():
    # run_stream takes the first text for the answer, so nothing may come before the call.
    with scripted_server(before_call="") as server:
        for model_class in (OpenAIChatModel, OpenAIResponsesModel):
            colours = []
            with_tool = agent_with_tool(colours, model_class=model_class, name="scripted", base_url=server.url + "/v1")
            same(asyncio.run(streamed_output(with_tool)), AFTER_CALL)
            same(colours, [CALL["arguments"]["colour"]])


def check_tools_need_a_template():
    with_tool = agent_with_tool([])
    error = raised(ModelHTTPError, lambda: with_tool.run_sync(QUESTION))
    same(error.status_code, 400)
    holds("tools" in str(error.body), f"body {error.body}")


def check_errors():
    same(raised(ModelHTTPError, lambda: agent(name="none").run_sync(QUESTION)).status_code, 404)
    same(raised(ModelHTTPError, lambda: agent(key="sk-wrong").run_sync(QUESTION)).status_code, 401)
    same(raised(ModelHTTPError, lambda: agent(temperature=-1).run_sync(QUESTION)).status_code, 400)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
