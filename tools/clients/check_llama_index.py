"""llama-index: structured calls of an OpenAI-like server."""

import os
import sys

import openai
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike

from castles import Castle, Colours, QUESTION, server_that_reads_tools
from checks import MODEL_NAME, holds, raised, run_checks


def model(**options):
    return OpenAILike(**({"model": MODEL_NAME, "api_base": os.environ["OPENAI_BASE_URL"],
                          "api_key": os.environ["OPENAI_API_KEY"], "is_chat_model": True, "temperature": 0,
                          "max_tokens": 300, "max_retries": 0, "should_use_structured_outputs": True} | options))


def check_structured_calls():
    castle = model().structured_predict(Castle, PromptTemplate(QUESTION))
    holds(isinstance(castle, Castle), castle)
    castle = model().as_structured_llm(Castle).complete(QUESTION).raw
    holds(isinstance(castle, Castle), castle)


def check_forced_calls():
    with server_that_reads_tools() as server:
        forced = model(api_base=server.url + "/v1", should_use_structured_outputs=False, is_function_calling_model=True)
        castle = forced.structured_predict(Castle, PromptTemplate(QUESTION))
        holds(isinstance(castle, Castle), castle)


def check_what_cannot_be_enforced():
    error = raised(openai.BadRequestError, lambda: model().structured_predict(Colours, PromptTemplate(QUESTION)))
    holds("uniqueItems at /properties/names" in str(error), error)


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
