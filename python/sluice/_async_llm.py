"""AsyncLLM: an engine on a thread of its own, for programs with an event loop."""

import asyncio
import contextlib
import functools
import itertools
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sluice import _core
from sluice._errors import InvalidArgumentError, RefusedError
from sluice._keywords import without_neutral
from sluice._outputs import Asked, CompletionOutput, PinInfo, RequestOutput, to_request_output
from sluice._params import RequestOutputKind, SamplingParams
from sluice._prompts import Prompt, PromptType, check_priority, split_prompt, to_core

# Tokenizing a longer text would hold up the loop, so a thread of the loop's executor does it.
_LONG_TEXT = 1 << 14
# What the module's mailbox hands over: key, delta, reason of the end, exception.
_Letter = tuple[int, "_core.Output | None", "str | None", object]


class AsyncEngineArgs:
    """Options of AsyncLLM, as vLLM's class of this name: the model directory and LLM's options."""

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        self.model = model
        self.options = options


@dataclass(eq=False)
class _Request:
    """A request between its generator and the thread that reads the mailbox."""

    loop: asyncio.AbstractEventLoop
    pin: str = ""  # the name that its prompt is held under
    letters: "asyncio.Queue[_Letter]" = field(default_factory=asyncio.Queue)
    engine_id: int | None = None  # once it is submitted
    is_over: bool = False         # aborted, or its generator has ended


class AsyncLLM:
    """A model that answers many requests at the same time.

    model and options: as LLM's. max_waiting: requests that may wait for KV memory; more are refused.

    Any loop of any thread may use one object. Dropping the iterator of generate, or cancelling the task that reads it,
    ends its request and frees its KV. Call shutdown, or let the program end.
    """

    def __init__(self, model: str | os.PathLike[str], *, max_waiting: int = 1 << 20, **options: Any) -> None:
        self._service = _core.Service({"model": os.fspath(model), **without_neutral(options)}, max_waiting)
        self._max_model_len = self._service.max_model_len
        self._keys = itertools.count(1)
        self._open: dict[int, _Request] = {}  # by the key of its letters
        self._key_of: dict[str, int] = {}     # by the caller's request id
        self._lock = threading.Lock()
        # The thread holds no reference to this object, which can so be collected.
        self._reader = threading.Thread(target=_read_letters, args=(self._service, self._open), daemon=True,
                                        name="sluice-letters")
        self._reader.start()
        self._finalizer = weakref.finalize(self, _close, self._service, self._reader)

    @classmethod
    def from_engine_args(cls, engine_args: AsyncEngineArgs) -> "AsyncLLM":
        """vLLM's way to make one."""
        return cls(engine_args.model, **engine_args.options)

    def generate(self, prompt: PromptType, sampling_params: SamplingParams | None = None,
                 request_id: str | None = None, *, priority: int = 0) -> AsyncGenerator[RequestOutput, None]:
        """Yields outputs of one request while it runs; the last one is finished.

        sampling_params.output_kind says what an output holds: CUMULATIVE (the default) everything so far, DELTA what is
        new, FINAL_ONLY one output at the end. CUMULATIVE copies the answer for each token. If the reader is slow,
        several tokens come in one output. request_id: unique among running requests; None makes one. priority: 0, since
        requests run in the order of their arrival.

        Raises, at the first step: those of LLM.generate; sluice.RefusedError when too many wait, after shutdown, and
        when the engine has failed. Later: sluice.DeviceError when the engine fails.
        """
        check_priority(priority)
        return self._generate(prompt, sampling_params, request_id)

    async def pin(self, name: str, prompt: PromptType) -> PinInfo:
        """Computes a prompt beside other requests, and keeps its KV under a name until unpin: LLM.pin says how.

        Cancelling the task makes no pin. Raises those of generate and LLM.pin; sluice.RefusedError if the pin was
        deleted, or the engine shut down, before it was made.
        """
        if not name:
            raise InvalidArgumentError("the name of a pin is empty; it must have 1 to 64 characters")
        params = SamplingParams(temperature=0, max_tokens=1, output_kind=RequestOutputKind.FINAL_ONLY)
        async with contextlib.aclosing(self._generate(prompt, params, None, name)) as outputs:
            async for _ in outputs:
                pass
        made = self.pins.get(name) if self._finalizer.alive else None
        if made is None:
            raise RefusedError(f"the pin '{name}' was not made, or was deleted meanwhile; try again")
        return made

    @property
    def pins(self) -> dict[str, PinInfo]:
        """All pins, by name. Raises ValueError after shutdown."""
        return {one["name"]: PinInfo(**one) for one in self._service.pins()}

    def unpin(self, name: str) -> bool:
        """Deletes a pin; its memory is free after the step that runs. False if there is none of this name."""
        return self._service.unpin(name)

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Ends requests by their ids; their last outputs have the finish reason "abort". Unknown ids have no effect."""
        for name in [request_id] if isinstance(request_id, str) else list(request_id):
            with self._lock:
                request = self._open.get(self._key_of.get(name, 0))
                if request is not None:
                    request.is_over = True  # for `_submit_now`, if a thread still reads its text
            if request is not None and request.engine_id is not None:
                self._service.cancel(request.engine_id)

    def shutdown(self) -> None:
        """Aborts all requests, waits until they have ended and frees the memory. Later calls have no effect. With a KV
        store it waits until all is written, as LLM.flush_kv_store does."""
        self._finalizer()
        if threading.current_thread() is not self._reader:
            self._reader.join()

    def snapshot(self) -> dict[str, Any]:
        """Counts of requests, tokens and KV blocks at this moment. Raises ValueError after shutdown."""
        return self._service.snapshot()

    async def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json suggests."""
        return SamplingParams.from_core(self._service.default_params())

    def tokenize(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """As LLM.tokenize; may be called from any thread."""
        return self._service.encode(text, add_special_tokens, parse_special)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """As LLM.detokenize; may be called from any thread."""
        return self._service.decode(token_ids)

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return self._max_model_len

    @property
    def is_running(self) -> bool:
        """Whether requests are accepted."""
        return self._finalizer.alive and self._service.snapshot()["state"] == "serving"

    async def _generate(self, prompt: PromptType, sampling_params: SamplingParams | None, request_id: str | None,
                        pin: str = "") -> AsyncGenerator[RequestOutput, None]:
        """What generate yields; with `pin` the prompt is held under this name at the end."""
        split = split_prompt(prompt)
        self._check_running()
        params = sampling_params or SamplingParams.from_core(self._service.default_params())
        request = _Request(asyncio.get_running_loop(), pin)
        key = next(self._keys)
        asked = Asked(request_id if request_id is not None else f"cmpl-{key}", split.text, params)
        self._register(key, asked.request_id, request)
        total = _Total(asked, self._decode_one)
        try:
            await self._submit(key, request, split, asked)
            while True:
                _, delta, reason, error = await request.letters.get()
                if delta is not None:
                    output = total.add(delta)
                    if output is not None:
                        yield output
                if isinstance(error, BaseException):
                    raise error
                if reason is not None:
                    return
        finally:
            self._drop(key, asked.request_id, request)

    def _decode_one(self, token_id: int) -> str:
        return self._service.decode([token_id])

    def _register(self, key: int, name: str, request: _Request) -> None:
        with self._lock:
            if name in self._key_of:
                raise ValueError(f"request_id {name!r} is that of a running request")
            self._open[key] = request
            self._key_of[name] = key

    async def _submit(self, key: int, request: _Request, prompt: Prompt, asked: Asked) -> None:
        if len(prompt.ids) > _LONG_TEXT:
            # If the task is cancelled meanwhile, `_submit_now` sees that the request is over.
            await request.loop.run_in_executor(None, self._submit_now, key, request, prompt, asked)
        else:
            self._submit_now(key, request, prompt, asked)

    def _submit_now(self, key: int, request: _Request, prompt: Prompt, asked: Asked) -> None:
        try:
            ids, settings = to_core(prompt, asked.params, self._max_model_len, self.tokenize)
            asked.queue(settings)
            engine_id, refusal = self._service.submit(key, ids, settings, request.pin)
        except ValueError:
            self._check_running()  # a shutdown meanwhile is not the caller's mistake
            raise
        if refusal:
            raise RefusedError(f"the request was refused: {refusal}; try again later, or make another AsyncLLM")
        with self._lock:
            request.engine_id = engine_id
            is_over = request.is_over
        if is_over:
            self._service.cancel(engine_id)

    def _check_running(self) -> None:
        if not self._finalizer.alive:
            raise RefusedError("the engine was shut down; make another one")

    def _drop(self, key: int, name: str, request: _Request) -> None:
        with self._lock:
            request.is_over = True
            del self._open[key]
            del self._key_of[name]
        if request.engine_id is not None and self._finalizer.alive:
            self._service.cancel(request.engine_id)  # no effect on one that has ended


class _Total:
    """Adds up the deltas of a request and makes the outputs that its kind asks for."""

    def __init__(self, asked: Asked, decode: Any) -> None:
        self._asked, self._decode = asked, decode
        self._parts: list[RequestOutput] = []  # CUMULATIVE: one, everything so far

    def add(self, delta: "_core.Output") -> RequestOutput | None:
        new = to_request_output(delta, self._asked, self._decode)
        kind = self._asked.params.output_kind
        if kind is RequestOutputKind.DELTA:
            return new
        self._parts.append(new)
        if kind is RequestOutputKind.FINAL_ONLY and not new.finished:
            return None
        self._parts = [_joined(self._parts)]
        return self._parts[0]


def _joined(parts: list[RequestOutput]) -> RequestOutput:
    """One output of consecutive parts; a new object unless there is one part, so that a yielded one does not change."""
    first, last = parts[0], parts[-1]
    if first is last:
        return first
    answers = [part.outputs[0] for part in parts]
    completion = CompletionOutput(
        index=0, text="".join(one.text for one in answers),
        token_ids=list(itertools.chain.from_iterable(one.token_ids for one in answers)),
        cumulative_logprob=functools.reduce(_sum, (one.cumulative_logprob for one in answers)),
        logprobs=_chained([one.logprobs for one in answers]),
        finish_reason=answers[-1].finish_reason, stop_reason=answers[-1].stop_reason)
    prompt_token_ids = next((part.prompt_token_ids for part in reversed(parts) if part.prompt_token_ids), [])
    return RequestOutput(request_id=first.request_id, prompt=first.prompt, prompt_token_ids=prompt_token_ids,
                         prompt_logprobs=_chained([part.prompt_logprobs for part in parts]),
                         outputs=[completion], finished=last.finished, num_cached_tokens=last.num_cached_tokens,
                         captured_mass=last.captured_mass, metrics=last.metrics,
                         num_stored_tokens=last.num_stored_tokens,
                         speculation=functools.reduce(_added, (part.speculation for part in parts)))


def _chained(lists: list[list[Any] | None]) -> list[Any] | None:
    """The elements of all lists; None if one of them is None."""
    known = [one for one in lists if one is not None]
    return list(itertools.chain.from_iterable(known)) if len(known) == len(lists) else None


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def _added(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any] | None:
    """The counts of drafts of both parts."""
    if old is None or new is None:
        return old or new
    total = {name: old[name] + new[name] for name in ("drafts", "draft_tokens", "accepted_tokens")}
    return {**total, "tokens_per_verify": 1 + total["accepted_tokens"] / total["drafts"]}


def _close(service: "_core.Service", reader: threading.Thread) -> None:
    """Ends the thread first: an ending interpreter would end it within a call of the module, and the program with it.
    The thread itself may be the one that collects the object."""
    service.close()
    if reader is not threading.current_thread():
        reader.join()


def _read_letters(service: "_core.Service", requests: dict[int, _Request]) -> None:
    """Hands letters to the loops of their requests until the service is closed. The engine never waits for it."""
    while _hand_out(service.take(), service, requests):
        pass


def _hand_out(letters: "list[_Letter]", service: "_core.Service", requests: dict[int, _Request]) -> bool:
    """False: there are no letters, since the service was closed."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Request, _Letter]]] = {}
    for letter in letters:
        request = requests.get(letter[0])
        if request is not None:
            by_loop.setdefault(request.loop, []).append((request, letter))
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_deliver, mine)
        except RuntimeError:  # the loop was closed under its requests
            for request, _ in mine:
                if request.engine_id is not None:
                    service.cancel(request.engine_id)
    return bool(letters)


def _deliver(letters: list[tuple[_Request, _Letter]]) -> None:
    for request, letter in letters:
        request.letters.put_nowait(letter)
