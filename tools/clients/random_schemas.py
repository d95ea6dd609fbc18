"""Schemas for the judge of structured output: random ones of every keyword that is enforced.

Every text, list and number of names has a limit, so that a model that draws tokens at random ends most answers.
Standard library only.
"""

import random

PATTERNS = ["^[A-Z]{2,4}-[0-9]{1,5}$", "^(red|green|blue)$", "^[a-z]+@[a-z]+\\.(org|net)$", "^\\d{4}$",
            "^x[^\"\\\\]{0,4}y$", "^[\\u00e4-\\u00fc]{1,3}$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]
NAMES = ["id", "name", "colour", "is_open", "größe", "a b", "quote\"d", "tab\t", "x-1", "日本", "value", "tags"]
VALUES = ["red", "blau", "日本", "a\"b", "line\nend", "", 0, -7, 12.5, True, False, None, [], [1, "x"], {"k": "v"}]
TREE = {"type": "object", "required": ["leaf"], "additionalProperties": False, "properties": {
    "leaf": {"type": "boolean"}, "children": {"type": "array", "maxItems": 2, "items": {"$ref": "#/$defs/tree"}}}}
POINT = {"type": "object", "required": ["x", "y"], "additionalProperties": False, "properties": {
    "x": {"type": "integer", "minimum": -99, "maximum": 99}, "y": {"type": "integer", "minimum": 0, "maximum": 9}}}
DEFINITIONS = {"tree": TREE, "point": POINT}


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self):
        kind = self.random.randrange(4)
        if kind == 0:
            return {"type": "string", "pattern": self.random.choice(PATTERNS)}
        if kind == 1:
            return {"type": "string", "format": self.random.choice(FORMATS)}
        most = self.random.randint(0, 12)
        schema = {"type": "string", "maxLength": most}
        return schema | ({"minLength": self.random.randint(0, most)} if kind == 2 else {})

    def number(self):
        kind = self.random.choice(["integer", "number"])
        low, high = sorted(self.random.sample(range(-1000, 1000), 2))
        schema = {"type": kind, self.random.choice(["minimum", "exclusiveMinimum"]): low,
                  self.random.choice(["maximum", "exclusiveMaximum"]): high + 3}
        if kind == "number":
            schema["maximum"] = high + 3.25
        elif self.random.random() < 0.3:
            schema["multipleOf"] = self.random.choice([1, 2, 3, 7])
            schema |= {"maximum": high + 20}
        return schema

    def listed(self):
        values = self.random.sample(VALUES, self.random.randint(1, 5))
        return self.random.choice([{"enum": values}, {"const": values[0]}])

    def short(self):
        return {"type": self.random.choice([["boolean", "null"], "boolean", "null"])}

    def array(self, depth):
        if self.random.random() < 0.3:
            items = [self.value(depth - 1) for _ in range(self.random.randint(1, 3))]
            return {"type": "array", "prefixItems": items, "items": False,
                    "minItems": self.random.randint(0, len(items))}
        most = self.random.randint(1, 4)
        return {"type": "array", "items": self.value(depth - 1), "minItems": self.random.randint(0, most),
                "maxItems": most}

    def object(self, depth):
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        schema = {"type": "object", "properties": {name: self.value(depth - 1) for name in names},
                  "required": self.random.sample(names, self.random.randint(0, len(names))),
                  "additionalProperties": False}
        if self.random.random() < 0.2:
            schema["minProperties"] = self.random.randint(0, len(names))
        return schema

    def dictionary(self, depth):
        """Names that are not given: few and short, since a name has no limit but this."""
        kind = self.random.randrange(3)
        schema = {"type": "object", "maxProperties": self.random.randint(1, 3)}
        if kind == 0:
            return schema | {"patternProperties": {"^k[0-9]$": self.value(depth - 1)}, "additionalProperties": False}
        if kind == 1:
            return schema | {"additionalProperties": self.value(depth - 1), "propertyNames": {"maxLength": 6}}
        return schema | {"additionalProperties": self.value(depth - 1), "propertyNames": {"enum": ["u", "v", "w"]}}

    def combination(self, depth):
        kind = self.random.randrange(3)
        if kind == 0:
            return {"anyOf": [self.value(depth - 1) for _ in range(self.random.randint(2, 3))]}
        if kind == 1:
            all_types = [self.text(), self.number(), self.short(), self.array(depth - 1)]
            return {"oneOf": all_types[:self.random.randint(2, 4)]}
        return {"allOf": [{"type": "integer", "minimum": self.random.randint(-50, 0)},
                          {"maximum": self.random.randint(1, 50)}]}

    def reference(self):
        return {"$ref": f"#/$defs/{self.random.choice(sorted(DEFINITIONS))}"}

    def value(self, depth):
        flat = [self.text, self.number, self.listed, self.short]
        deep = [self.object, self.array, self.dictionary, self.combination]
        if depth > 0 and self.random.random() < 0.45:
            return self.random.choice(deep)(depth)
        return self.reference() if depth > 0 and self.random.random() < 0.1 else self.random.choice(flat)()

    def schema(self):
        schema = self.object(3) if self.random.random() < 0.7 else self.random.choice(
            [self.array, self.dictionary, self.combination])(3)
        return {"$defs": DEFINITIONS} | schema


def schemas(count):
    return [Maker(seed).schema() for seed in range(count)]
