"""lm-eval's model `sluice`: log-likelihoods, rolling ones, answers and chats, computed in this process.

    python -m sluice.lm_eval run --model sluice --model_args model=models/needle,kv_offload=auto --tasks lambada_openai

registers the model and then is lm-eval's own command line. A program that calls lm-eval imports this module. It needs
the package lm-eval (pip install 'sluice-llm[lm-eval]').
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.instance import Instance  # type: ignore[import-untyped,unused-ignore]
from lm_eval.api.model import TemplateLM  # type: ignore[import-untyped,unused-ignore]
from lm_eval.api.registry import register_model  # type: ignore[import-untyped,unused-ignore]
from lm_eval.models.utils import (  # type: ignore[import-untyped,unused-ignore]
    handle_stop_sequences, maybe_truncate, normalize_gen_kwargs)
from lm_eval.utils import (  # type: ignore[import-untyped,unused-ignore]
    get_rolling_token_windows, make_disjoint_window, simple_parse_args_string)

from sluice import LLM, SamplingParams, _core

_Scored = tuple[Any, list[int], list[int]]  # key of the cache, context, continuation


@register_model("sluice")  # type: ignore[misc,untyped-decorator,unused-ignore]
class SluiceLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """A model for lm-eval. Requests of one call run in batches of max_num_seqs, so batch_size has no effect.

    model or pretrained: a Hugging Face model directory, or ORG/NAME of its cache. max_length: context and answer, at
    most max_model_len.
    max_gen_toks: of an answer, unless the task says. enable_thinking and chat_template_args: for the chat template.
    options: those of sluice.LLM.
    """

    def __init__(self, model: str | None = None, pretrained: str | None = None, max_length: int | None = None,
                 max_gen_toks: int = 256, batch_size: int | str = "auto", max_batch_size: int | None = None,
                 enable_thinking: bool | None = None, chat_template_args: dict[str, Any] | None = None,
                 **options: Any) -> None:
        super().__init__()
        directory = model or pretrained
        if directory is None:
            raise ValueError("the model sluice needs model=DIR, a Hugging Face model directory")
        self._llm = LLM(directory, **options)
        self._directory = Path(_core.find_model(directory))
        self._max_length = min(max_length or self._llm.max_model_len, self._llm.max_model_len)
        self._max_gen_toks = max_gen_toks
        self._template_kwargs = dict(chat_template_args or {})
        if enable_thinking is not None:
            self._template_kwargs["enable_thinking"] = enable_thinking
        self._config = self._read_config()

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
                            ) -> "SluiceLM":
        """What model_args say counts. lm-eval's own default of --device, cuda:0, leaves the choice to the engine."""
        outer = {name: value for name, value in (additional_config or {}).items() if value is not None}
        if outer.get("device") == "cuda:0":
            del outer["device"]
        return cls(**{**outer, **arg_dict})

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> "SluiceLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # What lm-eval asks of a tokenizer

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Special tokens may be written out, as chat templates do; a BOS that is there is not added again."""
        return self._llm.tokenize(string, add_special_tokens=add_special_tokens is not False, parse_special=True)

    @property
    def eot_token_id(self) -> int:
        return self._special_id("eos_token")

    @property
    def prefix_token_id(self) -> int:
        return self._special_id("bos_token" if self._config.get("bos_token") else "eos_token")

    @property
    def max_length(self) -> int:
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        return self._max_gen_toks

    @property
    def tokenizer_name(self) -> str:
        return str(self._directory).replace("/", "__")

    def chat_template(self, chat_template: bool | str = False) -> str:
        """The text of the template, by which lm-eval names its caches."""
        text = self._config.get("chat_template", "")
        return text if isinstance(text, str) else json.dumps(text)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return self._llm.detokenize(self._llm.chat_prompt(
            chat_history, add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt, chat_template_kwargs=self._template_kwargs))

    # Requests

    def _loglikelihood_tokens(self, requests: list[_Scored], disable_tqdm: bool = False, **_unused: Any
                              ) -> list[tuple[float, bool]]:
        longest = self._max_length - 1  # the engine needs room for one token
        texts = [(context + continuation)[-longest:] for _, context, continuation in requests]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=1)
        outputs = self._llm.generate(texts, params, use_tqdm=not disable_tqdm) if texts else []
        results = []
        for (key, _, continuation), text, output in zip(requests, texts, outputs, strict=True):
            assert output.prompt_logprobs is not None
            first = max(0, len(text) - len(continuation))
            own = [place[token] for place, token in zip(output.prompt_logprobs[first:], text[first:], strict=True)
                   if place]
            result = sum(one.logprob for one in own), all(one.rank == 1 for one in own)
            if key is not None:
                self.cache_hook.add_partial("loglikelihood", key, result)
            results.append(result)
        return results

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        windows: list[_Scored] = []
        counts = []
        for (text,) in (request.args for request in requests):
            # Each window has one token of context, and room for one that is generated.
            mine = [make_disjoint_window(window) for window in get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self._max_length - 2,
                context_len=1)]
            windows += [(None, context, continuation) for context, continuation in mine]
            counts.append(len(mine))
        scores = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        results = []
        for request, count in zip(requests, counts, strict=True):
            results.append(sum(next(scores)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, results[-1])
        return results

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        prompts: list[Sequence[int]] = []
        params = []
        for context, asked in (request.args for request in requests):
            until, ids, one = self._answer_params(context, asked)
            prompts.append(ids)
            params.append(SamplingParams(stop=until, skip_special_tokens=False, **one))
        outputs = self._llm.generate(prompts, params, use_tqdm=not disable_tqdm) if prompts else []
        for request, output in zip(requests, outputs, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, output.outputs[0].text)
        return [output.outputs[0].text for output in outputs]

    def _answer_params(self, context: str, asked: dict[str, Any]) -> tuple[list[str], list[int], dict[str, Any]]:
        """Stop strings, the prompt cut to its room, and the other sampling parameters."""
        given = normalize_gen_kwargs(asked, default_max_gen_toks=self._max_gen_toks)
        eos = self._llm.detokenize([self.eot_token_id])
        until = [text for text in handle_stop_sequences(given.pop("until", None), eos=eos) if text]
        given.pop("do_sample", None)
        ids, max_tokens = maybe_truncate(self.tok_encode(context), max_gen_toks=int(given.pop("max_gen_toks")),
                                         max_model_len=self._max_length)
        return until, ids, {**given, "max_tokens": max_tokens}

    def _read_config(self) -> dict[str, Any]:
        path = self._directory / "tokenizer_config.json"
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        template = self._directory / "chat_template.jinja"
        if template.exists():
            config["chat_template"] = template.read_text(encoding="utf-8")
        return config

    def _special_id(self, name: str) -> int:
        token = self._config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        ids = self._llm.tokenize(content or "", add_special_tokens=False, parse_special=True)
        if len(ids) != 1:
            raise ValueError(f"tokenizer_config.json has no {name} that is one token, which lm-eval needs")
        return ids[0]


def main() -> None:
    """lm-eval's own command line, with the model registered."""
    from lm_eval.__main__ import cli_evaluate  # type: ignore[import-untyped,unused-ignore]

    cli_evaluate()


if __name__ == "__main__":
    main()
