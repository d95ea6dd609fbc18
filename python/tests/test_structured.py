"""Structured output: the answer is what was asked for, and what cannot be enforced is an error."""

import json
import re

import pytest
import sluice
from sluice import SamplingParams, StructuredOutputsParams

PROMPT = "It was a dark and"


def text_of(llm, structured, **fields):
    params = SamplingParams(temperature=1, seed=3, max_tokens=80, structured_outputs=structured, **fields)
    (output,) = llm.generate([PROMPT], params)
    assert output.outputs[0].finish_reason == "stop"
    return output.outputs[0].text


def test_answers_are_what_was_asked_for(llm):
    schema = {"type": "array", "items": {"enum": ["red", 7]}, "minItems": 1, "maxItems": 2}
    for given in (schema, json.dumps(schema)):
        value = json.loads(text_of(llm, StructuredOutputsParams(json=given)))
        assert value and set(value) <= {"red", 7}
    assert re.fullmatch(r"[A-C]{3}-\d", text_of(llm, StructuredOutputsParams(regex=r"[A-C]{3}-\d")))
    assert text_of(llm, StructuredOutputsParams(choice=["yes", "no"])) in ("yes", "no")
    assert text_of(llm, StructuredOutputsParams(grammar='root ::= "a" [bc] "!"')) in ("ab!", "ac!")


def test_a_class_with_a_schema_is_a_schema():
    class Model:
        @staticmethod
        def model_json_schema():
            return {"type": "null"}

    assert StructuredOutputsParams(json=Model).to_core() == ("json", '{"type": "null"}', [])


def test_errors_name_what_is_wrong(llm):
    with pytest.raises(sluice.InvalidArgumentError, match="uniqueItems at its root"):
        text_of(llm, StructuredOutputsParams(json={"uniqueItems": True}))
    with pytest.raises(sluice.InvalidArgumentError, match="ignore_eos"):
        text_of(llm, StructuredOutputsParams(regex="a"), ignore_eos=True)
    for fields in ({}, {"regex": "a", "choice": ["b"]}):
        with pytest.raises(sluice.InvalidArgumentError, match="give one of"):
            StructuredOutputsParams(**fields)
