"""docs/results.schema.json is what the code says, and results satisfy it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from measured import everything

from outrider.measure.results import Record, Results
from outrider.measure.schema import document, text

DOCS = Path(__file__).parents[2] / "docs"


def test_the_documented_schema_is_current() -> None:
    kept = (DOCS / "results.schema.json").read_text("utf-8")
    assert kept == text(), "write it anew: python -m outrider.measure.schema docs/results.schema.json"


def check(value: Any, schema: dict[str, Any], defs: dict[str, Any], where: str = "") -> None:
    """As much of JSON schema as the document uses."""
    if "$ref" in schema:
        check(value, defs[schema["$ref"].rpartition("/")[2]], defs, where)
        return
    if "anyOf" in schema:
        kinds = [one for one in schema["anyOf"] if (one.get("type") == "null") == (value is None)]
        assert kinds, where
        check(value, kinds[0], defs, where)
        return
    if "prefixItems" in schema:
        for place, (one, kind) in enumerate(zip(value, schema["prefixItems"], strict=True)):
            check(one, kind, defs, f"{where}[{place}]")
        return
    kinds_of = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "boolean": bool,
                "null": type(None)}  # fmt: skip
    if "type" in schema:
        assert isinstance(value, kinds_of[schema["type"]]), where
    assert "enum" not in schema or value in schema["enum"], where
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        assert set(schema.get("required", ())) <= set(value), where
        for name, one in value.items():
            if name in properties:
                check(one, properties[name], defs, f"{where}.{name}")
            elif isinstance(schema.get("additionalProperties"), dict):
                check(one, schema["additionalProperties"], defs, f"{where}.{name}")
            else:
                assert schema.get("additionalProperties") is not False, f"{where}.{name}"
    elif schema.get("type") == "array" and "items" in schema:
        for place, one in enumerate(value):
            check(one, schema["items"], defs, f"{where}[{place}]")


def test_results_satisfy_it() -> None:
    results, samples = everything(2)
    whole = document()
    check(json.loads(results.model_dump_json()), whole, whole["$defs"])
    for sample in samples:
        check(json.loads(sample.model_dump_json()), {"$ref": "#/$defs/Sample"}, whole["$defs"])


def _names(record: type[Record], seen: set[type[Record]]) -> set[str]:
    """Every field of a record and of the records in it."""
    seen.add(record)
    names = set(record.model_fields)
    for kind in Record.__subclasses__():
        if kind not in seen and kind.__module__ == Results.__module__:
            names |= _names(kind, seen)
    return names


def test_every_figure_is_defined_in_the_documentation() -> None:
    defined = set(re.findall(r"`([a-z0-9_]+)`", (DOCS / "measuring.md").read_text("utf-8")))
    assert _names(Results, set()) <= defined
