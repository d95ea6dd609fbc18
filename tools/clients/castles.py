"""What clients of structured output ask for, as classes of pydantic, which each of these clients brings.

Every text and list has a limit: the bundled model would go on to the end of its context. It knows nothing of castles,
so an answer is one if it was held to the schema.
"""

import os
import pathlib
from typing import Literal

from pydantic import BaseModel, Field

from checks import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]
QUESTION = "Describe the castle."


class Tower(BaseModel, extra="forbid"):
    height: int = Field(ge=1, le=90)
    is_round: bool


class Castle(BaseModel, extra="forbid"):
    """A castle."""

    colour: Literal["red", "purple"]
    owner: str | None = Field(max_length=8)
    towers: list[Tower] = Field(min_length=1, max_length=2)


class Door(BaseModel, extra="forbid"):
    """For clients that leave limits out of the schema that they send: it has none."""

    colour: Literal["red", "purple"]
    is_open: bool


class Colours(BaseModel, extra="forbid"):
    """A set has uniqueItems, which no grammar can hold any texts to."""

    names: set[str]


def server_that_reads_tools(template="qwen2.5"):
    """A Server with the bundled model and another model's template: its own knows nothing of tools."""
    return Server(os.environ["MODEL"], "--chat-template",
                  str(ROOT / f"tests/golden/tokenizer/templates/{template}.jinja"))
