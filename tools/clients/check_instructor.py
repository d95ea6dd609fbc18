"""instructor: answers as classes of pydantic, whole and in parts, by schemas and by forced calls."""

import sys

import instructor
import openai

from castles import Castle, Colours, QUESTION, server_that_reads_tools
from checks import MODEL_NAME, holds, raised, run_checks

FIELDS = {"model": MODEL_NAME, "messages": [{"role": "user", "content": QUESTION}], "max_retries": 0, "temperature": 0,
          "max_tokens": 300}


def completions(mode=instructor.Mode.JSON_SCHEMA, base_url=None):
    return instructor.from_openai(openai.OpenAI(max_retries=0, base_url=base_url), mode=mode).chat.completions


def check_schemas():
    castle = completions().create(**FIELDS, response_model=Castle)
    holds(isinstance(castle, Castle), castle)


def check_parts():
    castle = list(completions().create_partial(**FIELDS, response_model=Castle))[-1]
    Castle.model_validate(castle.model_dump())


def check_forced_calls():
    with server_that_reads_tools() as server:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
            castle = completions(mode, server.url + "/v1").create(**FIELDS, response_model=Castle)
            holds(isinstance(castle, Castle), castle)


def check_what_cannot_be_enforced():
    error = raised(Exception, lambda: completions().create(**FIELDS, response_model=Colours))
    holds("uniqueItems at /properties/names" in str(error), error)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
