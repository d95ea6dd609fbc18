"""StructuredOutputsParams: what the text of an answer must be."""

import json as json_module
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from sluice._errors import InvalidArgumentError
from sluice._keywords import suggesting


@suggesting
@dataclass(kw_only=True)
class StructuredOutputsParams:
    """One of these, with vLLM's names.

    json: a JSON schema, as a text, a dict, or a class with model_json_schema (pydantic). regex: the whole answer
    matches. choice: one of these texts. grammar: rules in EBNF, from root on. json_object: any JSON object.

    Raises sluice.InvalidArgumentError unless exactly one is given.
    """

    json: str | dict[str, Any] | bool | Any | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        given = [one.name for one in fields(self) if getattr(self, one.name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            raise InvalidArgumentError(f"StructuredOutputsParams has {' and '.join(given) or 'nothing'}; give one of "
                                       "json, regex, choice, grammar and json_object")

    def to_core(self) -> tuple[str, str, list[str]]:
        """The kind, its text and its choices, as the C++ module takes them."""
        if self.choice is not None:
            return "choice", "", list(self.choice)
        if self.regex is not None:
            return "regex", self.regex, []
        if self.grammar is not None:
            return "grammar", self.grammar, []
        if self.json is None:
            return "json_object", "", []
        schema = self.json.model_json_schema() if hasattr(self.json, "model_json_schema") else self.json
        return "json", schema if isinstance(schema, str) else json_module.dumps(schema), []
