"""What a request gives back, with vLLM's names."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
class RequestStateStats:
    """What was measured of a request so far, in seconds; 0 for what has not happened.

    arrival_time: of time.time(), when the prompt came; in chat, after the template was applied. Others are of
    time.monotonic(): queued_ts, the engine got the request; scheduled_ts, the first pass with tokens of it began;
    first_token_ts and last_token_ts, the passes that gave these tokens had ended. A finished request ended with its
    last token, unless it was aborted. first_token_latency: from the arrival to the first token.
    """

    num_generation_tokens: int = 0
    arrival_time: float = 0.0
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    first_token_latency: float = 0.0


@dataclass(frozen=True)
class PinInfo:
    """A named prefix whose KV is kept until the pin is deleted.

    num_tokens: of the prefix that prompts find, in whole blocks. num_device_tokens, num_host_tokens, num_disk_tokens:
    where they are; a token may be in memory and in the KV store, or in the store alone.
    """

    name: str
    num_tokens: int
    num_blocks: int
    num_bytes: int
    num_device_tokens: int
    num_host_tokens: int
    num_disk_tokens: int


@dataclass
class RequestOutput:
    """The answer of a request, or a part of it from stream() and AsyncLLM.

    prompt: the text, None for a prompt of token ids. prompt_logprobs: None unless asked for; one dict for each token of
    the prompt, None for the first. outputs: one answer. num_cached_tokens: tokens of the prompt whose KV was found in
    the prefix cache or in the KV store; num_stored_tokens: of these, in the store. captured_mass: with the option
    sparse_audit, what sparse prefill captured, as `sluice run --json` prints it. speculation: the counts of the
    request's drafts, as it prints them; None without one. metrics: what was measured so far. clamped_max_tokens: the
    room that the prompt left, if max_tokens exceeded it; else None.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    captured_mass: dict[str, Any] | None = None
    metrics: RequestStateStats | None = None
    num_stored_tokens: int = 0
    speculation: dict[str, Any] | None = None
    clamped_max_tokens: int | None = None


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


@dataclass
class Asked:
    """What is known of a request before its answer. Made when the prompt comes."""

    request_id: str
    prompt: str | None
    params: "SamplingParams"
    arrival_time: float = field(default_factory=time.time)
    arrival_ts: float = field(default_factory=time.monotonic)
    queued_ts: float = 0.0
    clamped_max_tokens: int | None = None

    def queue(self, settings: Mapping[str, Any]) -> None:
        """The engine gets it now, with these keywords."""
        self.queued_ts = time.monotonic()
        if self.params.max_tokens is not None and settings["max_tokens"] < self.params.max_tokens:
            self.clamped_max_tokens = settings["max_tokens"]

    def metrics(self, output: "_core.Output") -> RequestStateStats:
        num_tokens, scheduled, first, last = output.stats
        return RequestStateStats(num_tokens, self.arrival_time, self.queued_ts, scheduled, first, last,
                                 first - self.arrival_ts if num_tokens else 0.0)


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


def to_request_output(output: "_core.Output", asked: Asked, decode: Callable[[int], str]) -> RequestOutput:
    params = asked.params
    prompt_logprobs = None if params.prompt_logprobs is None else [
        to_logprobs(position, decode) if position else None for position in emptied(output.prompt_logprobs)]
    mass, drafts = output.captured_mass, output.speculation
    return RequestOutput(request_id=asked.request_id, prompt=asked.prompt, prompt_token_ids=output.prompt_token_ids,
                         prompt_logprobs=prompt_logprobs, outputs=[to_completion(output, params, decode)],
                         finished=output.finished, num_cached_tokens=output.num_cached_tokens,
                         captured_mass=json.loads(mass) if mass else None, metrics=asked.metrics(output),
                         num_stored_tokens=output.num_stored_tokens,
                         speculation=json.loads(drafts) if drafts else None,
                         clamped_max_tokens=asked.clamped_max_tokens)
