#!/usr/bin/env python3
"""Compares Sluice with transformers on a real model, the GGUF file of SmolLM2-135M-Instruct that
get_smollm2.py gets.

    python3 tools/real_model/compare.py [--sluice build/release/sluice] [--encode-lines PROGRAM]
        with the results of transformers recorded in tests/golden/real/smollm2.json. Needs only Python,
        takes a minute. CI runs this. Without the model it prints "skipped: ..." and succeeds.
    ... --live
        with transformers itself: longer prompts, fresh random strings for the tokenizer, and every
        layer (tools/align/compare_layers.py), both on the directory that get_smollm2.py --hf makes of
        the file. Needs torch, transformers 5 and tokenizers, about 10 minutes and 8 GiB.
    ... --record
        writes tests/golden/real/smollm2.json. Same needs.

Compared: token ids of texts in many scripts; chats as ids; logits, whose error against transformers in
float32 must be smaller than that of transformers in bfloat16; greedy answers, which may differ only
from a near tie on; and KV resident, offloaded by chunks and offloaded by layers, which must give equal
bits. Exit status: 0 all equal, 1 a difference, 2 usage or a program that failed.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile
import time

import cases
from sluice_program import Failure, Sluice, encode

ROOT = cases.ROOT
GOLDEN = ROOT / "tests/golden/real/smollm2.json"
EXIT_DIFFERENT, EXIT_FAILED = 1, 2
NEAR_TIE_NATS = 0.1
# The smallest share of greedy tokens that must be compared before near ties end the comparison.
LEAST_COMPARED = 0.5
# A few slots of one small block each, so that all history must be loaded.
BLOCKS, CHUNKS = ["--block-size", "64"], ["--prefill-chunk-tokens", "128"]
FLOWING = [*BLOCKS, "--kv-host-bytes", "512M", "--kv-device-bytes", "0", "--num-kv-slots", "3",
           "--kv-slot-blocks", "1"]
MODES = {"resident": [*BLOCKS, *CHUNKS],
         "chunked": ["--kv-offload", "chunked", *FLOWING, *CHUNKS],
         "layerwise": ["--kv-offload", "layerwise", *FLOWING]}


def check_files(model, answers):
    """Checks that the recorded values belong to these weights."""
    for name, expected in answers["sha256"].items():
        found = hashlib.sha256((model / name).read_bytes()).hexdigest()
        if found != expected:
            raise Failure(f"{model / name} has sha256 {found}, but {GOLDEN.name} is about {expected}; "
                          "get the model anew (get_smollm2.py --force) or record anew (--record)")
    return [], f"{len(answers['sha256'])} files"


def check_texts(encode_lines, model, texts):
    parsed = encode(encode_lines, model, [text for text, _, _ in texts], True)
    literal = encode(encode_lines, model, [text for text, _, _ in texts], False)
    wrong = []
    for (text, want, want_literal), ours, ours_literal in zip(texts, parsed, literal):
        if ours != want:
            wrong.append(f"{text!r} with control tokens: {ours}, want {want}")
        if ours_literal != (want_literal or want):
            wrong.append(f"{text!r} as plain text: {ours_literal}, want {want_literal or want}")
    return wrong, f"{2 * len(texts)} tokenizations"


def run_chats(sluice, chats):
    """One output per chat; those with the same system message run as one batch."""
    outputs = {}
    for system in dict.fromkeys(chat["system"] for chat in chats):
        users = [chat["user"] for chat in chats if chat["system"] == system]
        words = ["--system", system] * bool(system)
        done = sluice.generate(users, "--chat", *words, "-n", cases.GREEDY_TOKENS)
        outputs |= {(system, user): output for user, output in zip(users, done)}
    return [outputs[chat["system"], chat["user"]] for chat in chats]


def first_difference(ours, want):
    pairs = enumerate(zip(ours, want))
    return next((i for i, (a, b) in pairs if a != b), min(len(ours), len(want)))


def check_chats(sluice, chats):
    """Ids of the prompts, then the answers, including end tokens."""
    wrong, compared, total = [], 0, 0
    for chat, output in zip(chats, run_chats(sluice, chats)):
        name = f"chat {chat['user'][:40]!r}"
        if output["prompt_token_ids"] != chat["ids"]:
            wrong.append(f"{name}: prompt {output['prompt_token_ids']}, want {chat['ids']}")
            continue
        want, ours = chat["greedy"], output["token_ids"]
        at = first_difference(ours, want)
        compared, total = compared + at, total + len(want)
        if at == len(want) < len(ours):
            wrong.append(f"{name}: goes on after the end token, {ours}, want {want}")
        if at < len(want) and chat["margins"][at] > NEAR_TIE_NATS:
            wrong.append(f"{name}: token {at} of {ours}, want {want}; a margin of "
                         f"{chat['margins'][at]} nat is no near tie")
    if compared < LEAST_COMPARED * total:
        wrong.append(f"only {compared} of {total} greedy tokens could be compared")
    return wrong, f"{len(chats)} chats, {compared} of {total} greedy tokens equal"


def check_logits(sluice, name, golden):
    traced = sluice.trace(golden["token_ids"])
    power = error = 0.0
    for pos, vocab_ids, logits in zip(golden["positions"], golden["vocab_ids"], golden["logits"]):
        row = traced.row(pos)
        for vocab_id, want in zip(vocab_ids, logits):
            power += want * want
            error += (row[vocab_id] - want) ** 2
    nmse, yardstick = error / power, golden["bf16_nmse"]
    said = (f"logits of {name}: {len(golden['token_ids'])} tokens, NMSE {nmse:.2e}; "
            f"transformers in bf16 {yardstick:.2e}")
    return [] if nmse < yardstick else [said + " is less"], said  # false for NaN


def same_bits(name, results):
    """`results`: mode -> a value that can be compared with ==."""
    first = results["resident"]
    return [f"{name}: {mode} differs from resident" for mode, result in results.items()
            if result != first]


def check_offload_logits(sluice, token_ids):
    results = {mode: sluice.trace(token_ids, *options).bytes for mode, options in MODES.items()}
    return (same_bits("logits", results),
            f"logits of {len(token_ids)} tokens {', '.join(results)}: bits compared")


def check_offload_answers(sluice, prompt, num_tokens):
    """Passes long prompts through a file; log-probabilities must be equal in every bit."""
    results, loads = {}, {}
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".txt") as file:
        file.write(prompt)
        file.flush()
        for mode, options in MODES.items():
            (output,) = sluice.generate([], "--chat", "--logprobs", 20, "--ignore-eos", "-n", num_tokens,
                                        *options, files=[file.name])
            results[mode] = [output[key] for key in ("prompt_token_ids", "token_ids", "logprobs")]
            loads[mode] = sum(output["observations"][phase]["loads"] for phase in ("prefill", "decode"))
    wrong = same_bits("answers", results)
    wrong += [f"answers: {mode} loaded no block, so it shows nothing"
              for mode in results if mode != "resident" and loads[mode] == 0]
    ids, answer, _ = results["resident"]
    return wrong, f"{len(answer)} tokens after {len(ids)} with log-probabilities, loads {loads}"


def check_layers(args):
    """Every tensor of every layer, in a process of its own."""
    words = [sys.executable, ROOT / "tools/align/compare_layers.py", "--model", args.hf, "--sluice",
             args.sluice, "--prompt", cases.austen(300, 2000), "--num-tokens", "400"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    last = (done.stdout.strip().splitlines() or [done.stderr.strip()[-500:]])[-1]
    return [f"layers: {last}"] if done.returncode else [], f"layers: {last}"


def check_fresh_texts(args):
    words = [sys.executable, ROOT / "tools/golden/check_tokenizer_live.py", args.encode_lines, args.hf]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    said = done.stdout.strip() or done.stderr.strip()[-500:]
    return [said] if done.returncode else [], said.splitlines()[-1]


def checks(args, answers):
    """What to compare, in order: (function, arguments)."""
    sluice = Sluice(args.sluice, args.model, args.sluice_args)
    yield check_files, (args.model, answers)
    yield check_texts, (args.encode_lines, gguf_of(args.model), answers["texts"])
    yield check_chats, (sluice, answers["chats"])
    for name, golden in answers["logits"].items():
        yield check_logits, (sluice, name, golden)
    yield check_offload_logits, (sluice, answers["logits"]["scripts"]["token_ids"])
    yield check_offload_answers, (sluice, cases.offload_prompt(), 24)
    if args.live:
        yield check_chats, (sluice, [answers["long"]])
        yield check_offload_answers, (sluice, cases.long_prompt(), 8)
        yield check_layers, (args,)
        yield check_fresh_texts, (args,)


def compare(args, answers):
    """Prints a line for each check; returns the number of checks with a difference."""
    failed = 0
    for function, arguments in checks(args, answers):
        start = time.monotonic()
        wrong, said = function(*arguments)
        failed += bool(wrong)
        print(f"{'FAILED' if wrong else 'equal '} {said} ({time.monotonic() - start:.1f} s)", flush=True)
        for line in wrong[:5]:
            print(f"  {line}")
        if len(wrong) > 5:
            print(f"  and {len(wrong) - 5} more")
    return failed


def dump(path, document):
    """JSON with a line for each entry, so that diffs are readable."""
    def text(value):
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"))

    members = []
    for key, value in document.items():
        if isinstance(value, list):
            body = "[\n" + ",\n".join(map(text, value)) + "\n]"
        elif isinstance(value, dict):
            body = "{\n" + ",\n".join(f"{text(k)}:{text(v)}" for k, v in value.items()) + "\n}"
        members.append(f"{text(key)}:{body}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + ",\n".join(members) + "}\n", encoding="utf-8")


def gguf_of(model):
    return next(model.glob("*.gguf"), None)


def get_answers(args):
    if not args.live and not args.record:
        return json.loads(GOLDEN.read_text(encoding="utf-8"))
    if not (args.hf / "config.json").exists():
        raise Failure(f"{args.hf} is not there; tools/real_model/get_smollm2.py --hf makes it")
    from oracle import Oracle  # imports torch, so only when needed
    answers = Oracle(args.hf, gguf_of(args.model)).answers(long=args.live)
    if args.record:
        dump(GOLDEN, {"provenance": Oracle.provenance()} | answers)
    return answers


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/smollm2-135m-instruct")
    parser.add_argument("--hf", type=pathlib.Path, default=ROOT / "models/smollm2-135m-instruct-hf",
                        help="for transformers: the same model as a Hugging Face directory")
    parser.add_argument("--sluice", type=pathlib.Path, default=ROOT / "build/release/sluice")
    parser.add_argument("--encode-lines", type=pathlib.Path,
                        default=ROOT / "build/dev/tests/tokenizer/encode_lines")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--live", action="store_true", help="compare with transformers itself")
    what.add_argument("--record", action="store_true", help="write what transformers says")
    parser.add_argument("sluice_args", nargs="*", help="after --: options for sluice")
    args = parser.parse_args()
    if gguf_of(args.model) is None:
        print(f"skipped: {args.model} is not there; tools/real_model/get_smollm2.py gets it")
        return 0
    try:
        failed = compare(args, get_answers(args))
    except (Failure, OSError, ImportError) as error:
        print(f"compare: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(f"compare: {failed} checks differ" if failed else "compare: all equal")
    return EXIT_DIFFERENT if failed else 0


if __name__ == "__main__":
    sys.exit(main())
