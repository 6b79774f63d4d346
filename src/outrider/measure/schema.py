"""The JSON schema of a run's files, for those who read them without Outrider.

usage: python -m outrider.measure.schema docs/results.schema.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pydantic.json_schema import models_json_schema

from .results import SCHEMA, Results, Sample


def document() -> dict[str, Any]:
    """A schema of `results.json`, with that of a line of `samples.jsonl` as `#/$defs/Sample`."""
    _, whole = models_json_schema(
        [(Results, "serialization"), (Sample, "serialization")], ref_template="#/$defs/{model}"
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Outrider results, schema version {SCHEMA}",
        "$ref": "#/$defs/Results",
        "$defs": whole["$defs"],
    }


def text() -> str:
    """The document as it is kept in the documentation."""
    return json.dumps(document(), indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text(), encoding="utf-8")
