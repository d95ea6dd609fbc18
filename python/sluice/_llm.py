"""LLM: an engine in this process for one batch of prompts after the other."""

import functools
import importlib
import importlib.util
import json
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sluice import _core
from sluice._errors import DeviceError, InvalidArgumentError
from sluice._keywords import without_neutral
from sluice._outputs import Asked, PinInfo, RequestOutput, TokenScore, Trace, to_request_output
from sluice._params import SamplingParams
from sluice._prompts import Prompt, PromptType, check_priority, split_prompt, split_prompts, to_core
from sluice._tokenizer import Tokenizer

Message = Mapping[str, Any]


class LLM:
    """A model, loaded and ready.

    model: a Hugging Face model directory, or ORG/NAME of its cache. options: those of the C++ EngineOptions and of the
    command line, such as max_model_len, kv_offload="chunked", kv_host_bytes="64G", sparse_policy="full+quest",
    device="cpu"; `sluice run --help-all` lists them. Sizes are numbers or texts such as "4G" and "32K"; None is the
    default. Options of vLLM that Sluice does not have are accepted with the value that means what Sluice does anyway
    (pipeline_parallel_size=1).

    Raises TypeError for an unknown option, with the nearest name; sluice.ModelError, sluice.UnsupportedError,
    sluice.DoesNotFitError (before weights are read) and sluice.InvalidArgumentError.

    Any thread may call any method; calls run one after another. Other threads run meanwhile, since the GIL is released.
    Ctrl-C ends a call with KeyboardInterrupt, cancels its requests, and leaves the engine usable.
    """

    def __init__(self, model: str | os.PathLike[str], **options: Any) -> None:
        self._engine = _core.Engine({"model": os.fspath(model), **without_neutral(options)})
        self._model = os.fspath(model)
        self._decode_one: Callable[[int], str] = functools.lru_cache(1 << 16)(
            functools.partial(_decode_one, self._engine))
        self._lock = threading.RLock()  # the collector may close a stream in the middle of a step
        self._streams: dict[int, deque[_core.Output]] = {}  # by request id; what other streams' steps gave
        self._closed: list[int] = []  # streams that ended; their requests are yet to be cancelled

    # Answers

    def generate(self, prompts: PromptType | Sequence[PromptType],
                 sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
                 use_tqdm: bool | Callable[..., Any] = True, *, priority: Sequence[int] | None = None
                 ) -> list[RequestOutput]:
        """Runs prompts to their ends; one output for each, in order.

        prompts: a text, a list of token ids, {"prompt": text}, {"prompt_token_ids": ids}, or a list of these. A dict
        may have a cache_salt: its KV is then shared by prompts with the same salt alone, so that no time of an answer
        tells what others asked. Special tokens written in a text are plain text. sampling_params: one for all, one
        each, or None for what the model's generation_config.json suggests. use_tqdm: a progress bar if tqdm is
        installed, or what makes one. priority: zeros, since prompts run in their order.

        max_tokens above the room that a prompt leaves counts as the room (RequestOutput.clamped_max_tokens). Raises,
        before any work and with the index of the prompt: sluice.InvalidArgumentError; sluice.DoesNotFitError for a
        prompt that leaves no room. sluice.DeviceError leaves the engine unusable.
        """
        check_priority(priority)
        return self._run(split_prompts(prompts), sampling_params, use_tqdm)

    def chat(self, messages: Sequence[Message] | Sequence[Sequence[Message]],
             sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
             use_tqdm: bool | Callable[..., Any] = True, *, add_generation_prompt: bool = True,
             continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
             chat_template_kwargs: Mapping[str, Any] | None = None) -> list[RequestOutput]:
        """Answers a conversation, or each of a list of conversations, written with the model's chat template.

        messages: dicts with role and content as in OpenAI's API. tools: functions that the model may call.
        chat_template_kwargs: variables of the template, such as {"enable_thinking": False}; those that it does not read
        are ignored with a warning. The other options of the template are vLLM's; another template is LLM's option
        chat_template.

        Raises sluice.UnsupportedError for a model without a template that Sluice can run; sluice.InvalidArgumentError
        for messages that the template refuses; those of generate.
        """
        is_one = len(messages) == 0 or isinstance(messages[0], Mapping)
        conversations: Any = [messages] if is_one else messages
        prompts: list[Prompt] = []
        for conversation in conversations:
            ids = self.chat_prompt(conversation, add_generation_prompt=add_generation_prompt,
                                   continue_final_message=continue_final_message, tools=tools,
                                   chat_template_kwargs=chat_template_kwargs)
            prompts.append(Prompt(self.detokenize(ids), ids))
        return self._run(prompts, sampling_params, use_tqdm)

    def stream(self, prompt: PromptType, sampling_params: SamplingParams | None = None) -> Iterator[RequestOutput]:
        """Yields the new parts of one answer while it is computed.

        All texts, token_ids and logprobs in order are those of generate. prompt_token_ids comes with the last output.
        Several streams of one LLM are computed together. Closing the iterator cancels the request. Raises those of
        generate, at the first step.
        """
        split = split_prompt(prompt)
        asked = Asked("", split.text, self._params(sampling_params, 1)[0])
        request_id = self._add(split, asked)
        asked.request_id = str(request_id)
        try:
            while True:
                output = self._next_output(request_id)
                if output is None:
                    continue
                yield to_request_output(output, asked, self._decode_one)
                if output.finished:
                    return
        finally:
            self._remove(request_id)

    def score(self, token_ids: Sequence[int]) -> list[TokenScore]:
        """The log-probability of each token after the first, given all before it.

        The numbers of `sluice score` and of prompt_logprobs. Raises sluice.InvalidArgumentError for fewer than two
        tokens and while streams run; sluice.DoesNotFitError when the text leaves no room for one token more;
        sluice.FileError while a KV store that stands still holds the memory.
        """
        with self._lock:
            self._flush()
            scores = self._engine.score(token_ids)
        return [TokenScore(*one) for one in scores]

    # Prefixes that stay

    def pin(self, name: str, prompt: PromptType) -> PinInfo:
        """Computes a prompt, or finds it, and keeps its KV under a name until unpin.

        It stays in memory, or in the KV store if memory has no room beside one longest request. Every prompt that
        begins with it, and has the same cache_salt, finds it; there is nothing to restore. Whole blocks are kept. A pin
        of this name is replaced. name: 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot.

        Raises those of generate; sluice.InvalidArgumentError for another name; sluice.DoesNotFitError for a prompt
        without room for it, if there is no KV store. Ctrl-C makes no pin.
        """
        split = split_prompt(prompt)
        return PinInfo(**self._engine.pin(name, split.ids, split.cache_salt))

    @property
    def pins(self) -> dict[str, PinInfo]:
        """All pins, by name."""
        return {one["name"]: PinInfo(**one) for one in self._engine.pins()}

    def unpin(self, name: str) -> bool:
        """Deletes a pin; its KV is then kept like that of other prompts. False if there is none of this name."""
        return self._engine.unpin(name)

    def flush_kv_store(self) -> bool:
        """Waits until all KV is written that the KV store shall get; without one there is nothing to wait for.

        Writing goes on beside generate by itself, and an LLM that ends does the same, so this is for a program that
        goes on while another one shall read. False if no block was written for ten seconds. Ctrl-C takes effect after
        it.
        """
        return self._engine.flush_kv_store()

    # Text

    def tokenize(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text, with the model's BOS if it has one. parse_special: special tokens may be written out."""
        return self._engine.encode(text, add_special_tokens, parse_special)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text of ids, special tokens included."""
        return self._engine.decode(token_ids)

    def chat_prompt(self, messages: Sequence[Message], *, add_generation_prompt: bool = True,
                    continue_final_message: bool = False, tools: Sequence[Mapping[str, Any]] | None = None,
                    chat_template_kwargs: Mapping[str, Any] | None = None) -> list[int]:
        """The ids that chat gives to the engine. No text of a message becomes a special token."""
        variables = self._read_variables(chat_template_kwargs or {})
        return self._engine.chat_prompt(_json(list(messages)), {
            "template_kwargs": _json(variables) if variables else "",
            "tools": _json(list(tools)) if tools else "",
            "add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message})

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer and chat template under the names that programs for vLLM call."""
        return Tokenizer(self)

    @property
    def can_chat(self) -> bool:
        """Whether there is a chat template that Sluice can run."""
        return self._engine.can_chat()

    # Inside

    def trace(self, token_ids: Sequence[int], taps: str | Sequence[str] = ()) -> Trace:
        """Runs token ids as one request and returns logits and inner tensors, for comparison with other programs.

        taps: patterns of names, such as "layer.*.attn_out". Shapes: logits [tokens, vocabulary], taps as
        docs/architecture.md lists them; float32, numpy arrays on memory that the engine wrote. Raises
        sluice.InvalidArgumentError for a pattern that no tap matches and while streams run.
        """
        with self._lock:
            self._flush()
            logits, arrays = self._engine.trace(token_ids, [taps] if isinstance(taps, str) else list(taps))
        return Trace(logits, arrays)

    def observations(self) -> dict[str, Any]:
        """What KV offload moved, sparse policies selected, and the KV store read and wrote ("kv_store", None without
        one), as `sluice run --json` prints it."""
        result: dict[str, Any] = json.loads(self._engine.observations())
        return result

    def stats(self) -> dict[str, int]:
        """Counts of tokens and steps since the engine was made; times in nanoseconds."""
        return self._engine.stats()

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json suggests."""
        return SamplingParams.from_core(self._engine.default_params())

    def write_timeline(self) -> None:
        """Writes the spans of all streams so far to the file of the option timeline_path."""
        self._engine.write_timeline()

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request, prompt and answer together."""
        return self._engine.max_model_len

    @property
    def kv_offload(self) -> str:
        """Where KV lives: "off" (on the device), "chunked" or "layerwise" (in host memory)."""
        return self._engine.kv_offload

    @property
    def notes(self) -> list[str]:
        """Automatic choices such as sizes, one line each."""
        return self._engine.notes()

    @property
    def warnings(self) -> list[str]:
        """What was ignored or may change answers, one line each."""
        return self._engine.warnings()

    def __repr__(self) -> str:
        return f"LLM(model={self._model!r}, max_model_len={self.max_model_len}, kv_offload={self.kv_offload!r})"

    def _params(self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
                ) -> list[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        params = [given] * num_prompts if isinstance(given, SamplingParams) else list(given)
        if len(params) != num_prompts:
            raise InvalidArgumentError(f"{num_prompts} prompts with {len(params)} sampling parameters; give one for "
                                       "each")
        for one in params:
            if not isinstance(one, SamplingParams):
                raise TypeError(f"sampling_params are SamplingParams, not {type(one).__name__}")
        return params

    def _read_variables(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Without those that the template does not read. What a conversation sets by itself stays: it is refused."""
        known = {*self._engine.chat_variables(), "messages", "tools", "add_generation_prompt"}
        unread = sorted(set(given) - known) if self.can_chat else []
        if unread:
            warnings.warn(f"chat_template_kwargs has {', '.join(unread)}, which the model's chat template does not "
                          "read; ignored", stacklevel=4)
        return {name: value for name, value in given.items() if name not in unread}

    def _to_core(self, prompt: Prompt, params: SamplingParams) -> tuple[Any, dict[str, Any]]:
        """The prompt and the parameters as the module takes them."""
        return to_core(prompt, params, self.max_model_len, self.tokenize)

    def _run(self, prompts: list[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None,
             use_tqdm: bool | Callable[..., Any]) -> list[RequestOutput]:
        params = self._params(sampling_params, len(prompts))
        asked = [Asked("", prompt.text, one) for prompt, one in zip(prompts, params, strict=True)]
        inputs = [self._to_core(prompt, one) for prompt, one in zip(prompts, params, strict=True)]
        with _Bar(use_tqdm, len(prompts)) as bar:
            for one, (_, settings) in zip(asked, inputs, strict=True):
                one.queue(settings)
            outputs = self._engine.generate([i for i, _ in inputs], [p for _, p in inputs], bar.on_progress)
        with self._lock:
            self._cancel_closed()
        for output, one in zip(outputs, asked, strict=True):
            one.request_id = str(output.request_id)
        return [to_request_output(output, one, self._decode_one) for output, one in zip(outputs, asked, strict=True)]

    def _add(self, prompt: Prompt, asked: Asked) -> int:
        # The lock keeps a step of another thread from an output for a stream that is not known yet.
        core_prompt, core_params = self._to_core(prompt, asked.params)
        with self._lock:
            asked.queue(core_params)
            request_id = self._engine.add_request(core_prompt, core_params)
            self._streams[request_id] = deque()
        return request_id

    def _next_output(self, request_id: int) -> "_core.Output | None":
        """What another stream's step gave, else one step. None: nothing new for this request."""
        with self._lock:
            self._cancel_closed()
            if not self._streams[request_id]:
                for output in self._engine.step():
                    if output.request_id in self._streams:
                        self._streams[output.request_id].append(output)
            waiting = self._streams[request_id]
            return waiting.popleft() if waiting else None

    def _flush(self) -> None:
        """Takes the last outputs of cancelled streams. The lock is held."""
        self._cancel_closed()
        while not self._streams and self._engine.has_unfinished():
            self._engine.step()

    def _remove(self, request_id: int) -> None:
        with self._lock:
            del self._streams[request_id]
            self._closed.append(request_id)
            # The collector, a signal handler or a progress bar may close a stream in the middle of a call of this
            # thread: the next call cancels its request.
            try:
                self._cancel_closed()
            except DeviceError:
                raise
            except RuntimeError:  # within another call
                pass

    def _cancel_closed(self) -> None:
        """Cancels the requests of streams that ended. The lock is held. Raises RuntimeError within another call."""
        while self._closed:
            request_id = self._closed.pop()  # first, since the collector may close another stream at any moment
            try:
                self._engine.cancel_request(request_id)  # no effect on one that has ended
            except RuntimeError:
                self._closed.append(request_id)
                raise


class _Bar:
    """A tqdm bar over prompts, as vLLM has it; nothing without tqdm."""

    def __init__(self, use_tqdm: bool | Callable[..., Any], num_prompts: int) -> None:
        make: Any = use_tqdm if callable(use_tqdm) else None
        if use_tqdm is True and importlib.util.find_spec("tqdm"):
            make = importlib.import_module("tqdm.auto").tqdm
        self._bar: Any = None
        if make is not None:
            self._bar = make(total=num_prompts, desc="Processed prompts", dynamic_ncols=True)
        self._num_prompts = num_prompts
        self._start = time.perf_counter()

    @property
    def on_progress(self) -> Callable[[int, int, int, int], None] | None:
        return None if self._bar is None else self._show

    def _show(self, num_finished: int, prompt_done: int, prompt_total: int, num_generated: int) -> None:
        seconds = max(time.perf_counter() - self._start, 1e-9)
        self._bar.set_postfix_str(f"est. speed input: {prompt_done / seconds:.2f} toks/s, "
                                  f"output: {num_generated / seconds:.2f} toks/s", refresh=False)
        self._bar.update(num_finished - self._bar.n)
        self._bar.refresh()

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._bar is None:
            return
        if kind is None:
            self._bar.update(self._num_prompts - self._bar.n)
        self._bar.close()


def inspect(model: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """A model's shape, its files and its memory plan under LLM's options, without loading it.

    The dict of `sluice inspect --json`: "model", "files" and "plan", whose "fits" says whether LLM would load and whose
    "remedy" what to change. Raises sluice.ModelError and sluice.UnsupportedError for a configuration that cannot be
    used; TypeError for unknown options.
    """
    result: dict[str, Any] = json.loads(_core.inspect({"model": os.fspath(model), **without_neutral(options)}))
    return result


def _decode_one(engine: "_core.Engine", token_id: int) -> str:
    return engine.decode([token_id])


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=dict)
