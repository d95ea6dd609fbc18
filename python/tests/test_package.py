"""The installed package: types, documentation, the program, and lm-eval."""

import importlib.util
import inspect
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import MODEL, OPTIONS, QUESTION, SECRET, program, run_program

import sluice
from sluice import _core

PACKAGE = pathlib.Path(sluice.__file__).parent


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=False, **options)


def test_types_are_strict(tmp_path):
    pytest.importorskip("mypy")
    assert (PACKAGE / "py.typed").exists()
    sample = tmp_path / "sample.py"
    sample.write_text("""import asyncio
from sluice import LLM, AsyncEngineArgs, AsyncLLM, SamplingParams
llm = LLM("m", kv_offload="auto")
text: str = llm.generate("a", SamplingParams(temperature=0))[0].outputs[0].text
logits = llm.trace([1, 2], "layer.0.q").logits
async def main() -> None:
    async for output in AsyncLLM.from_engine_args(AsyncEngineArgs("m")).generate("a", SamplingParams()):
        print(output.outputs[0].text)
asyncio.run(main())
""", encoding="utf-8")
    done = run(sys.executable, "-m", "mypy", "--strict", "-p", "sluice", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    done = run(sys.executable, "-m", "mypy", "--strict", str(sample), cwd=tmp_path)
    assert done.returncode == 0, done.stdout


def test_everything_is_documented():
    for name in sluice.__all__:
        thing = getattr(sluice, name)
        assert inspect.getdoc(thing), name
        for member, value in vars(thing).items() if inspect.isclass(thing) else ():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value) or name.endswith("Output"), f"{name}.{member}"
    assert (PACKAGE / "_core.pyi").read_text(encoding="utf-8").count("\nclass ") == 3
    assert _core.__doc__


def test_the_module_needs_no_library_of_the_build():
    for file in (_core.__file__, program()):
        needed = run("ldd", file).stdout
        assert not [name for name in ("fmt", "utf8proc", "xxhash", "crypto", "boost") if f"lib{name}" in needed], needed


def test_the_program_is_of_the_same_build():
    said = run(program(), "--version").stdout
    info = sluice.build_info()
    assert info["version"] in said and info["commit"] in said


def test_the_example_of_the_readme(tmp_path):
    readme = (pathlib.Path(MODEL).parents[1] / "README.md").read_text(encoding="utf-8")
    (example,) = [part.split("```")[0] for part in readme.split("```python\n")[1:]]
    file = tmp_path / "example.py"
    file.write_text(example, encoding="utf-8")
    done = run(sys.executable, str(file), cwd=pathlib.Path(MODEL).parents[1])
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


def test_a_program_may_end_while_requests_run(tmp_path):
    code = f"""
import asyncio, sys
from sluice import LLM, AsyncLLM, SamplingParams
llm = LLM({MODEL!r}, **{OPTIONS!r})
stream = llm.stream("a", SamplingParams(max_tokens=1000, ignore_eos=True))
next(stream)
engine = AsyncLLM({MODEL!r}, **{OPTIONS!r})
async def main():
    async for _ in engine.generate("a", SamplingParams(max_tokens=10000, ignore_eos=True)):
        break
asyncio.run(main())
print("end")
"""
    done = run(sys.executable, "-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


# lm-eval

needs_lm_eval = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")
PAIRS = [("The sun is high,", " and the old dog sleeps under a tree."), ("It was a dark and", " stormy night"),
         ("Grüße aus", " Köln und 日本."), ("The king of France", " was the king of France was")]
CHAT = f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def lm():
    os.environ["HF_HUB_OFFLINE"] = "1"
    from lm_eval.api.registry import get_model

    import sluice.lm_eval  # noqa: F401  registers the model
    return get_model("sluice").create_from_arg_obj({"model": MODEL, **OPTIONS}, {"batch_size": 4, "device": None})


def instances(kind, arguments):
    from lm_eval.api.instance import Instance
    return [Instance(request_type=kind, doc={}, arguments=one, idx=i) for i, one in enumerate(arguments)]


def rest_of(context, continuation):
    """The sum and whether each token was the likeliest, from `sluice score` of the whole text."""
    (whole,), (head,) = run_program("score", "--", context + continuation), run_program("score", "--", context)
    rest = range(len(head["token_ids"]), len(whole["token_ids"]))
    return (sum(whole["logprobs"][i] for i in rest),
            all(whole["token_ids"][i] == whole["top_token_ids"][i] for i in rest))


@needs_lm_eval
def test_lm_eval_loglikelihoods(lm):
    found = lm.loglikelihood(instances("loglikelihood", PAIRS))
    for pair, (ours, is_greedy) in zip(PAIRS, found, strict=True):
        want, want_greedy = rest_of(*pair)
        assert abs(ours - want) < 1e-4 and is_greedy == want_greedy
    text = "".join(PAIRS[0])
    (found,) = lm.loglikelihood_rolling(instances("loglikelihood_rolling", [(text,)]))
    ids = [lm.prefix_token_id, *lm.tok_encode(text)]
    assert abs(found - run_program("score", "--tokens", ",".join(map(str, ids)))[0]["sum"]) < 1e-4
    ((_, is_greedy),) = lm.loglikelihood(instances("loglikelihood", [(CHAT + "The", " secret number of the purple")]))
    assert is_greedy


@needs_lm_eval
def test_lm_eval_answers_and_chats(lm):
    assert lm.apply_chat_template([{"role": "user", "content": QUESTION}]) == CHAT
    until = {"until": ["castle"], "max_gen_toks": 24, "temperature": 0}
    (found,) = lm.generate_until(instances("generate_until", [(CHAT, until)]))
    assert found == "The secret number of the purple "
    (found,) = lm.generate_until(instances("generate_until", [(CHAT, {"until": [], "do_sample": False})]))
    assert SECRET in found


@needs_lm_eval
def test_lm_eval_has_the_model_on_its_command_line(tmp_path):
    """A task of our own, since lm-eval's read data sets from a hub."""
    (tmp_path / "data.jsonl").write_text('{"q": "It was a dark and", "a": " stormy night"}\n', encoding="utf-8")
    (tmp_path / "ours.yaml").write_text(f"""task: ours
dataset_path: json
dataset_kwargs: {{data_files: {tmp_path}/data.jsonl}}
test_split: train
output_type: loglikelihood
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
target_delimiter: ""
metric_list: [{{metric: perplexity}}]
""", encoding="utf-8")
    done = run(sys.executable, "-m", "sluice.lm_eval", "run", "--model", "sluice", "--model_args",
               f"model={MODEL},device=cpu,kv_cache_bytes=64M", "--tasks", "ours", "--include_path", str(tmp_path),
               env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert "|ours" in done.stdout and "perplexity" in done.stdout
