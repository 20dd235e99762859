"""JSON schemas of all records, generated from their types."""

import json
from typing import Any

from servemark.records import ALL_RECORDS, Record


def record_schema(record: type[Record]) -> dict[str, Any]:
    """Return the schema (draft 2020-12) of one record's file, ``kind`` and ``version`` included."""
    schema = record.model_json_schema(mode="serialization")
    own = {"kind": {"const": record.KIND}, "version": {"const": record.VERSION}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "properties": own | schema["properties"],
        "required": ["kind", "version", *schema.get("required", [])],
    }


def texts() -> dict[str, str]:
    """Return the text of each schema by file name."""
    return {f"{record.KIND}.schema.json": json.dumps(record_schema(record), indent=2, ensure_ascii=False) + "\n" for record in ALL_RECORDS}
