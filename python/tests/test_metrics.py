"""RequestOutput.metrics: vLLM's names, in the order in which things happened, within the clock around the call."""

import asyncio
import time

from conftest import PROMPTS

from sluice import AsyncLLM, RequestStateStats, SamplingParams
from sluice._outputs import Asked

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def check(metrics, before, after, num_tokens):
    """before, after: (time.time(), time.monotonic()) around the call."""
    assert isinstance(metrics, RequestStateStats)
    assert metrics.num_generation_tokens == num_tokens
    assert before[0] <= metrics.arrival_time <= after[0]
    times = [before[1], metrics.queued_ts, metrics.scheduled_ts, metrics.first_token_ts, metrics.last_token_ts,
             after[1]]
    assert times == sorted(times)
    assert (metrics.first_token_ts == metrics.last_token_ts) == (num_tokens == 1)
    assert metrics.first_token_ts - metrics.queued_ts <= metrics.first_token_latency <= after[1] - before[1]


def now():
    return time.time(), time.monotonic()


def test_metrics_of_generate(llm):
    before = now()
    outputs = llm.generate(PROMPTS, GREEDY, use_tqdm=False)
    for output in outputs:
        check(output.metrics, before, now(), 12)
    before = now()
    (one,) = llm.generate(PROMPTS[0], SamplingParams(max_tokens=1), use_tqdm=False)
    check(one.metrics, before, now(), 1)


def test_metrics_of_streams(llm):
    before = now()
    parts = []
    for part in llm.stream(PROMPTS[0], GREEDY):
        if part.outputs[0].token_ids:
            check(part.metrics, before, now(), len(parts) + 1)
            parts.append(part.metrics)
    assert len(parts) == 12
    assert len({part.first_token_ts for part in parts}) == len({part.arrival_time for part in parts}) == 1


def test_metrics_of_async(llm):
    engine = AsyncLLM(llm._model, device="cpu", kv_cache_bytes="64M", num_threads=2)

    async def main():
        before = now()
        async for output in engine.generate(PROMPTS[0], GREEDY):
            check(output.metrics, before, now(), len(output.outputs[0].token_ids))
        assert output.finished
        # A request that is aborted while it waits has neither tokens nor times of them.
        asked = Asked("x", None, GREEDY)
        aborted = type("Output", (), {"stats": (0, 0.0, 0.0, 0.0)})
        assert asked.metrics(aborted) == RequestStateStats(arrival_time=asked.arrival_time)
    asyncio.run(main())
    engine.shutdown()
