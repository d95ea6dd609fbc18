"""For schemathesis: a check that what the description allows is accepted, save what no description can forbid.

Loaded by check_schemathesis.py, in place of positive_data_acceptance, which it asks. For its random phases, which do
not ask that, WITHOUT_RULES leaves out the rules between members of a body: schemathesis finds no random body that
keeps them all.
"""

import os

import schemathesis
from schemathesis.specs.openapi.checks import positive_data_acceptance

# Texts of errors: about the tokens of a text, a conversation without one, names that two lists must share, tools of
# which none is a function, a call beside a structure, an answer with a structure that may not end where it is complete
# (ignore_eos, min_tokens), numbers that depend on each other or on the model, what a text means that is a schema, a tag
# or a grammar, and what is left of a vocabulary.
BEYOND_DESCRIPTION = (
    "context_length", "prompt is too long", "has no message and no call",
    "the answer has a structure of its own", "structured output ends",
    "which is not among tools", "but there are no tools", "the most tokens that the answer can have",
    "fit beside the model's own", "leave no token that it allows", "schema: ", "structural_tag: ",
    "grammar: ", "regex: ",
)


@schemathesis.check
def described_data_is_accepted(context, response, case):
    if response.status_code == 400 and any(text in response.text for text in BEYOND_DESCRIPTION):
        return None
    return positive_data_acceptance(context, response, case)


@schemathesis.hook
def before_load_schema(context, raw_schema):
    del context
    if os.environ.get("WITHOUT_RULES"):
        for schema in raw_schema["components"]["schemas"].values():
            schema.pop("allOf", None)
