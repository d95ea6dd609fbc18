"""Parameters, options, errors and what the objects look like."""

import pickle
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import MODEL, OPTIONS, PROMPTS, run_program

import sluice
from sluice import LLM, SamplingParams, _core
from sluice._params import with_all_rows


def test_defaults_are_those_of_the_engine():
    ours = SamplingParams().to_core()
    for name, value in _core.sampling_defaults().items():
        assert ours[name] == value or (not ours[name] and not value), name


def test_a_row_of_the_engine_that_the_class_does_not_list_is_a_field():
    few = dataclass(with_all_rows(type("Few", (), {"__annotations__": {"n": int}, "n": 1})))
    assert (few().n, few().temperature, few(min_p=0.5).min_p, few().logit_bias) == (1, 1.0, 0.5, None)


@pytest.mark.parametrize(("keyword", "near"), [("temprature", "temperature"), ("max_token", "max_tokens"),
                                               ("stop_tokens_ids", "stop_token_ids")])
def test_unknown_parameters_name_the_nearest(keyword, near):
    with pytest.raises(TypeError, match=rf"SamplingParams\(\) got an unexpected .*'{keyword}'; did you mean '{near}'"):
        SamplingParams(**{keyword: 1})


def test_unknown_options_name_the_nearest():
    with pytest.raises(TypeError, match=r"LLM\(\) .*'max_model_length'; did you mean 'max_model_len'\?"):
        LLM(MODEL, max_model_length=100)
    with pytest.raises(TypeError, match=r"'qqqqqq'$"):
        sluice.inspect(MODEL, qqqqqq=1)


@pytest.mark.parametrize(("parameter", "value", "error"), [
    ("temperature", -1, ValueError), ("temperature", float("nan"), ValueError), ("temperature", "hot", TypeError),
    ("top_p", 0, ValueError), ("top_k", -2, ValueError), ("top_k", 2**31, ValueError), ("top_k", 2**70, ValueError),
    ("top_k", 1.5, TypeError), ("max_tokens", 0, ValueError), ("max_tokens", True, TypeError),
    ("logprobs", 21, ValueError), ("stop", [1], TypeError), ("stop", "", ValueError), ("seed", 2**64, ValueError),
    ("logit_bias", {5: 101}, ValueError), ("logit_bias", [5], TypeError), ("logit_bias", {1.7: 1}, TypeError),
    ("stop_token_ids", [-1], ValueError), ("allowed_token_ids", [], ValueError), ("ignore_eos", 1, TypeError),
    ("min_tokens", 17, ValueError), ("n", 2, NotImplementedError), ("bad_words", ["x"], NotImplementedError),
    ("detokenize", False, NotImplementedError)])
def test_wrong_parameters(parameter, value, error):
    with pytest.raises(error, match=parameter):
        SamplingParams(**{parameter: value})


def test_neutral_values_pass():
    SamplingParams(top_k=-1, logit_bias={"5": 1}, bad_words=[], stop=None, logprobs=np.int64(3))
    SamplingParams(temperature=np.float32(1))


@pytest.mark.parametrize(("options", "error"), [
    ({"max_model_len": "32Q"}, ValueError), ({"block_size": 17}, ValueError), ({"kv_offload": "of"}, ValueError),
    ({"kv_offload": 1}, TypeError), ({"max_num_seqs": "4"}, TypeError), ({"enable_prefix_caching": 0}, TypeError),
    ({"gpu_memory_utilization": 2}, ValueError), ({"tensor_parallel_size": 3}, ValueError),
    ({"pipeline_parallel_size": 2}, NotImplementedError),
    ({"dtype": "float16"}, NotImplementedError), ({"device": "tpu"}, ValueError)])
def test_wrong_options(options, error):
    (name,) = options
    with pytest.raises(error, match=name) as raised:
        LLM(MODEL, **options)
    assert isinstance(raised.value, sluice.Error) or error is TypeError


def test_none_is_the_default_of_an_option():
    nothing = {"skip_tokenizer_init": None, "block_size": None}
    plans = [sluice.inspect(MODEL, **options)["plan"] for options in ({}, nothing)]
    for plan in plans:
        del plan["host_available_bytes"]  # changes all the time
    assert plans[0] == plans[1]


def test_sizes_may_be_texts():
    plan = sluice.inspect(MODEL, max_model_len="8K", kv_offload="chunked", kv_host_bytes="256M")["plan"]
    same = sluice.inspect(MODEL, max_model_len=8192, kv_offload="chunked", kv_host_bytes=256 << 20)["plan"]
    assert plan["entries"] == same["entries"] and plan["num_blocks"] == same["num_blocks"]
    assert (plan["max_model_len"], plan["kv_offload"]) == (8192, "chunked")


@pytest.mark.parametrize(("kv_cache_dtype", "planned"), [("auto", "bf16"), ("bfloat16", "bf16"), ("fp8", "fp8_e4m3"),
                                                         ("int8", "int8")])
def test_kv_may_have_8_bits(kv_cache_dtype, planned):
    options = {"kv_cache_dtype": kv_cache_dtype, **OPTIONS}
    assert sluice.inspect(MODEL, **options)["plan"]["kv_cache_dtype"] == planned
    (output,) = LLM(MODEL, **options).generate(PROMPTS[0], SamplingParams(max_tokens=4, ignore_eos=True))
    assert len(output.outputs[0].token_ids) == 4


def test_errors_have_classes_and_codes(llm):
    with pytest.raises(sluice.ModelError, match="no-such-model") as raised:
        LLM("no-such-model")
    assert raised.value.code == "model"
    with pytest.raises(MemoryError) as raised:
        llm.generate(["a", [5] * (llm.max_model_len + 1)])
    assert (raised.value.code, raised.value.context) == ("does not fit", "prompt 1")
    assert isinstance(raised.value, ValueError)
    again = pickle.loads(pickle.dumps(raised.value))
    assert (type(again), str(again), again.context) == (type(raised.value), str(raised.value), "prompt 1")
    for prompt in ([], [[]], [4096], ["a", [2**40]], [[-1]]):
        if prompt != []:
            with pytest.raises(sluice.InvalidArgumentError):
                llm.generate(prompt)
    for prompt in ({"text": "x"}, {"prompt": 1}, {"prompt": "x", "multi_modal_data": {"image": 1}}):
        with pytest.raises(ValueError):
            llm.generate(prompt)
    with pytest.raises(TypeError):
        llm.generate([1.5])
    with pytest.raises(OSError) as raised:
        LLM(MODEL, **OPTIONS, timeline_path="/no/such/directory/file")
    assert raised.value.code == "input/output"
    assert all(issubclass(cls, sluice.Error) for cls in sluice._errors._CLASSES.values())


def test_every_object_is_one_line(llm):
    params = SamplingParams(temperature=0, max_tokens=3, logprobs=1, stop="\n")
    (output,) = llm.generate("Two\nlines", params)
    for one in (params, output, output.outputs[0], output.outputs[0].logprobs[0], llm, *llm.score([5, 6])):
        assert "\n" not in repr(one)
    assert repr(output.outputs[0]).startswith("CompletionOutput(index=0, text=")
    assert repr(output).startswith("RequestOutput(request_id='")
    assert repr(params).startswith("SamplingParams(n=1, temperature=0, ")


def test_tokens_and_texts(llm):
    text = "Grüße aus 日本 <|im_end|>"
    ids = llm.tokenize(text)
    assert llm.detokenize(ids) == text
    special = llm.tokenize(text, parse_special=True)
    assert len(special) < len(ids) and llm.detokenize(special) == text
    with pytest.raises(UnicodeEncodeError):
        llm.tokenize("\ud800")
    assert llm.can_chat and llm.notes and isinstance(llm.warnings, list)


def test_trace_is_that_of_score_without_a_copy(llm):
    ids = llm.tokenize(PROMPTS[0])
    trace = llm.trace(ids, ["layer.*.attn_out", "layer.0.q"])
    assert trace.logits.dtype == np.float32 and trace.logits.shape == (len(ids), 4096)
    assert len([name for name in trace.taps if name.endswith("attn_out")]) == 6
    assert not trace.logits.flags.owndata
    for tensor in [trace.logits, *trace.taps.values()]:
        view = np.from_dlpack(tensor)
        assert np.shares_memory(view, tensor) and tensor.__dlpack_device__() == (1, 0)
    logits = trace.logits.astype(np.float64)
    logprobs = logits - np.log(np.sum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1, keepdims=True)) - (
        logits.max(axis=1, keepdims=True))
    for position, score in enumerate(llm.score(ids)):
        assert abs(logprobs[position, ids[position + 1]] - score.logprob) < 1e-4
    kept = trace.logits
    del trace
    assert np.isfinite(kept).all()  # the array owns its memory
    with pytest.raises(ValueError, match="no_such"):
        llm.trace(ids, "no_such_tap")


def test_inspect_is_that_of_the_program():
    ours = sluice.inspect(MODEL, device="cpu", kv_cache_bytes="192M")
    (want,) = [one for one in [run_inspect()] if one]
    for part in (ours, want):
        del part["plan"]["host_available_bytes"]  # changes all the time
    assert ours["model"] == want["model"] and ours["files"] == want["files"]
    assert ours["plan"]["num_blocks"] == want["plan"]["num_blocks"] and ours["plan"]["fits"]


def run_inspect():
    import json
    import subprocess

    from conftest import program
    done = subprocess.run([program(), "inspect", MODEL, "--json", "--device", "cpu", "--kv-cache-bytes", "192M"],
                          capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_observations_and_counts(llm):
    before = llm.stats()
    llm.generate("Once", SamplingParams(max_tokens=3, ignore_eos=True))
    after = llm.stats()
    assert after["num_generated_tokens"] - before["num_generated_tokens"] == 3
    keys = run_program("run", "--max-tokens", "1", "x")[0]["observations"].keys()
    assert llm.observations().keys() == keys


def test_build_info():
    info = sluice.build_info()
    assert info["version"] == sluice.__version__ and isinstance(info["cuda"], bool) and info["commit"]
