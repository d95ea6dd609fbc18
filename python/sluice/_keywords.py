"""Keywords: the nearest name for an unknown one, and names of vLLM that only have one meaning here."""

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sluice import _core
from sluice._errors import UnsupportedError

T = TypeVar("T")

# Options of vLLM's LLM that Sluice does not have, with the values that mean what Sluice does anyway.
NEUTRAL_OPTIONS: dict[str, tuple[Any, ...]] = {
    "pipeline_parallel_size": (1,), "data_parallel_size": (1,),
    "dtype": ("auto", "bfloat16"), "quantization": (None,),
    "tokenizer": (None,), "tokenizer_mode": ("auto",), "trust_remote_code": (False, True), "revision": (None,),
    "tokenizer_revision": (None,), "runner": ("auto", "generate"), "enable_chunked_prefill": (None, True),
    "enable_lora": (False,), "disable_log_stats": (False, True), "disable_custom_all_reduce": (False, True),
    "swap_space": (None, 0)}


def without_neutral(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that the engine has. Raises UnsupportedError for another value of a neutral one.

    vLLM's speculative_config may be a dict; the engine reads it as text."""
    kept = {}
    for name, value in options.items():
        if name == "speculative_config" and isinstance(value, Mapping):
            kept[name] = json.dumps(value)
        elif name not in NEUTRAL_OPTIONS:
            kept[name] = value
        elif value not in NEUTRAL_OPTIONS[name]:
            allowed = " or ".join(repr(one) for one in NEUTRAL_OPTIONS[name])
            raise UnsupportedError(f"{name} is {value!r}, which Sluice does not do; give {allowed} or leave it out")
    return kept


def suggesting(cls: type[T]) -> type[T]:
    """Makes a dataclass name the nearest field in the TypeError for an unknown keyword."""
    plain: Callable[..., None] = cls.__init__
    names = [name for name in getattr(cls, "__dataclass_fields__", {})]

    def checked(self: T, *args: Any, **keywords: Any) -> None:
        for name in keywords:
            if name not in names:
                raise TypeError(_core.unknown_keyword(cls.__name__, name, names))
        plain(self, *args, **keywords)

    checked.__doc__ = plain.__doc__
    checked.__wrapped__ = plain  # type: ignore[attr-defined]  # so that help() shows the fields
    cls.__init__ = checked  # type: ignore[assignment]
    return cls
