"""Prompts: their forms, and what the engine gets of them."""

import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from sluice._errors import DoesNotFitError, InvalidArgumentError, UnsupportedError
from sluice._params import SamplingParams


class _Salted(TypedDict, total=False):
    cache_salt: str


class TextPrompt(_Salted):
    """A prompt that is a text. cache_salt: its KV is shared by prompts with the same salt alone."""

    prompt: str


class TokensPrompt(_Salted, total=False):
    """A prompt of token ids. cache_salt: as TextPrompt's. prompt: the text that outputs show, if there is one."""

    prompt_token_ids: Sequence[int]
    prompt: str


# A text, token ids, TextPrompt, TokensPrompt, or a dict with their keys.
PromptType = str | Sequence[int] | TextPrompt | TokensPrompt | Mapping[str, Any]

_KEYS = {"prompt", "prompt_token_ids", "cache_salt"}
# Keys of vLLM that Sluice takes without a value.
_EMPTY_KEYS = {"multi_modal_data", "multi_modal_uuids", "mm_processor_kwargs"}


@dataclass
class Prompt:
    """A prompt apart: the text that outputs show, None for token ids; what the engine gets; its salt, or ""."""

    text: str | None
    ids: str | Sequence[int]
    cache_salt: str = ""


def split_prompt(prompt: PromptType) -> Prompt:
    """Raises TypeError and ValueError."""
    if isinstance(prompt, str):
        return Prompt(prompt, prompt)
    if not isinstance(prompt, Mapping):
        return Prompt(None, prompt)
    given: Mapping[str, Any] = prompt
    if set(given) - _KEYS - _EMPTY_KEYS or any(given.get(name) for name in _EMPTY_KEYS):
        raise InvalidArgumentError(f"a prompt has the keys {sorted(given)}; give 'prompt' or 'prompt_token_ids', and "
                                   "'cache_salt'")
    salt = given.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise TypeError(f"cache_salt must be a text, not {type(salt).__name__}")
    if given.get("prompt_token_ids") is not None:
        return Prompt(given.get("prompt"), given["prompt_token_ids"], salt or "")
    if isinstance(given.get("prompt"), str):
        return Prompt(given["prompt"], given["prompt"], salt or "")
    raise InvalidArgumentError("a prompt that is a dict needs 'prompt' (a text) or 'prompt_token_ids' (a list)")


def split_prompts(prompts: PromptType | Sequence[PromptType]) -> list[Prompt]:
    """One prompt or a list of them; a list of whole numbers is one prompt of token ids."""
    is_one = isinstance(prompts, (str, Mapping)) or (len(prompts) > 0 and isinstance(prompts[0], numbers.Integral))
    return [split_prompt(one) for one in ([prompts] if is_one else prompts)]  # type: ignore[arg-type]


def check_priority(priority: int | Sequence[int] | None) -> None:
    """vLLM's keyword, with the values that mean what Sluice does anyway."""
    given = [priority] if isinstance(priority, int) else list(priority or [])
    if any(given):
        raise UnsupportedError(f"priority is {priority!r}, but requests run in the order of their arrival; leave it "
                               "out")


def to_core(prompt: Prompt, params: SamplingParams, max_model_len: int, tokenize: Callable[[str], Iterable[int]]
            ) -> tuple[Any, dict[str, Any]]:
    """The prompt and the parameters as the module takes them; max_tokens becomes at most the room that is left."""
    salt = {"cache_salt": prompt.cache_salt} if prompt.cache_salt else {}
    ids = list(tokenize(prompt.ids)) if isinstance(prompt.ids, str) else prompt.ids
    room = max_model_len - len(ids)
    if room < 1 and params.max_tokens is not None:
        return ids, {**params.to_core(), **salt}  # the module names the prompt in its error
    if room < 1:
        raise DoesNotFitError(f"the prompt has {len(ids)} tokens, which leave no room for an answer in {max_model_len} "
                              "(max_model_len)")
    return ids, {**params.to_core(room), **salt}
