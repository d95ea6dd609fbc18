"""OpenAI's own client, openai: answers as classes of pydantic, of chats and responses, whole and streamed."""

import json
import sys

import openai

from castles import Castle, Colours, Door, QUESTION, server_that_reads_tools
from checks import MODEL_NAME, holds, raised, run_checks, same

# Retries would hide an error that comes once.
client = openai.OpenAI(max_retries=0)
CHAT = {"model": MODEL_NAME, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 300}
RESPONSE = {"model": MODEL_NAME, "input": QUESTION, "max_output_tokens": 300}


def check_chats():
    for temperature in (0, 1):
        fields = CHAT | {"response_format": Castle, "temperature": temperature, "seed": 7}
        (choice,) = client.chat.completions.parse(**fields).choices
        holds(isinstance(choice.message.parsed, Castle), choice)
        same(choice.finish_reason, "stop")
        with client.chat.completions.stream(**fields) as stream:
            same(stream.get_final_completion().choices[0].message.parsed, choice.message.parsed, "streamed")


def check_choices():
    answer = client.chat.completions.parse(**CHAT, response_format=Castle, n=4, seed=3, temperature=1)
    same([isinstance(choice.message.parsed, Castle) for choice in answer.choices], [True] * 4)


def check_responses():
    fields = RESPONSE | {"text_format": Castle, "temperature": 0}
    response = client.responses.parse(**fields)
    holds(isinstance(response.output_parsed, Castle), response)
    same((response.text.format.type, response.text.format.name), ("json_schema", "Castle"))
    with client.responses.stream(**fields) as stream:
        same(stream.get_final_response().output_parsed, response.output_parsed, "streamed")


def check_any_object():
    answer = client.chat.completions.create(**CHAT, response_format={"type": "json_object"}, temperature=0)
    holds(answer.choices[0].finish_reason == "length"
          or isinstance(json.loads(answer.choices[0].message.content), dict), answer)


def check_fields_of_vllm():
    def content(**structure):
        answer = client.chat.completions.create(**CHAT, temperature=1, extra_body={"structured_outputs": structure})
        same(answer.choices[0].finish_reason, "stop")
        return answer.choices[0].message.content

    holds(content(choice=["red", "purple"]) in ("red", "purple"), "one of the choices")
    holds(content(regex="[0-9]{3}-[0-9]{4}").replace("-", "").isdigit(), "what the regular expression matches")
    Castle.model_validate_json(content(json=Castle.model_json_schema()))


def check_forced_calls():
    tools = [openai.pydantic_function_tool(Castle), openai.pydantic_function_tool(Door)]
    named = {"type": "function", "function": {"name": "Door"}}
    with server_that_reads_tools() as server:
        local = client.with_options(base_url=server.url + "/v1")
        for choice, classes in (("required", (Castle, Door)), (named, Door)):
            fields = CHAT | {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0}
            (call,) = local.chat.completions.parse(**fields).choices[0].message.tool_calls
            holds(isinstance(call.function.parsed_arguments, classes), call)
            with local.chat.completions.stream(**fields) as stream:
                (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
            same(streamed.function.parsed_arguments, call.function.parsed_arguments, "streamed")


def check_forced_calls_of_responses():
    tools = [openai.pydantic_function_tool(each)["function"] | {"type": "function"} for each in (Castle, Door)]
    with server_that_reads_tools() as server:
        local = client.with_options(base_url=server.url + "/v1")
        for choice in ("required", {"type": "function", "name": "Door"}):
            response = local.responses.parse(**RESPONSE, tools=tools, tool_choice=choice, parallel_tool_calls=False)
            (call,) = (item for item in response.output if item.type == "function_call")
            ({"Castle": Castle, "Door": Door}[call.name]).model_validate_json(call.arguments)
            holds(choice == "required" or call.name == "Door", call)


def check_cut_answers():
    raised(openai.LengthFinishReasonError,
           lambda: client.chat.completions.parse(**CHAT | {"max_tokens": 3}, response_format=Castle))


def check_what_cannot_be_enforced():
    for call in (lambda: client.chat.completions.parse(**CHAT, response_format=Colours),
                 lambda: client.responses.parse(**RESPONSE, text_format=Colours)):
        error = raised(openai.BadRequestError, call)
        holds("uniqueItems at /properties/names" in error.message, error.message)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
