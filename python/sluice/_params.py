"""SamplingParams: how the tokens of a request are chosen and when it ends."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from sluice import _core
from sluice._errors import UnsupportedError
from sluice._keywords import suggesting
from sluice._structured import StructuredOutputsParams


class RequestOutputKind(enum.Enum):
    """What AsyncLLM.generate yields: everything so far, what is new, or one output at the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


# Fields that vLLM has and Sluice only takes with this value.
_NEUTRAL: dict[str, Any] = {"n": 1, "bad_words": None, "include_stop_str_in_output": False, "detokenize": True,
                            "spaces_between_special_tokens": True, "truncate_prompt_tokens": None}
_PYTHON_ONLY = {*_NEUTRAL, "output_kind", "structured_outputs"}

T = TypeVar("T")


def with_all_rows(cls: type[T]) -> type[T]:
    """Adds a field for each parameter of the engine that the class does not list; only its type is then unknown."""
    for name, default in _core.sampling_defaults().items():
        if name not in cls.__annotations__:
            cls.__annotations__[name] = Any
            setattr(cls, name, default if isinstance(default, bool | int | float | str) else None)
    return cls


@suggesting
@dataclass(kw_only=True)
@with_all_rows
class SamplingParams:
    """Parameters of a request, with vLLM's names and meanings.

    temperature: 0 is greedy. top_k: 0 or -1 keeps the whole vocabulary. top_p: above 0, at most 1. min_p: 0 to 1,
    relative to the likeliest token. seed: the same seed gives the same tokens, alone or in any batch; None draws one.
    max_tokens: at least 1; None is all the room that the prompt leaves, and so is more than it. min_tokens: no end
    before this many. stop: texts that end the answer and are no part of it. stop_token_ids: ids that end it besides the
    model's own.
    logprobs, prompt_logprobs: 0 to 20, the likeliest tokens that are reported besides the chosen one; None: nothing.
    logit_bias: by token id, -100 to 100, or -inf to ban a token. The penalties and allowed_token_ids are vLLM's.
    structured_outputs: what the answer must be; excludes min_tokens and ignore_eos.
    n is 1: give a prompt several times for several answers.

    Raises TypeError for an unknown keyword, with the nearest name, and for a value of another type;
    sluice.InvalidArgumentError (a ValueError) for a value out of its range; sluice.UnsupportedError for fields of vLLM
    that Sluice does not have, unless they are neutral.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    bad_words: Sequence[str] | None = None
    include_stop_str_in_output: bool = False
    detokenize: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        for name, neutral in _NEUTRAL.items():
            value = getattr(self, name)
            if value != neutral and value not in ([], ()):
                raise UnsupportedError(f"{name} is {value!r}, which Sluice does not do; leave it out")
        _core.check_sampling(self.to_core())

    def to_core(self, room: int | None = None) -> dict[str, Any]:
        """The keywords of the C++ module. `room`: the most max_tokens; it replaces None and whatever exceeds it."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in _PYTHON_ONLY}
        if room is not None:
            values["max_tokens"] = room if self.max_tokens is None else min(self.max_tokens, room)
        elif self.max_tokens is None:
            values["max_tokens"] = max(1, self.min_tokens)
        if self.structured_outputs is not None:
            values["structured_outputs"] = self.structured_outputs.to_core()
        return values

    @classmethod
    def from_core(cls, values: Mapping[str, Any]) -> "SamplingParams":
        """From what the C++ module says of default parameters."""
        return cls(**{name: value for name, value in values.items() if value is not None})
