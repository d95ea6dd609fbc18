"""What a request gives back, with vLLM's names."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from sluice import _core
    from sluice._params import SamplingParams

# The finish reason of vLLM where the engine has another name.
_FINISH_REASONS = {"cancelled": "abort", "": None}


@dataclass
class Logprob:
    """The natural logarithm of a token's probability. rank: 1 is the likeliest; None if it is not among those asked."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """An answer. token_ids holds the end token, too; text ends before a stop string.

    cumulative_logprob, logprobs: None unless SamplingParams.logprobs is set. One dict for each token, by token id: the
    chosen token first, then the likeliest ones. finish_reason: "stop", "length", "abort", or None while it runs.
    stop_reason: the stop string or the id of stop_token_ids that ended it.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answer of a request, or a part of it from stream() and AsyncLLM.

    prompt: the text, None for a prompt of token ids. prompt_logprobs: None unless asked for; one dict for each token of
    the prompt, None for the first. outputs: one answer. num_cached_tokens: tokens of the prompt whose KV was found in
    the prefix cache. captured_mass: with the option sparse_audit, what sparse prefill captured, as `sluice run --json`
    prints it. speculation: the counts of the request's drafts, as it prints them; None without one. metrics: None;
    LLM.stats() has counts and times.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    captured_mass: dict[str, Any] | None = None
    speculation: dict[str, Any] | None = None
    metrics: None = None


class TokenScore(NamedTuple):
    """A token of a text: its natural log-probability after all tokens before it, and the likeliest token there."""

    token_id: int
    logprob: float
    top_token_id: int
    top_logprob: float


@dataclass
class Trace:
    """Tensors from inside the model as numpy arrays, which also have __dlpack__.

    logits: float32 [tokens, vocabulary]. taps: by name, float32. No array is a copy.
    """

    logits: "npt.NDArray[np.float32]"
    taps: "dict[str, npt.NDArray[np.float32]]"


def to_logprobs(candidates: Sequence[tuple[int, float]], decode: Callable[[int], str]) -> dict[int, Logprob]:
    """The chosen token is the first of the candidates, the likeliest ones are the others, in order."""
    rank_of = {token_id: rank for rank, (token_id, _) in enumerate(candidates[1:], 1)}
    return {token_id: Logprob(logprob, rank_of.get(token_id), decode(token_id)) for token_id, logprob in candidates}


def emptied(positions: list[list[tuple[int, float]]]) -> Iterator[list[tuple[int, float]]]:
    """The items of a list that is freed on the way: all at once takes milliseconds, in which no other thread runs."""
    positions.reverse()
    while positions:
        yield positions.pop()


def to_completion(output: "_core.Output", params: "SamplingParams", decode: Callable[[int], str]) -> CompletionOutput:
    token_ids = output.token_ids
    logprobs = None if params.logprobs is None else [
        to_logprobs(position, decode) for position in emptied(output.logprobs)]
    reason = output.finish_reason
    stop_reason: int | str | None = output.stop_reason or None
    if reason == "stop" and stop_reason is None and token_ids and token_ids[-1] in (params.stop_token_ids or ()):
        stop_reason = token_ids[-1]
    return CompletionOutput(
        index=0, text=output.text, token_ids=token_ids,
        cumulative_logprob=None if logprobs is None else sum(
            position[token].logprob for position, token in zip(logprobs, token_ids, strict=True)),
        logprobs=logprobs,
        finish_reason=_FINISH_REASONS.get(reason, reason), stop_reason=stop_reason)


def to_request_output(output: "_core.Output", request_id: str, prompt: str | None, params: "SamplingParams",
                      decode: Callable[[int], str]) -> RequestOutput:
    prompt_logprobs = None if params.prompt_logprobs is None else [
        to_logprobs(position, decode) if position else None for position in emptied(output.prompt_logprobs)]
    mass, drafts = output.captured_mass, output.speculation
    return RequestOutput(request_id=request_id, prompt=prompt, prompt_token_ids=output.prompt_token_ids,
                         prompt_logprobs=prompt_logprobs, outputs=[to_completion(output, params, decode)],
                         finished=output.finished, num_cached_tokens=output.num_cached_tokens,
                         captured_mass=json.loads(mass) if mass else None,
                         speculation=json.loads(drafts) if drafts else None)
