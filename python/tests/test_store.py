"""The KV store, pins and cache salts: what is found instead of computed, and that answers do not change."""

import asyncio
import dataclasses

import pytest
from conftest import MODEL, OPTIONS, PROMPTS, QUESTION, run_program

import sluice
from sluice import LLM, AsyncLLM, PinInfo, SamplingParams, TextPrompt, TokensPrompt

GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=2)
BLOCK = 16
TOKEN_BYTES = 6 * 2 * 2 * 64 * 2  # layers, K and V, heads, their width, BF16
LONG = QUESTION * 20


def options_with(store, **others):
    return {**OPTIONS, "block_size": BLOCK, "kv_store": store, "kv_store_min_tokens": 0, **others}


def whole_blocks(num_tokens):
    """Tokens of the blocks before the last token, which is computed in any case."""
    return (num_tokens - 1) // BLOCK * BLOCK


# The store

def test_a_second_engine_reads_what_the_first_wrote(llm, tmp_path):
    (want,) = llm.generate(LONG, GREEDY)
    num_blocks = (len(want.prompt_token_ids) + len(want.outputs[0].token_ids) - 1) // BLOCK
    stored = whole_blocks(len(want.prompt_token_ids))

    first = LLM(MODEL, **options_with(tmp_path / "kv"))
    (cold,) = first.generate(LONG, GREEDY)
    assert first.flush_kv_store()
    counts = first.observations()["kv_store"]
    assert cold.outputs[0] == want.outputs[0] and cold.num_stored_tokens == cold.num_cached_tokens == 0
    assert (counts["stored_tokens"], counts["read_bytes"], counts["bad_files"]) == (0, 0, 0)
    assert counts["blocks_written"] == num_blocks and counts["blocks_skipped"] == 0
    files = list((tmp_path / "kv").rglob("*.kv"))
    assert len(files) == num_blocks
    assert counts["written_bytes"] == sum(file.stat().st_size for file in files)
    del first

    second = LLM(MODEL, **options_with(tmp_path / "kv"))
    (warm,) = second.generate(LONG, GREEDY)
    assert warm.outputs[0] == want.outputs[0]
    assert warm.num_stored_tokens == warm.num_cached_tokens == stored
    counts = second.observations()["kv_store"]
    assert (counts["stored_tokens"], counts["blocks_written"], counts["bad_files"]) == (stored, 0, 0)
    assert counts["read_bytes"] == stored // BLOCK * files[0].stat().st_size
    stats = second.stats()
    assert (stats["num_stored_tokens"], stats["store_read_bytes"]) == (stored, counts["read_bytes"])
    assert stats["num_prompt_tokens"] == len(want.prompt_token_ids) - stored


def test_an_engine_that_ends_writes_what_is_left(llm, tmp_path):
    (want,) = llm.generate(LONG, GREEDY)
    first = LLM(MODEL, **options_with(tmp_path / "kv"))
    first.generate(LONG, GREEDY)
    del first
    (found,) = run_program("run", "--kv-store", str(tmp_path / "kv"), "--block-size", str(BLOCK), "--temperature", "0",
                           "--max-tokens", "8", LONG)
    assert found["token_ids"] == want.outputs[0].token_ids
    assert found["observations"]["kv_store"]["stored_tokens"] == whole_blocks(len(want.prompt_token_ids))


def test_async_engines_share_a_store(llm, tmp_path):
    (want,) = llm.generate(LONG, GREEDY)

    def ask():
        engine = AsyncLLM(MODEL, **options_with(tmp_path / "kv"))

        async def last():
            return [output async for output in engine.generate(LONG, GREEDY)][-1]
        output = asyncio.run(last())
        counts = engine.snapshot()
        engine.shutdown()
        return output, counts

    (cold, _), (warm, counts) = ask(), ask()
    assert cold.outputs[0] == warm.outputs[0] == want.outputs[0]
    assert cold.num_stored_tokens == 0
    assert warm.num_stored_tokens == counts["num_stored_tokens"] == whole_blocks(len(want.prompt_token_ids))
    assert counts["store_read_bytes"] > 0 and counts["num_store_blocks_written"] == 0


def test_without_a_store_there_is_nothing_to_wait_for(llm):
    assert llm.flush_kv_store()
    assert llm.observations()["kv_store"] is None
    assert llm.stats()["num_stored_tokens"] == 0


# Salts

def cached_tokens(engine, prompt):
    (output,) = engine.generate(prompt, GREEDY, use_tqdm=False)
    return output.num_cached_tokens


def test_a_salt_separates_prefixes(llm, tmp_path):
    engine = LLM(MODEL, **options_with(tmp_path / "kv"))
    (plain,) = engine.generate(LONG, GREEDY)
    (salted,) = engine.generate({"prompt": LONG, "cache_salt": "a"}, GREEDY)
    assert salted.outputs[0] == plain.outputs[0] and salted.prompt == LONG
    assert salted.num_cached_tokens == 0
    ids = engine.tokenize(LONG)
    whole = whole_blocks(len(ids))
    assert cached_tokens(engine, TextPrompt(prompt=LONG, cache_salt="a")) == whole
    assert cached_tokens(engine, TokensPrompt(prompt_token_ids=ids, cache_salt="a")) == whole
    assert cached_tokens(engine, TokensPrompt(prompt_token_ids=ids, cache_salt="b")) == 0
    assert cached_tokens(engine, {"prompt": LONG, "cache_salt": None}) == whole
    parts = list(engine.stream({"prompt": LONG, "cache_salt": "c"}, GREEDY))
    assert parts[-1].num_cached_tokens == 0
    room = SamplingParams(temperature=0, max_tokens=None, stop=".")
    assert engine.generate({"prompt": LONG, "cache_salt": "d"}, room)[0].num_cached_tokens == 0
    del engine
    again = LLM(MODEL, **options_with(tmp_path / "kv"))
    assert again.generate({"prompt": LONG, "cache_salt": "b"}, GREEDY)[0].num_stored_tokens == whole
    assert again.generate({"prompt": LONG, "cache_salt": "e"}, GREEDY)[0].num_stored_tokens == 0


def test_wrong_salts(llm):
    with pytest.raises(TypeError, match="cache_salt must be a text, not int"):
        llm.generate({"prompt": "a", "cache_salt": 1}, GREEDY)
    with pytest.raises(ValueError, match="cache_salt"):
        llm.generate({"prompt": "a", "salt": "x"}, GREEDY)


# Pins

def small_engine():
    """100 blocks, of which pins may have 36: what is not held is soon overwritten."""
    return LLM(MODEL, device="cpu", num_threads=2, block_size=BLOCK, max_model_len=1024,
               kv_cache_bytes=100 * BLOCK * TOKEN_BYTES)


def fill(engine):
    """Overwrites what is cached and not held."""
    for token in range(100, 104):
        engine.generate([[token + i % 7 for i in range(1000)]], SamplingParams(max_tokens=1), use_tqdm=False)


def test_a_pin_holds_a_prefix():
    engine = small_engine()
    ids = engine.tokenize(LONG)[:400]
    (want,) = engine.generate([ids], GREEDY)
    fill(engine)
    assert cached_tokens(engine, [ids]) == 0, "the test fills too little"

    pin = engine.pin("document", TokensPrompt(prompt_token_ids=ids))
    assert pin == engine.pins["document"] == PinInfo("document", 400, 25, pin.num_bytes, 400, 0, 0)
    assert pin.num_bytes == 400 * TOKEN_BYTES
    fill(engine)
    (found,) = engine.generate([ids], GREEDY)
    assert found.num_cached_tokens == whole_blocks(400) and found.outputs[0] == want.outputs[0]
    assert cached_tokens(engine, {"prompt_token_ids": ids, "cache_salt": "a"}) == 0

    assert engine.unpin("document") and not engine.unpin("document")
    assert engine.pins == {}
    fill(engine)
    assert cached_tokens(engine, [ids]) == 0


def test_pins_replace_and_are_refused():
    engine = small_engine()
    engine.pin("one", "It was a dark and stormy night, " * 4)
    first = engine.pins["one"]
    second = engine.pin("one", {"prompt": "Once upon a time there was a king, " * 8, "cache_salt": "a"})
    assert engine.pins == {"one": second} and second.num_tokens > first.num_tokens
    for name in ("", ".hidden", "a b", "x" * 65):
        with pytest.raises(sluice.InvalidArgumentError, match="name of a pin"):
            engine.pin(name, "text")
    with pytest.raises(MemoryError, match="pin 'big'"):
        engine.pin("big", list(range(100, 1000)))
    assert list(engine.pins) == ["one"]


def test_async_pins(llm):
    engine = AsyncLLM(MODEL, **OPTIONS)

    async def main():
        made = await engine.pin("document", LONG)
        assert engine.pins == {"document": made}
        (output,) = [one async for one in engine.generate(LONG, dataclasses.replace(
            GREEDY, output_kind=sluice.RequestOutputKind.FINAL_ONLY))]
        assert output.num_cached_tokens > 0 and output.outputs[0] == llm.generate(LONG, GREEDY)[0].outputs[0]
        with pytest.raises(sluice.InvalidArgumentError, match="name of a pin"):
            await engine.pin("", LONG)
        with pytest.raises(sluice.InvalidArgumentError, match="name of a pin"):
            await engine.pin("a/b", LONG)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(engine.pin("late", "an old dog " * 3000), 0.05)
        assert list(engine.pins) == ["document"]
        assert engine.unpin("document") and not engine.unpin("document")
        assert engine.pins == {}
    asyncio.run(main())
    engine.shutdown()
    with pytest.raises(sluice.RefusedError, match="shut down"):
        asyncio.run(engine.pin("document", PROMPTS[0]))
