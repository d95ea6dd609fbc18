"""AsyncLLM: answers as LLM's, cancelled requests leave nothing, errors and the end."""

import asyncio
import gc
import threading
import time

import pytest
from conftest import MODEL, OPTIONS, PROMPTS

import sluice
from sluice import AsyncEngineArgs, AsyncLLM, RequestOutputKind, SamplingParams

ENDLESS = SamplingParams(temperature=0, max_tokens=30000, ignore_eos=True)


@pytest.fixture(scope="module")
def engine():
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=MODEL, **OPTIONS))
    yield engine
    engine.shutdown()


def greedy(kind, **others):
    return SamplingParams(temperature=0, max_tokens=16, output_kind=kind, **others)


async def outputs_of(engine, prompt, params, request_id=None):
    return [output async for output in engine.generate(prompt, params, request_id)]


async def until_idle(engine):
    """Cancelled requests end with the step that runs."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        now = engine.snapshot()
        if now["num_running"] == now["num_waiting"] == now["num_kv_blocks_used"] == 0:
            return now
        await asyncio.sleep(0.01)
    raise AssertionError(f"requests were left: {engine.snapshot()}")


def test_kinds_of_outputs_agree_with_llm(engine, llm):
    want = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=16, logprobs=2, prompt_logprobs=1))

    async def all_of(kind):
        params = greedy(kind, logprobs=2, prompt_logprobs=1)
        return await asyncio.gather(*(outputs_of(engine, prompt, params) for prompt in PROMPTS))

    for outputs, whole in zip(asyncio.run(all_of(RequestOutputKind.CUMULATIVE)), want, strict=True):
        assert outputs[-1].outputs[0] == whole.outputs[0]
        assert outputs[-1].prompt_logprobs == whole.prompt_logprobs
        assert outputs[-1].prompt_token_ids == whole.prompt_token_ids and outputs[-1].finished
        assert len(outputs) > 2 and outputs[1].outputs[0].text != outputs[-1].outputs[0].text
    for outputs, whole in zip(asyncio.run(all_of(RequestOutputKind.DELTA)), want, strict=True):
        assert "".join(output.outputs[0].text for output in outputs) == whole.outputs[0].text
        assert sum((output.outputs[0].logprobs for output in outputs), []) == whole.outputs[0].logprobs
    for outputs, whole in zip(asyncio.run(all_of(RequestOutputKind.FINAL_ONLY)), want, strict=True):
        assert [output.outputs for output in outputs] == [whole.outputs]


async def abandon(engine, way, prompt):
    """Ends a request in one of five ways before its answer is complete."""
    outputs = engine.generate(prompt, ENDLESS, f"{way} {id(prompt)} {time.monotonic_ns()}")
    if way == 0:  # the iterator is closed
        async for _ in outputs:
            break
        await outputs.aclose()
    elif way == 1:  # the iterator is dropped
        async for _ in outputs:
            break
        del outputs
        gc.collect()
    elif way == 2:  # the task is cancelled
        async def read():
            async for _ in engine.generate(prompt, ENDLESS):
                pass
        task = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    elif way == 3:  # it is aborted by its id
        name = f"aborted {time.monotonic_ns()}"
        async for output in engine.generate(prompt, ENDLESS, name):
            await engine.abort(name)
        assert output.finished and output.outputs[0].finish_reason == "abort"
    else:  # a timeout ends it
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(outputs_of(engine, prompt, ENDLESS), 0.02)


def test_a_hundred_tasks_of_which_half_are_abandoned_leave_nothing(engine, llm):
    params = SamplingParams(temperature=0, max_tokens=8)
    prompts = [f"{PROMPTS[i % 3]} {i}" for i in range(50)]
    want = [one.outputs[0].token_ids for one in llm.generate(prompts, params, use_tqdm=False)]
    accepted = engine.snapshot()["num_accepted"]

    async def main():
        kept = [outputs_of(engine, prompt, params) for prompt in prompts]
        dropped = [abandon(engine, i % 5, f"Once upon a time {i}") for i in range(50)]
        both = await asyncio.gather(*(task for pair in zip(kept, dropped, strict=True) for task in pair))
        assert [outputs[-1].outputs[0].token_ids for outputs in both[::2]] == want
        return await until_idle(engine)

    now = asyncio.run(main())
    assert now["num_accepted"] - accepted == 100
    assert sum(now["num_ended"].values()) == now["num_accepted"]
    assert not engine._open and not engine._key_of


def test_a_loop_that_ends_early_leaves_nothing(engine):
    async def main():
        asyncio.create_task(outputs_of(engine, PROMPTS[0], ENDLESS))
        await asyncio.sleep(0.05)

    for _ in range(3):
        asyncio.run(main())
    asyncio.run(until_idle(engine))
    assert not engine._open


def test_loops_of_several_threads(engine):
    found = []

    def work():
        outputs = asyncio.run(outputs_of(engine, PROMPTS[0], greedy(RequestOutputKind.FINAL_ONLY)))
        found.append(outputs[-1].outputs[0].text)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1


def test_long_texts_do_not_hold_up_the_loop(engine):
    async def main():
        text = "the old dog sleeps " * 2000
        task = asyncio.create_task(outputs_of(engine, text, greedy(RequestOutputKind.FINAL_ONLY)))
        worst = 0.0
        while not task.done():
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            worst = max(worst, time.perf_counter() - start)
        await task
        return worst

    assert min(asyncio.run(main()) for _ in range(3)) < 0.1
    # Dropped while the executor has it.
    async def drop():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(outputs_of(engine, "the old dog " * 2500, SamplingParams(max_tokens=9000)), 0.0001)
    asyncio.run(drop())
    asyncio.run(until_idle(engine))


def test_an_abort_while_a_thread_reads_the_text(engine, monkeypatch):
    reading, may_go = threading.Event(), threading.Event()
    tokenize = engine.tokenize

    def wait_and_tokenize(*arguments, **options):
        reading.set()
        may_go.wait(30)
        return tokenize(*arguments, **options)
    monkeypatch.setattr(engine, "tokenize", wait_and_tokenize)

    async def main():
        params = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        task = asyncio.create_task(outputs_of(engine, "the old dog " * 2500, params, "long"))
        assert await asyncio.to_thread(reading.wait, 30)
        await engine.abort("long")
        may_go.set()
        return await asyncio.wait_for(task, 60)
    assert asyncio.run(main())[-1].outputs[0].finish_reason == "abort"
    asyncio.run(until_idle(engine))


def test_the_final_output_is_joined_once(engine, monkeypatch):
    joined, calls = sluice._async_llm._joined, []
    monkeypatch.setattr(sluice._async_llm, "_joined", lambda parts: calls.append(len(parts)) or joined(parts))
    (output,) = asyncio.run(outputs_of(engine, PROMPTS[0], greedy(RequestOutputKind.FINAL_ONLY)))
    assert calls == [calls[0]] and len(output.outputs[0].token_ids) == 16


def test_refusals_and_errors(engine):
    def fails(error, match, *arguments):
        with pytest.raises(error, match=match):
            asyncio.run(outputs_of(engine, *arguments))

    fails(sluice.InvalidArgumentError, "4096", [4096], ENDLESS)
    fails(MemoryError, "max_model_len", [5] * engine.max_model_len, ENDLESS)

    async def twice():
        first = engine.generate(PROMPTS[0], ENDLESS, "one")
        await anext(first)
        with pytest.raises(ValueError, match="'one'"):
            await anext(engine.generate(PROMPTS[0], ENDLESS, "one"))
        await first.aclose()
    asyncio.run(twice())
    asyncio.run(until_idle(engine))
    with pytest.raises(TypeError, match="did you mean 'kv_offload'"):
        AsyncLLM(MODEL, kv_offlod="off")


def test_shutdown_aborts():
    engine = AsyncLLM(MODEL, **OPTIONS)

    async def main():
        outputs = engine.generate(PROMPTS[0], ENDLESS)
        await anext(outputs)
        engine.shutdown()
        rest = [output async for output in outputs]
        assert rest[-1].outputs[0].finish_reason == "abort"
        with pytest.raises(sluice.RefusedError, match="shut down"):
            await anext(engine.generate(PROMPTS[0], ENDLESS))
        with pytest.raises(sluice.RefusedError, match="shut down"):
            await anext(engine.generate(PROMPTS[0]))
    asyncio.run(main())
    assert not engine.is_running
    engine.shutdown()
    with pytest.raises(ValueError, match="shut down"):
        engine.snapshot()


def test_an_engine_that_nobody_holds_ends_its_threads():
    before = threading.active_count()
    engine = AsyncLLM(MODEL, **OPTIONS)
    assert threading.active_count() == before + 1
    reader = engine._reader
    del engine
    gc.collect()
    reader.join(30)
    assert not reader.is_alive()
