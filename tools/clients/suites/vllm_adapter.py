"""pytest plugin: vLLM's tests of its OpenAI and Anthropic server ask `sluice serve`.

- `tests.utils` is a module of this file, whose RemoteOpenAIServer starts `sluice serve` with SUITE_MODEL, what vLLM's
  options mean here, and a chat template of the model's family; an option of something else skips the test.
- vllm and torch are not installed: what the tests import of them is a Mock. A test that asks no server judges vLLM's
  own classes, so it is not run.
- What Sluice leaves out where vLLM writes null is null for the tests, so that the rest of them counts (NULLS).
"""

import importlib.abc
import importlib.machinery
import inspect
import os
import pathlib
import sys
import types
from unittest import mock

import anthropic
import openai
import pytest
import transformers

from checks import Server

MODEL = os.environ["SUITE_MODEL"]
TEMPLATES = pathlib.Path(__file__).resolve().parents[3] / "tests/golden/tokenizer/templates"
KEY = "SLUICE_API_KEY"
# Of SUITE_MODEL; and where vLLM's tests name none or give answers no limit, so that they end soon on a CPU.
MAX_CONTEXT, SHORT_CONTEXT = 8192, 1024
WITHOUT_LIMIT = {"Qwen/Qwen3-8B", "Qwen/Qwen3-1.7B"}
VOCABULARY = 49152
NULLS = ("prompt_logprobs", "prompt_token_ids", "token_ids", "kv_transfer_params")
STUBS = ("vllm", "torch", "PIL", "fastapi", "pybase64", "tests.conftest")
# Which the model or the request decides here, or which change nothing that a client sees.
IGNORED = {"--dtype": 1, "--enforce-eager": 0, "--enable-prompt-tokens-details": 0, "--seed": 1,
           "--trust-remote-code": 0, "--enable-auto-tool-choice": 0, "--tool-call-parser": 1, "--reasoning-parser": 1,
           "--max-logprobs": 1, "--no-enable-prefix-caching": 0, "--enable-prefix-caching": 0,
           "--enable-chunked-prefill": 0, "--gpu-memory-utilization": 1, "--enable-tokenizer-info-endpoint": 0,
           "--enable-server-load-tracking": 0, "--disable-log-stats": 0, "--max-num-batched-tokens": 1,
           "--default-chat-template-kwargs": 1, "--disable-log-requests": 0, "--generation-config": 1,
           "--exclude-tools-when-tool-choice-none": 0, "--structured-outputs-config.backend": 1,
           "--enable-per-request-metrics": 0, "--enable-lora": 0, "--lora-modules": 1, "--max-lora-rank": 1,
           "--max-cpu-loras": 1, "--enable-request-id-headers": 0}
TAKEN = {"--max-model-len", "--max-num-seqs", "--served-model-name", "--uds", "--chat-template", "--api-key"}
# By what the name of a model has in it; all write chats with <|im_start|>, as SUITE_MODEL does.
FAMILIES = {"SmolLM2": None, "Qwen3": "qwen3.jinja", "Qwen2": "qwen2.5.jinja", "Hermes": "hermes3-tools.jinja",
            "Llama": "llama3.1.jinja"}


class Stub(types.ModuleType):
    """A module that has every name."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = mock.MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        del path, target
        is_stub = any(name == stub or name.startswith(f"{stub}.") for stub in STUBS)
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_stub else None

    def create_module(self, spec):
        return Stub(spec.name)

    def exec_module(self, module):
        pass


def options_of(model, arguments):
    """sluice's, of vLLM's; skips the test for one that is about something else."""
    options, words = {}, list(arguments)
    while words:
        name, _, value = words.pop(0).partition("=")
        name = name.replace("_", "-")
        if name in TAKEN:
            options[name] = value or words.pop(0)
        elif name in IGNORED:
            if IGNORED[name] and not value:
                words.pop(0)
        else:
            pytest.skip(f"out of scope: vLLM's option {name}")
    limit = SHORT_CONTEXT if model in WITHOUT_LIMIT else MAX_CONTEXT
    options["--max-model-len"] = str(min(int(options.get("--max-model-len", SHORT_CONTEXT)), limit))
    options |= {"--served-model-name": options.get("--served-model-name", model), "--block-size": "16"}
    template = next((file for family, file in FAMILIES.items() if family.lower() in model.lower()), None)
    if template and not pathlib.Path(options.get("--chat-template", "")).is_file():
        options["--chat-template"] = str(TEMPLATES / template)
    return options


class RemoteOpenAIServer:
    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False
    has_details = False  # of usage, which vLLM has on request

    def __init__(self, model, vllm_serve_args, *, env_dict=None, seed=0, auto_port=True, max_wait_seconds=None,
                 override_hf_configs=None):
        del env_dict, seed, auto_port, max_wait_seconds
        if override_hf_configs:
            pytest.skip("out of scope: other settings for a model than its own")
        options = options_of(model, vllm_serve_args)
        RemoteOpenAIServer.has_details = "--enable-prompt-tokens-details" in vllm_serve_args
        os.environ.pop(KEY, None)
        if key := options.pop("--api-key", None):
            os.environ[KEY] = key
        self.uds = options.get("--uds")
        self.server = Server(MODEL, *(word for option in options.items() for word in option))
        self.host, self.port = "127.0.0.1", self.server.port
        self.proc = self.server.process

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.server.__exit__(*error)

    @property
    def url_root(self):
        return f"http://{self.uds.split('/')[-1]}" if self.uds else self.server.url

    def url_for(self, *parts):
        return f"{self.url_root}/{'/'.join(part.strip('/') for part in parts if part)}"

    def get_client(self, **kwargs):
        return openai.OpenAI(**self.openai_arguments(kwargs))

    def get_async_client(self, **kwargs):
        return openai.AsyncOpenAI(**self.openai_arguments(kwargs))

    def openai_arguments(self, kwargs):
        return {"base_url": self.url_for("v1"), "api_key": self.DUMMY_API_KEY, "max_retries": 0, "timeout": 60} | kwargs

    def get_client_anthropic(self, **kwargs):
        return anthropic.Anthropic(**self.openai_arguments({"base_url": self.url_root} | kwargs))

    def get_async_client_anthropic(self, **kwargs):
        return anthropic.AsyncAnthropic(**self.openai_arguments({"base_url": self.url_root} | kwargs))


def tokenizer(*_, **__):
    return TOKENIZER_OF_HF(MODEL)


def asks_server(item):
    fixtures = getattr(item, "fixturenames", [])
    return "RemoteOpenAIServer" in item.function.__code__.co_names or "client" in fixtures or any(
        name.endswith("server") and name != "local_asset_server" or name.startswith("server") for name in fixtures)


def pytest_collection_modifyitems(config, items):
    for item in items:
        if "lora" in item.nodeid:
            item.add_marker(pytest.mark.skip(reason="out of scope: LoRA adapters"))
    inside = [item for item in items if asks_server(item)]
    config.hook.pytest_deselected(items=[item for item in items if not asks_server(item)])
    items[:] = inside


TOKENIZER_OF_HF = transformers.AutoTokenizer.from_pretrained


def with_nulls(answer):
    """An answer of OpenAI's client, a raw one as it is; in chunks vLLM leaves the same members out."""
    if not hasattr(answer, "choices"):
        return answer
    if not RemoteOpenAIServer.has_details:
        answer.usage.prompt_tokens_details = answer.usage.completion_tokens_details = None
    for part in [answer, *(answer.choices or [])]:
        for name in NULLS:
            if not hasattr(part, name):
                setattr(part, name, None)
    return answer


def of_library(create):
    """What it gives, with nulls. It is a coroutine of the asynchronous client."""
    async def later(answer, is_stream):
        return await answer if is_stream else with_nulls(await answer)

    def created(self, **kwargs):
        answer, is_stream = create(self, **kwargs), kwargs.get("stream")
        if inspect.isawaitable(answer):
            return later(answer, is_stream)
        return answer if is_stream else with_nulls(answer)
    return created


def install():
    """Before pytest reads the suite's own conftest.py."""
    sys.meta_path.insert(0, StubFinder())
    utils = Stub("tests.utils")
    utils.RemoteOpenAIServer, utils.VLLM_PATH, utils.ROCM_EXTRA_ARGS = RemoteOpenAIServer, pathlib.Path("/none"), []
    sys.modules["tests.utils"] = utils
    transformers.AutoTokenizer.from_pretrained = tokenizer
    tokenizers, platforms, config = Stub("vllm.tokenizers"), Stub("vllm.platforms"), Stub("vllm.config")
    tokenizers.get_tokenizer = tokenizer
    platforms.current_platform.is_rocm.return_value = False
    config.ModelConfig().get_vocab_size.return_value = VOCABULARY
    for resources in (openai.resources.chat.completions, openai.resources.completions):
        for resource in (resources.Completions, resources.AsyncCompletions):
            resource.create = of_library(resource.create)
    torch = Stub("torch")
    torch.iinfo.return_value = types.SimpleNamespace(min=-(1 << 63), max=(1 << 63) - 1)
    sys.modules |= {"torch": torch, "vllm.tokenizers": tokenizers, "vllm.platforms": platforms, "vllm.config": config}


install()


@pytest.fixture(scope="session")
def local_asset_server():
    """Of images, which no test that is run asks for."""
