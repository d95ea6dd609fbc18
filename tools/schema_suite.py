#!/usr/bin/env python3
"""JSON-Schema-Test-Suite, draft 2020-12, against the grammars of schemas (src/grammar).

    python3 tools/schema_suite.py PROGRAM [--record]     PROGRAM: build/test/tests/grammar/check_documents

Each schema is refused, or its grammar must accept exactly the documents that are valid. Fails for each document that is
accepted and not valid, and for each that is valid and not accepted unless schema_suite_differences.txt lists it: those
are written in another way than the grammar writes them (the order of properties, 1.0 for 1), or have a format that a
validator may ignore. --record writes that list. The suite is a part of the source distribution of jsonschema.
Exit status 75 without PyPI.
"""

import json
import os
import pathlib
import subprocess
import sys

import sdist

PACKAGE = ("jsonschema", "4.26.0", "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326")
FOLDER = "json/tests/draft2020-12/"
LIST = pathlib.Path(__file__).with_name("schema_suite_differences.txt")


def root():
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "sluice-deps"
    return pathlib.Path(os.environ.get("SLUICE_DEPS_DIR", cache)) / "sources"


def groups(folder):
    for path in sorted((folder / FOLDER).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield path.stem, group


def answers(program, all_groups):
    lines = [json.dumps({"schema": json.dumps(group["schema"]),
                         "documents": [json.dumps(test["data"]) for test in group["tests"]]})
             for _, group in all_groups]
    done = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(all_groups, all_answers):
    """The counts, what is accepted and not valid, and what is valid and not accepted."""
    counts, accepted, rejected = {"cases": 0, "refused": 0}, [], []
    for (name, group), answer in zip(all_groups, all_answers):
        counts["cases"] += len(group["tests"])
        error = answer.get("error", "")
        if error and not error.startswith("schema: no value satisfies it"):
            counts["refused"] += len(group["tests"])
            continue
        for index, test in enumerate(group["tests"]):
            valid = not error and answer["valid"][index]
            if valid != test["valid"]:
                (accepted if valid else rejected).append(
                    f"{name} | {group['description']} | {test['description']}")
    return counts, accepted, rejected


def main():
    try:
        folder = sdist.folder_of(*PACKAGE, [FOLDER], root())
    except sdist.Unreachable as error:
        print(f"skipped: {error}")
        return 75
    all_groups = list(groups(folder))
    counts, accepted, rejected = compare(all_groups, answers(sys.argv[1], all_groups))
    if "--record" in sys.argv:
        LIST.write_text("".join(f"{line}\n" for line in rejected), encoding="utf-8")
    known = LIST.read_text(encoding="utf-8").splitlines()
    faults = [f"accepted, but not valid: {line}" for line in accepted]
    faults += [f"valid, but not accepted: {line}" for line in rejected if line not in known]
    faults += [f"listed, but accepted: {line}" for line in known if line not in rejected]
    faults.append(f"{counts['cases']} cases, {counts['refused']} refused, {len(accepted)} wrongly accepted, "
                  f"{len(rejected)} wrongly rejected of which {len(known)} are known")
    print("\n".join(faults))
    return 1 if len(faults) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
