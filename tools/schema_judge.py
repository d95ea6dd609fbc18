#!/usr/bin/env python3
"""Random schemas and documents: the grammars of schemas (src/grammar) against jsonschema.

    python3 tools/schema_judge.py PROGRAM [--schemas N] [--seed N]     PROGRAM: check_documents of a build

A schema is refused, or its grammar accepts exactly the documents that jsonschema finds valid; of a valid document in
some order of its properties, since a grammar has one order (docs/structured_output.md). Formats and spellings of
numbers are left out: those are compared in tests/grammar. Exit status 75 if jsonschema is neither
installed nor on PyPI.
"""

import argparse
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import venv

from schema_suite import PACKAGE, root

NAMES = ["a", "b", "c", "d"]
SCALARS = [None, True, False, -2, 0, 1, 2, 3, 6, 0.5, 1.5, 2.25, "", "a", "ab", "b", "bca", "\u00e9\""]
PATTERNS = ["^a", "b$", "[bc]", "^.{2}$", "^[^a]*$"]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]
MAX_VARIANTS = 48
# Other names than those listed count once, since one may come twice: some objects with several are not accepted.
COUNTED = re.compile(r'"minProperties": [2-9]|(?="not"|"if"|"oneOf").*"maxProperties"')


def jsonschema():
    """The package, from a folder beside the others that were fetched if the machine has none."""
    try:
        import jsonschema as module
        return module
    except ImportError:
        pass
    folder = root() / "jsonschema-python"
    if not (folder / "bin/python").exists():
        venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--retries", "2", "--timeout",
               "20", f"{PACKAGE[0]}=={PACKAGE[1]}"]
    if subprocess.run(install, check=False).returncode:
        print("skipped: jsonschema cannot be fetched from PyPI")
        sys.exit(75)
    os.execv(python, [str(python), *sys.argv])


class Maker:
    """Makes schemas and documents. Those of one seed are always the same."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def some(self, choices, most=3):
        return self.random.sample(choices, self.random.randint(1, min(most, len(choices))))

    def value(self, depth, atoms):
        kind = self.random.random()
        if depth == 0 or kind < 0.4:
            return self.random.choice(atoms)
        if kind < 0.65:
            return [self.value(depth - 1, atoms) for _ in range(self.random.randint(0, 3))]
        return {name: self.value(depth - 1, atoms) for name in self.some(NAMES)} if kind < 0.95 else {}

    def of_numbers(self, depth):
        key = self.random.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
        return {"type": self.random.choice(["integer", "number", ["number", "null"]]),
                key: self.random.choice([2, 3, 0.5, 1.5] if key == "multipleOf" else [-1, 0, 1, 2, 0.5])}

    def of_texts(self, depth):
        return self.random.choice([{"minLength": self.random.randint(0, 2)}, {"maxLength": self.random.randint(0, 2)},
                                   {"pattern": self.random.choice(PATTERNS)},
                                   {"type": "string", "pattern": self.random.choice(PATTERNS), "maxLength": 2}])

    def of_arrays(self, depth):
        schema = {"type": "array"} if self.random.random() < 0.7 else {}
        if self.random.random() < 0.4:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.random.randint(1, 2))]
        for key in self.some(["items", "contains", "minItems", "maxItems", "unevaluatedItems", "uniqueItems"]):
            if key == "uniqueItems":
                schema |= {key: True, "items": {"enum": self.some(SCALARS, 4)}}
            elif key.endswith("ms") and key.startswith("m"):
                schema[key] = self.random.randint(0, 3)
            else:
                schema[key] = self.schema(depth - 1)
        if "contains" in schema and self.random.random() < 0.5:
            schema[self.random.choice(["minContains", "maxContains"])] = self.random.randint(0, 2)
        return schema

    def of_objects(self, depth):
        schema = {"type": "object"} if self.random.random() < 0.7 else {}
        kinds = ["properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                 "minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "unevaluatedProperties"]
        for key in self.some(kinds, 4):
            if key in ("properties", "dependentSchemas"):
                schema[key] = {name: self.schema(depth - 1) for name in self.some(NAMES)}
            elif key == "patternProperties":
                schema[key] = {name: self.schema(depth - 1) for name in self.some(PATTERNS, 2)}
            elif key == "required":
                schema[key] = self.some(NAMES, 2)
            elif key == "dependentRequired":
                schema[key] = {name: self.some(NAMES, 2) for name in self.some(NAMES, 2)}
            elif key == "propertyNames":
                schema[key] = self.of_texts(0)
            elif key.endswith("Properties") and key.startswith("m"):
                schema[key] = self.random.randint(0, 3)
            else:
                schema[key] = self.random.choice([False, False, self.schema(depth - 1)])
        return schema

    def of_choices(self, depth):
        key = self.random.choice(["anyOf", "allOf", "oneOf", "not", "if", "oneOf"])
        if key == "not":
            return {key: self.schema(depth - 1)}
        if key == "if":
            parts = {part: self.schema(depth - 1) for part in self.some(["then", "else"], 2)}
            return {key: self.schema(depth - 1), **parts}
        return {key: [self.schema(depth - 1) for _ in range(self.random.randint(1, 3))]}

    def schema(self, depth):
        if depth <= 0 or self.random.random() < 0.1:
            return self.random.choice([True, {}, {"type": self.random.choice(TYPES)}, {"type": self.some(TYPES)},
                                       {"enum": self.some(SCALARS)}, {"const": self.random.choice(SCALARS)},
                                       {"const": self.value(1, SCALARS)}, False])
        makers = [self.of_numbers, self.of_texts, self.of_arrays, self.of_objects, self.of_objects, self.of_choices]
        schema = self.random.choice(makers)(depth)
        if self.random.random() < 0.4:
            schema |= self.random.choice(makers)(depth)
        if self.random.random() < 0.05:
            schema["$ref"] = "#/$defs/part"
        return schema

    def root(self):
        schema = self.schema(3)
        if isinstance(schema, dict) and "#/$defs/part" in json.dumps(schema):
            part = json.dumps(self.schema(1)).replace("#/$defs/part", "#/$defs/end")
            schema["$defs"] = {"part": json.loads(part), "end": {"type": self.some(TYPES)}}
        return schema


def atoms_of(schema):
    """Values that the schema names, for documents that meet it."""
    if isinstance(schema, dict):
        found = list(schema.get("enum", [])) if isinstance(schema.get("enum", []), list) else []
        found += [schema["const"]] if "const" in schema else []
        return found + [atom for part in schema.values() for atom in atoms_of(part)]
    return [atom for part in schema for atom in atoms_of(part)] if isinstance(schema, list) else []


def orders(value):
    """The value with its properties in every order."""
    if isinstance(value, list):
        return ([*items] for items in itertools.product(*(list(orders(item)) for item in value)))
    if not isinstance(value, dict):
        return iter([value])
    return (dict(zip(names, parts)) for names in itertools.permutations(value)
            for parts in itertools.product(*(list(orders(value[name])) for name in names)))


def documents(maker, schema, validator):
    """Texts that are not valid, and lists of texts of one valid document each."""
    atoms = SCALARS + atoms_of(schema)
    valid, invalid = [], []
    for _ in range(80):
        value = maker.value(maker.random.randint(0, 3), atoms)
        group = valid if validator.is_valid(value) else invalid
        if len(group) < 12:
            group.append(value)
    variants = [[json.dumps(order) for order in itertools.islice(orders(value), MAX_VARIANTS + 1)] for value in valid]
    return [json.dumps(value) for value in invalid], [group for group in variants if len(group) <= MAX_VARIANTS]


def judge(program, cases):
    """The number of refused schemas, and what differs."""
    lines = [json.dumps({"schema": json.dumps(schema), "documents": invalid + sum(valid, [])})
             for schema, invalid, valid in cases]
    done = subprocess.run([program], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False)
    if done.returncode:
        return 0, [f"{program}: {done.stderr.strip()[-500:]}"]
    refused, faults = 0, []
    for (schema, invalid, valid), line in zip(cases, done.stdout.splitlines()):
        answer = json.loads(line)
        is_empty = answer.get("error", "").startswith("schema: no value satisfies it")
        if "error" in answer and not is_empty:
            refused += 1
            continue
        verdicts = iter(answer.get("valid", itertools.repeat(False)))
        text = json.dumps(schema)
        faults += [f"accepted, but not valid: {document} by {text}" for document in invalid if next(verdicts)]
        for variants in valid:
            is_accepted = any([next(verdicts) for _ in variants])
            if not is_accepted and not COUNTED.search(text):
                faults.append(f"valid, but not accepted: {variants[0]} by {text}")
    return refused, faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    validators = jsonschema()
    maker = Maker(options.seed)
    cases, num_valid, num_invalid = [], 0, 0
    for _ in range(options.schemas):
        schema = maker.root()
        invalid, valid = documents(maker, schema, validators.Draft202012Validator(schema))
        num_valid, num_invalid = num_valid + len(valid), num_invalid + len(invalid)
        cases.append((schema, invalid, valid))
    refused, faults = judge(options.program, cases)
    for fault in faults[:20]:
        print(fault)
    print(f"{options.schemas} schemas, {refused} refused; {num_valid} valid documents, {num_invalid} others; "
          f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
