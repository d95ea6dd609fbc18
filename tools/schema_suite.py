#!/usr/bin/env python3
"""JSON-Schema-Test-Suite, draft 2020-12, against the grammars of schemas (src/grammar).

    python3 tools/schema_suite.py PROGRAM [--record] [--refused]     PROGRAM: check_documents of a build

Each schema is refused, or its grammar must accept exactly the documents that are valid. Fails for each document that
is accepted and not valid, and for each that is valid and not accepted unless schema_suite_differences.txt lists it,
below the reason. --record writes that list. Prints how many cases are refused, and with --refused of which files. The
suite is a part of the source distribution of jsonschema. Exit status 75 without PyPI.
"""

import collections
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
    done = subprocess.run([program], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compare(all_groups, all_answers):
    """The number of cases, those refused by file, what is accepted and not valid, what is valid and not accepted."""
    num_cases, refused, accepted, rejected = 0, collections.Counter(), [], []
    for (name, group), answer in zip(all_groups, all_answers):
        num_cases += len(group["tests"])
        error = answer.get("error", "")
        if error and not error.startswith("schema: no value satisfies it"):
            refused[name] += len(group["tests"])
            continue
        for index, test in enumerate(group["tests"]):
            valid = not error and answer["valid"][index]
            if valid != test["valid"]:
                (accepted if valid else rejected).append(
                    f"{name} | {group['description']} | {test['description']}")
    return num_cases, refused, accepted, rejected


def known_differences():
    """Reasons by case."""
    reasons, reason = {}, ""
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            reason = line
        elif line:
            reasons[line] = reason
    return reasons


def record(rejected):
    known, by_reason = known_differences(), {}
    for line in rejected:
        by_reason.setdefault(known.get(line, "# give a reason"), []).append(line)
    LIST.write_text("\n".join(f"{reason}\n" + "".join(f"{line}\n" for line in lines)
                              for reason, lines in by_reason.items()), encoding="utf-8")


def main():
    try:
        folder = sdist.folder_of(*PACKAGE, [FOLDER], root())
    except sdist.Unreachable as error:
        print(f"skipped: {error}")
        return 75
    all_groups = list(groups(folder))
    num_cases, refused, accepted, rejected = compare(all_groups, answers(sys.argv[1], all_groups))
    if "--record" in sys.argv:
        record(rejected)
    if "--refused" in sys.argv:
        print("\n".join(f"{count:5} refused: {name}" for name, count in refused.most_common()))
    known = known_differences()
    faults = [f"accepted, but not valid: {line}" for line in accepted]
    faults += [f"valid, but not accepted: {line}" for line in rejected if line not in known]
    faults += [f"listed, but accepted: {line}" for line in known if line not in rejected]
    num_refused = sum(refused.values())
    faults.append(f"{num_cases} cases, {num_refused} refused ({100 * num_refused / num_cases:.1f} %), "
                  f"{len(accepted)} wrongly accepted, {len(rejected)} wrongly rejected of which {len(known)} are known")
    print("\n".join(faults))
    return 1 if len(faults) > 1 else 0


if __name__ == "__main__":
    sys.exit(main())
