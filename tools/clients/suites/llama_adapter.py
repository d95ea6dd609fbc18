"""pytest plugin: llama.cpp's server tests ask `sluice serve`.

Their class of a server is patched, before their files are imported:
- start() starts `sluice serve` with MODEL and what their options mean here, or skips the test with the reason;
- requests in llama-server's own form, which Sluice does not have (/completion, /tokenize, /detokenize), and defaults
  that llama-server has as options (temperature, seed, number of tokens) are put into the forms that Sluice reads;
- texts and numbers of tokens that only their model gives are not compared (match_regex, COUNTS);
- what Sluice says in another form is put into theirs, so that the rest of a test counts: OpenAI's "" of a first chunk
  becomes null, a fingerprint gets their `b`, __verbose has the prompt of /apply-template.
"""

import os
import pathlib
import sys
import tempfile
import types
import uuid

import openai
import pytest

sys.modules["wget"] = types.ModuleType("wget")
import utils  # of the suite, after what it imports

from checks import Server

KEY = "SLUICE_API_KEY"
TEMPLATE = pathlib.Path(__file__).resolve().parents[3] / "tests/golden/tokenizer/templates/qwen2.5.jinja"
# Names that their requests give; llama-server answers whatever the name is.
NAMES = ["davinci-002", "gpt-3.5-turbo", "gpt-3.5-turbo-instruct", "gpt-4.1", "codellama70b", "test"]
OUT_OF_SCOPE = {
    "server_embeddings": "embeddings", "server_reranking": "reranking", "pooling": "embeddings",
    "lora_files": "LoRA adapters", "slot_save_path": "slots saved to files", "cache_ram": "slots and their options",
    "model_draft": "draft models in GGUF", "spec_type": "llama-server's kinds of speculation",
    "enable_ctx_shift": "a context that is shifted", "sleep_idle_seconds": "a server that sleeps",
    "mmproj_url": "images", "media_path": "images", "ui_mcp_proxy": "a proxy for MCP", "server_tools": "tools that "
    "the server runs", "mcp_servers_config": "MCP servers", "mcp_servers_json": "MCP servers",
    "gcp_compat": "Google's form of requests", "models_dir": "several models", "models_preset": "several models",
    "backend_sampling": "llama-server's backend sampling", "model_tags": "tags of models",
    "model_url": "files that the server downloads",
}
OTHER_MODELS = {"tinygemma3": "images", "tinyllama-infill": "infill", "bert-bge-small": "embeddings",
                "jina-reranker": "reranking", None: "several models"}
# Parameters of their tests that are true of their model's tokenizer alone.
COUNTS = {"n_prompt"}
# Members of a request in llama-server's own form; all others have the same name here.
RENAMED = {"n_predict": "max_tokens", "n_probs": "logprobs", "return_tokens": "return_token_ids"}


class AnyCount:
    def __eq__(self, other):
        return isinstance(other, int) and other > 0


def skip(reason):
    pytest.skip(f"out of scope: {reason}")


def check_scope(server):
    for option, what in OUT_OF_SCOPE.items():
        if getattr(server, option, None):
            skip(what)
    if server.model_hf_repo is None:
        skip("several models")
    for name, what in OTHER_MODELS.items():
        if name and (server.model_alias or "").startswith(name):
            skip(what)
    if "test-model-stories260K" not in server.model_hf_repo:
        skip("files of their models")
    if "," in server.server_host:
        skip("several addresses")
    if server.chat_template in ("llama3", "command-r"):
        skip("templates that llama-server has built in")


def template_options(server):
    if server.chat_template_file:
        return ["--chat-template", server.chat_template_file]
    if server.chat_template in (None, "chatml"):  # which MODEL has, too, but this one reads tools
        return ["--chat-template", str(TEMPLATE)]
    file = pathlib.Path(tempfile.mkdtemp(prefix="sluice-")) / "template.jinja"
    file.write_text(server.chat_template, encoding="utf-8")
    return ["--chat-template", str(file)]


def start(self, timeout_seconds=None):
    del timeout_seconds
    check_scope(self)
    slots = self.n_slots or 1
    self.slot_context = min((self.n_ctx or 4096) // (1 if self.kv_unified else slots), 32768)
    names = ",".join([self.model_alias, *NAMES])
    options = ["--max-model-len", str(self.slot_context), "--max-num-seqs", str(slots), "--block-size", "16",
               "--served-model-name", names, *template_options(self), *(["--no-ui"] if self.no_ui else [])]
    os.environ.pop(KEY, None)
    if self.api_key:
        os.environ[KEY] = self.api_key
    # A test may start a server again at the URL that it has.
    self.sluice = Server(os.environ["MODEL"], *options, port=getattr(self, "sluice", None) and self.server_port or 0)
    self.process, self.server_port = self.sluice.process, self.sluice.port
    utils.server_instances.add(self)


def stop(self):
    utils.server_instances.discard(self)
    if self.process:
        self.sluice.__exit__()
        self.process = None


def biases(given):
    """{id: bias} of that or of [[id, bias], ...]."""
    return given if isinstance(given, dict) else {str(token): bias for token, bias in given}


def prompts_of(prompt):
    """The texts and lists of ids in what may be a list of them, and whether it was one."""
    def text_of(one):
        return one["prompt_string"] if isinstance(one, dict) and len(one) == 1 else one
    if isinstance(prompt, list) and not all(isinstance(one, int) for one in prompt):
        return [text_of(one) for one in prompt], True
    return [text_of(prompt)], False


def native_completion(server, data, prompt):
    """The body for /v1/completions."""
    body = {RENAMED.get(name, name): value for name, value in data.items() if name not in ("cache_prompt", "id_slot")}
    body |= {"prompt": prompt, "return_token_ids": True}
    if not data.get("cache_prompt", True):
        body["cache_salt"] = uuid.uuid4().hex
    if "logit_bias" in body:
        body["logit_bias"] = biases(body["logit_bias"])
    if body.get("max_tokens", -1) == -1:
        body["max_tokens"] = server.n_predict if (server.n_predict or -1) > 0 else server.slot_context
    return with_defaults(server, body)


def native_answer(data, answer):
    """What llama-server says of one prompt or one event; absent members are those that Sluice has no value for."""
    choice = answer["choices"][0] if answer["choices"] else {"text": ""}
    reason, usage = choice.get("finish_reason"), answer.get("usage") or {}
    native = {"content": choice["text"], "stop": reason is not None, "truncated": False, "model": answer["model"],
              "has_new_line": "\n" in choice["text"], "tokens_predicted": usage.get("completion_tokens"),
              "tokens": choice.get("token_ids") or []}
    if reason:
        native["stop_type"] = "limit" if reason == "length" else "word" if choice.get("stop_reason") else "eos"
    if not data.get("stream") and not data.get("return_tokens"):
        native["tokens"] = []
    native |= {name: answer[name] for name in ("timings", "error") if name in answer}
    native.get("timings", {}).pop("cache", None)  # which theirs do not have: where the tokens of cache_n were found
    return native


def with_defaults(server, body):
    return {"temperature": server.temperature, "seed": server.seed} | body


def result_of(status, body, headers=None):
    result = utils.ServerResponse()
    result.status_code, result.body, result.headers = status, body, headers or {}
    return result


plain_request, plain_stream = utils.ServerProcess.make_request, utils.ServerProcess.make_stream_request


def complete(self, data, **kwargs):
    prompts, is_list = prompts_of(data.get("prompt"))
    results = [plain_request(self, "POST", "/v1/completions", native_completion(self, data, prompt), **kwargs)
               for prompt in prompts]
    bad = [result for result in results if result.status_code != 200]
    if bad:
        return bad[0]
    answers = [native_answer(data, result.body) for result in results]
    return result_of(200, answers if is_list else answers[0], results[0].headers)


def tokenize(self, data, **kwargs):
    body = {"prompt": data["content"], "add_special_tokens": data.get("add_special", False),
            "return_token_strs": data.get("with_pieces", False)}
    result = plain_request(self, "POST", "/tokenize", body, **kwargs)
    if result.status_code == 200 and data.get("with_pieces"):
        pairs = zip(result.body["tokens"], result.body["token_strs"])
        result.body["tokens"] = [{"id": token, "piece": piece} for token, piece in pairs]
    return result


def detokenize(self, data, **kwargs):
    result = plain_request(self, "POST", "/detokenize", data, **kwargs)
    if result.status_code == 200:
        result.body["content"] = result.body["prompt"]
    return result


NATIVE = {"/completion": complete, "/completions": complete, "/tokenize": tokenize, "/detokenize": detokenize}


def is_chat(path):
    return path.endswith("/chat/completions")


def make_request(self, method, path, data=None, headers=None, timeout=utils.DEFAULT_REQUEST_TIMEOUT, host=None):
    kwargs = {"headers": headers, "timeout": timeout, "host": host}
    if path in NATIVE and method == "POST" and isinstance(data, dict):
        return NATIVE[path](self, data, **kwargs)
    if is_chat(path):
        data = chat_defaults(self, data)
    if path == "/apply-template" and self.reasoning:
        data = data | {"chat_template_kwargs": {"enable_thinking": self.reasoning != "off"}}
    result = plain_request(self, method, path, data, **kwargs)
    if isinstance(result.body, dict) and "system_fingerprint" in result.body:
        result.body["system_fingerprint"] = build_name(result.body["system_fingerprint"])
        if is_chat(path) and (self.debug or data.get("verbose")):
            prompt = plain_request(self, "POST", "/apply-template", data, **kwargs).body["prompt"]
            result.body["__verbose"] = {"prompt": prompt}
    return result


def build_name(fingerprint):
    """Theirs begin so."""
    return f"b-{fingerprint}"


def with_null(chunk):
    """A chunk of a chat; OpenAI's first one has a text that is empty."""
    chunk["system_fingerprint"] = build_name(chunk["system_fingerprint"])
    delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
    if delta.get("content") == "":
        delta["content"] = None
    return chunk


def chat_defaults(server, data):
    """Their `model` may be null, which Sluice refuses."""
    limit = {} if {"max_tokens", "max_completion_tokens"} & set(data) or not server.n_predict else {
        "max_tokens": server.n_predict}
    return with_defaults(server, limit | {name: value for name, value in data.items() if value is not None
                                          or name != "model"})


def native_events(server, data, **kwargs):
    """Sluice's last event with a text has no timings: they come with the usage, after it."""
    (prompt,), _ = prompts_of(data["prompt"])
    body = native_completion(server, data, prompt) | {"stream_options": {"include_usage": True}}
    last = None
    for event in plain_stream(server, "POST", "/v1/completions", body, **kwargs):
        if not event["choices"]:
            yield native_answer(data, last | event | {"choices": last["choices"]})
        elif event["choices"][0]["finish_reason"]:
            last = event
        elif event["choices"][0]["text"]:  # the first event has none
            yield native_answer(data, event)


def make_stream_request(self, method, path, data=None, headers=None, host=None):
    kwargs = {"headers": headers, "host": host}
    if path in ("/completion", "/completions"):
        yield from native_events(self, data, **kwargs)
    else:
        chat = is_chat(path)
        events = plain_stream(self, method, path, chat_defaults(self, data) if chat else data, **kwargs)
        yield from map(with_null, events) if chat else events


def of_library(create):
    """The same of what OpenAI's client gives, which asks the server by itself."""
    def with_null_content(chunks):
        for chunk in chunks:
            if chunk.choices and chunk.choices[0].delta.content == "":
                chunk.choices[0].delta.content = None
            chunk.system_fingerprint = build_name(chunk.system_fingerprint)
            yield chunk

    def created(self, **kwargs):
        answer = create(self, **kwargs)
        if not kwargs.get("stream"):
            answer.system_fingerprint = build_name(answer.system_fingerprint)
        return with_null_content(answer) if kwargs.get("stream") and "messages" in kwargs else answer
    return created


def match_regex(regex, text):
    """A text of their model says nothing of another one."""
    del regex
    return isinstance(text, str)


def pytest_collection_modifyitems(items):
    for item in items:
        parameters = getattr(item, "callspec", None) and item.callspec.params or {}
        for name in COUNTS & set(parameters):
            parameters[name] = AnyCount()


def pytest_configure():
    server = utils.ServerProcess
    server.start, server.stop = start, stop
    server.make_request, server.make_stream_request = make_request, make_stream_request
    utils.ServerPreset.load_all = staticmethod(lambda: None)
    utils.match_regex = match_regex
    for resource in (openai.resources.chat.Completions, openai.resources.Completions):
        resource.create = of_library(resource.create)
    utils.download_file = lambda *_: skip("files of their models")
