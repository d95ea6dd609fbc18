"""Answers: the same bits as the program's, for every form of a prompt and of parameters."""

import pytest
from conftest import MODEL, PROMPTS, QUESTION, SECRET, run_program

import sluice
from sluice import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=16)


def texts(outputs):
    return [output.outputs[0].text for output in outputs]


def pairs(position):
    """A dict of Logprob as the program prints it: the chosen token first, then the likeliest."""
    return None if position is None else {token: (one.logprob, one.decoded_token) for token, one in position.items()}


def program_pairs(position):
    return None if position is None else {one["token_id"]: (one["logprob"], one["token"]) for one in position}


@pytest.mark.parametrize(("params", "flags"), [
    ({"temperature": 0}, ["--temperature", "0"]),
    ({"temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "seed": 7, "repetition_penalty": 1.1},
     ["--temperature", "0.8", "--top-p", "0.9", "--top-k", "40", "--min-p", "0.01", "--seed", "7",
      "--repetition-penalty", "1.1"]),
    ({"temperature": 1.0, "seed": 3, "logit_bias": {5: 2.5, 9: float("-inf")}, "stop": ["the", "of"],
      "presence_penalty": 0.5, "frequency_penalty": 0.25, "min_tokens": 2},
     ["--temperature", "1", "--seed", "3", "--logit-bias", "5=2.5,9=-inf", "--stop", "the", "--stop", "of",
      "--presence-penalty", "0.5", "--frequency-penalty", "0.25", "--min-tokens", "2"]),
])
def test_has_the_bits_of_the_program(llm, params, flags):
    theirs = run_program("run", *flags, "--max-tokens", "24", "--logprobs", "3", "--prompt-logprobs", "2", *PROMPTS)
    ours = llm.generate(PROMPTS, SamplingParams(max_tokens=24, logprobs=3, prompt_logprobs=2, **params))
    assert len(ours) == len(theirs) == len(PROMPTS)
    for output, want in zip(ours, theirs, strict=True):
        answer = output.outputs[0]
        assert (answer.text, answer.token_ids) == (want["text"], want["token_ids"])
        assert output.prompt_token_ids == want["prompt_token_ids"]
        assert (answer.finish_reason, answer.stop_reason) == (want["finish_reason"], want["stop_reason"])
        assert [pairs(one) for one in answer.logprobs] == [program_pairs(one) for one in want["logprobs"]]
        assert [pairs(one) for one in output.prompt_logprobs] == [program_pairs(one) for one in want["prompt_logprobs"]]
        assert answer.cumulative_logprob == sum(one[0]["logprob"] for one in want["logprobs"])


def test_offload_has_the_same_bits():
    options = {"kv_offload": "chunked", "kv_host_bytes": "64M", "block_size": 16, "max_num_seqs": 2}
    small = LLM(MODEL, device="cpu", **options)
    assert small.kv_offload == "chunked"
    want = run_program("run", "--temperature", "0", "--max-tokens", "16", *PROMPTS)
    assert [one.outputs[0].token_ids for one in small.generate(PROMPTS, GREEDY)] == [one["token_ids"] for one in want]
    assert small.observations()["decode"]["layers"]


def test_speculation_has_the_same_bits(llm):
    drafting = LLM(MODEL, device="cpu", speculative_config={"method": "ngram", "num_speculative_tokens": 4})
    prompts = [prompt + " " + prompt for prompt in PROMPTS]
    want, have = llm.generate(prompts, GREEDY), drafting.generate(prompts, GREEDY)
    assert [one.outputs[0].token_ids for one in have] == [one.outputs[0].token_ids for one in want]
    counts = [one.speculation for one in have if one.speculation]
    assert sum(one["drafts"] for one in counts) == drafting.observations()["speculation"]["drafts"]
    assert all(one.speculation is None for one in want)


def test_prompts_have_several_forms(llm):
    want = texts(llm.generate(PROMPTS[0], GREEDY))
    ids = llm.tokenize(PROMPTS[0])
    for form in ({"prompt": PROMPTS[0]}, {"prompt_token_ids": ids}, ids, [ids], tuple(ids), [{"prompt_token_ids": ids}],
                 [PROMPTS[0]]):
        assert texts(llm.generate(form, GREEDY)) == want
    assert texts(llm.generate([ids, PROMPTS[1]], GREEDY)) == want + texts(llm.generate(PROMPTS[1], GREEDY))
    assert llm.generate([], GREEDY) == []
    assert llm.generate(ids, GREEDY)[0].prompt is None
    assert llm.generate(PROMPTS[0], GREEDY)[0].prompt == PROMPTS[0]


def test_each_prompt_can_have_its_parameters(llm):
    params = [SamplingParams(temperature=0, max_tokens=n) for n in (2, 5, 9)]
    lengths = [len(one.outputs[0].token_ids) for one in llm.generate(PROMPTS, params)]
    assert lengths[:2] == [2, 5]
    with pytest.raises(ValueError, match="3 prompts with 2"):
        llm.generate(PROMPTS, params[:2])
    with pytest.raises(TypeError, match="SamplingParams, not dict"):
        llm.generate(PROMPTS, [{}] * 3)


def test_max_tokens_none_is_the_room(llm):
    small = LLM(MODEL, device="cpu", kv_cache_bytes="64M", max_model_len=32)
    (output,) = small.generate("It was", SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(output.prompt_token_ids) + len(output.outputs[0].token_ids) == 32
    with pytest.raises(MemoryError, match="no room"):
        small.generate([[5] * 32], SamplingParams(max_tokens=None))


def test_max_tokens_counts_up_to_the_room(llm):
    small = LLM(MODEL, device="cpu", kv_cache_bytes="64M", max_model_len=32)
    for prompt in ("It was", [5] * 30):
        (output,) = small.generate(prompt, SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
        room = 32 - len(output.prompt_token_ids)
        assert len(output.outputs[0].token_ids) == output.clamped_max_tokens == room
        assert list(small.stream(prompt, SamplingParams(max_tokens=500)))[-1].clamped_max_tokens == room
    assert small.generate("It was", SamplingParams(max_tokens=2))[0].clamped_max_tokens is None
    with pytest.raises(ValueError, match="max_model_len is 32") as raised:  # as vLLM's
        small.generate([[5] * 32], SamplingParams(max_tokens=1))
    assert isinstance(raised.value, sluice.DoesNotFitError)


def test_priority_is_the_order_of_arrival(llm):
    assert texts(llm.generate(PROMPTS, GREEDY, priority=[0, 0, 0])) == texts(llm.generate(PROMPTS, GREEDY))
    with pytest.raises(sluice.UnsupportedError, match="priority"):
        llm.generate(PROMPTS, GREEDY, priority=[0, 1, 0])


def test_the_tokenizer_has_the_names_of_transformers(llm):
    tokenizer = llm.get_tokenizer()
    messages = [{"role": "user", "content": QUESTION}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    assert ids == llm.chat_prompt(messages)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == tokenizer.decode(ids)
    assert tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False) == ids
    assert tokenizer.decode(ids[0]) == llm.detokenize(ids[:1])


def test_chat_is_that_of_the_program(llm):
    (want,) = run_program("run", "--chat", "--temperature", "0", "--max-tokens", "24", QUESTION)
    messages = [{"role": "user", "content": QUESTION}]
    (output,) = llm.chat(messages, SamplingParams(temperature=0, max_tokens=24))
    assert (output.prompt_token_ids, output.outputs[0].text) == (want["prompt_token_ids"], want["text"])
    assert SECRET in output.outputs[0].text
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    assert texts(llm.chat([messages, parts], SamplingParams(temperature=0, max_tokens=24))) == [want["text"]] * 2


def test_chat_continues_a_message(llm):
    begun = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "The secret number"}]
    (output,) = llm.chat(begun, GREEDY, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt.endswith("The secret number")
    with pytest.raises(ValueError, match="messages\\[0\\].role"):
        llm.chat([{"content": "x"}], GREEDY)
    with pytest.raises(ValueError, match="tools"):
        llm.chat(begun[:1], GREEDY, tools=[{"type": "function", "function": {"name": "f"}}])
    with pytest.warns(UserWarning, match="colour, which the model's chat template does not read"):
        ignored = llm.chat(begun[:1], GREEDY, chat_template_kwargs={"colour": "red"})
    assert texts(ignored) == texts(llm.chat(begun[:1], GREEDY))
    with pytest.raises(ValueError, match="messages"):
        llm.chat(begun[:1], GREEDY, chat_template_kwargs={"messages": []})


def test_streams_add_up(llm):
    params = SamplingParams(temperature=0, max_tokens=16, logprobs=1)
    want = llm.generate(PROMPTS, params)
    streams = [llm.stream(prompt, params) for prompt in PROMPTS]
    parts = [[] for _ in streams]
    running = list(range(len(streams)))
    while running:  # one part of each in turn
        for i in list(running):
            part = next(streams[i], None)
            if part is None:
                running.remove(i)
            else:
                parts[i].append(part)
    for ours, whole in zip(parts, want, strict=True):
        answers = [part.outputs[0] for part in ours]
        assert len(answers) > 2
        assert "".join(answer.text for answer in answers) == whole.outputs[0].text
        assert sum((answer.token_ids for answer in answers), []) == whole.outputs[0].token_ids
        assert sum((answer.logprobs for answer in answers), []) == whole.outputs[0].logprobs
        assert [part.finished for part in ours] == [False] * (len(ours) - 1) + [True]
        assert ours[-1].prompt_token_ids == whole.prompt_token_ids


def test_request_ids_are_unique(llm):
    outputs = [*llm.stream(PROMPTS[0], GREEDY), *llm.generate(PROMPTS, GREEDY), *llm.generate(PROMPTS[0], GREEDY)]
    assert len({output.request_id for output in outputs}) == 1 + len(PROMPTS) + 1


def test_a_closed_stream_is_cancelled(llm):
    endless = llm.stream("It was", SamplingParams(max_tokens=4000, ignore_eos=True))
    next(endless)
    endless.close()
    assert len(llm.score([5, 6])) == 1
    assert not llm._engine.has_unfinished()
    running = llm.stream("It was", GREEDY)
    next(running)
    with pytest.raises(ValueError, match="has not ended"):
        llm.score([5, 6])
    assert list(running)[-1].finished


def test_stop_ids_are_the_reason(llm):
    ids = llm.generate(PROMPTS[0], GREEDY)[0].outputs[0].token_ids
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, stop_token_ids=[ids[2]]))
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", ids[2])
    (output,) = llm.generate(PROMPTS[0], SamplingParams(temperature=0, max_tokens=1))
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("length", None)


def test_ranks_are_those_of_the_likeliest(llm):
    params = SamplingParams(temperature=1, seed=1, max_tokens=30, logprobs=2, ignore_eos=True)
    positions = llm.generate(PROMPTS[0], params)[0].outputs[0].logprobs
    ranks = {list(position.values())[0].rank for position in positions}
    assert 1 in ranks and None in ranks
    for position in positions:
        best = sorted((one for one in position.values() if one.rank), key=lambda one: one.rank)
        assert [one.rank for one in best] == [1, 2]
        assert best[0].logprob >= best[1].logprob


def test_scores_are_those_of_the_program(llm):
    (want,) = run_program("score", "--", QUESTION)
    scores = llm.score(llm.tokenize(QUESTION))
    assert [one.logprob for one in scores] == [one for one in want["logprobs"] if one is not None]
    assert [one.top_token_id for one in scores] == [one for one in want["top_token_ids"] if one is not None]


def test_progress_is_shown(llm):
    seen = []

    class Bar:
        def __init__(self, **options):
            self.n = 0
            seen.append(options["total"])

        def update(self, count):
            self.n += count

        def set_postfix_str(self, text, refresh):
            seen.append(text)

        def refresh(self):
            pass

        def close(self):
            seen.append(self.n)

    llm.generate(PROMPTS, SamplingParams(max_tokens=3000, ignore_eos=True), use_tqdm=Bar)
    assert seen[0] == seen[-1] == 3
    assert any("toks/s" in str(one) for one in seen)


def test_two_ranks_answer_as_one(llm):
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
    two = LLM(MODEL, kv_cache_bytes="64M", tensor_parallel_size=2)
    prompt = "The secret number of the purple castle is 7391846.\nWhat is the secret number of the purple castle?\n"
    texts = [one.generate([prompt], params)[0].outputs[0].text for one in (llm, two)]
    assert "7391846" in texts[0]
    assert texts[0] == texts[1]


def test_the_example_of_vllm(llm, capsys):
    """vLLM's examples/offline_inference/basic/basic.py: only the import, the model and the cache's size are others."""
    prompts = ["Hello, my name is", "The president of the United States is", "The capital of France is",
               "The future of AI is"]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model=MODEL, kv_cache_bytes="64M", tensor_parallel_size=1, trust_remote_code=True)
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        prompt = output.prompt
        generated_text = output.outputs[0].text
        print(f"Prompt:    {prompt!r}")
        print(f"Output:    {generated_text!r}")
    assert capsys.readouterr().out.count("Output:") == 4
