"""Answers of a model with random weights under random schemas: each one that ended by itself must be valid.

jsonschema is the truth. The same requests, with the same seeds, go to servers that compute them alone, in batches, with
drafts, and with so little memory that sequences are preempted; half of the answers are streamed. So the texts must be
equal, too. 200 schemas and 10,000 answers; with SUITES=short 20 and 260.
"""

import collections
import concurrent.futures
import json
import os
import pathlib
import re
import sys
import tempfile
import urllib.error
import urllib.request

import jsonschema

import random_model
from checks import Server, holds, run_checks, same
from random_schemas import schemas

IS_SHORT = os.environ.get("SUITES") == "short"
NUM_SCHEMAS, NUM_SEEDS, NUM_ALONE = (20, 4, 1) if IS_SHORT else (200, 16, 2)
MAX_TOKENS = 256
COMMON = ("--max-model-len", "1024")
DRAFTS = ("--sparse-policy", "full+quest", "--speculative-method", "ngram+sparse", "--num-speculative-tokens", "4",
          "--prompt-lookup-min", "1")
# Options of each server, bytes of KV, seeds of each schema, requests at once.
SERVERS = {"alone": ((), "512M", NUM_ALONE, 1), "batched": ((), "512M", NUM_SEEDS, 16),
           "drafts": (DRAFTS, "512M", NUM_SEEDS, 8), "preempted": ((), "4M", NUM_SEEDS, 16)}
SCHEMAS = schemas(NUM_SCHEMAS)
VALIDATORS = [jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
              for schema in SCHEMAS]


def post(url, body):
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {
        "Content-Type": "application/json", "Authorization": f"Bearer {os.environ['SLUICE_API_KEY']}"})
    return urllib.request.urlopen(request, timeout=300)


def ask(url, index, seed, stream):
    """Text and finish_reason, or the error and None."""
    schema = SCHEMAS[index]
    shape = {name: value for name, value in schema.items() if name != "$defs"}
    body = {"messages": [{"role": "user", "content": json.dumps(shape)[:400]}], "max_tokens": MAX_TOKENS, "seed": seed,
            "temperature": 1, "stream": stream,
            "response_format": {"type": "json_schema", "json_schema": {"name": "judged", "schema": schema}}}
    try:
        with post(url, body) as answer:
            if not stream:
                choice = json.load(answer)["choices"][0]
                return choice["message"]["content"] or "", choice["finish_reason"]
            text, reason = "", None
            for line in answer:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return event["error"]["message"], None
                    choice = event["choices"][0]
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
            return text, reason
    except urllib.error.HTTPError as error:
        return error.read().decode(), None


def refuse_constant(word):
    raise ValueError(f"{word} is no JSON")


def fault_of(index, text):
    """Why the answer is wrong, or None. Of a name that comes twice the last one counts."""
    try:
        VALIDATORS[index].validate(json.loads(text, parse_constant=refuse_constant))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return None


def counts_of(url):
    request = urllib.request.Request(f"{url}/metrics", headers={
        "Authorization": f"Bearer {os.environ['SLUICE_API_KEY']}"})
    with urllib.request.urlopen(request, timeout=30) as page:
        text = page.read().decode()
    return {name: sum(int(value) for value in re.findall(rf"^vllm:{name}(?:{{.*}})? (\d+)$", text, re.MULTILINE))
            for name in ("num_preemptions_total", "spec_decode_num_draft_tokens_total",
                         "spec_decode_num_accepted_tokens_total")}


class Judge:
    def __init__(self):
        self.texts, self.counts, self.faults = {}, collections.Counter(), []

    def see(self, server, key, answer):
        text, reason = answer
        self.counts[reason or "error"] += 1
        index, seed = key
        fault = text if reason is None else fault_of(index, text) if reason == "stop" else None
        if fault:
            self.faults.append(f"{server}, schema {index}, seed {seed}: {fault}: {text!r}")
        if self.texts.setdefault(key, answer) != answer:
            self.faults.append(f"{server}, schema {index}, seed {seed}: another text than elsewhere: {text!r}, not "
                               f"{self.texts[key][0]!r}")


def judge(server, url, num_seeds, at_once, judged):
    keys = [(index, seed) for seed in range(num_seeds) for index in range(NUM_SCHEMAS)]
    offset = list(SERVERS).index(server)  # what one server streams, the next one does not
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        answers = pool.map(lambda key: ask(url, *key, stream=sum(key) % 2 == offset % 2), keys)
        for key, answer in zip(keys, answers):
            judged.see(server, key, answer)


def check_answers():
    judged, seen = Judge(), {}
    with tempfile.TemporaryDirectory() as name:
        random_model.make(pathlib.Path(os.environ["MODEL"]), pathlib.Path(name))
        for server, (options, kv_bytes, num_seeds, at_once) in SERVERS.items():
            sequences = ("--max-num-seqs", str(at_once))
            with Server(name, *COMMON, *sequences, *options, kv_bytes=kv_bytes) as running:
                judge(server, running.url, num_seeds, at_once, judged)
                seen[server] = counts_of(running.url)
    print(f"  {judged.counts.total()} answers under {NUM_SCHEMAS} schemas: {dict(judged.counts)}, "
          f"{len(judged.faults)} faults")
    print("  " + "; ".join(f"{server}: {counts}" for server, counts in seen.items()))
    for fault in judged.faults[:20]:
        print(f"  {fault[:600]}")
    same(len(judged.faults), 0, "number of faults")
    holds(judged.counts["stop"] > judged.counts.total() / 2, "most answers end by themselves")
    holds(seen["preempted"]["num_preemptions_total"] > 0, "sequences were preempted")
    holds(seen["drafts"]["spec_decode_num_draft_tokens_total"] > 0, "there were drafts")


if __name__ == "__main__":
    sys.exit(run_checks(dict(globals())))
