"""The generated files are up to date and name everything that the code has."""

from __future__ import annotations

import argparse
import json
import re

import jsonschema
import pytest

from builders.paths import ROOT
from servemark.cli import reference
from servemark.config.cluster import Site
from servemark.config.model import Config
from servemark.config.workload import KINDS, Load
from servemark.records import ALL_RECORDS
from servemark.report.columns import COLUMNS


def test_generated_files_are_up_to_date():
    found = reference.texts(ROOT)
    assert [str(path) for path, text in found.items() if (ROOT / path).read_text() != text] == [], "run make generate"
    assert {path.name for path in (ROOT / "workflow/schemas").iterdir()} == {path.name for path in found if "schemas" in path.parts}


def test_writing_replaces_only_the_tables_of_the_page(tmp_path):
    page = tmp_path / reference.CONFIGURATION
    page.parent.mkdir(parents=True)
    tables = [f"{first}\nSTALE\n{last}" for first, last in reference.MARKS.values()]
    page.write_text("\n".join(["before", *tables, "after\n"]))
    reference.write(tmp_path)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "STALE" not in text
    assert all("\n".join(reference.key_table(model)) in text for model in (Config, Site))
    assert json.loads((tmp_path / "config" / "schema.json").read_text()) == reference.json_schema()


MARKS = [mark for pair in reference.MARKS.values() for mark in pair]


@pytest.mark.parametrize("number", range(len(MARKS)))
def test_page_without_one_of_the_marks_is_refused(number):
    with pytest.raises(ValueError, match=MARKS[number]):
        reference.with_tables("\n".join(MARKS[:number]))


@pytest.mark.parametrize(("model", "least"), [(Config, 40), (Site, 25)])
def test_every_key_has_a_meaning(model, least):
    rows = [line for line in reference.key_table(model) if line.startswith("| `")]
    assert len(rows) > least
    for row in rows:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
        assert len(cells) == 4 and all(cells), row


def test_each_form_of_a_workload_has_a_table_of_its_own_keys():
    first, *others = "\n".join(reference.key_table(Config)).split("\n### ")
    keys = [re.findall(r"^\| `workloads\.NAME\.(\S+)` ", part, re.MULTILINE) for part in (first, *others)]
    assert [part.partition("\n")[0] for part in others] == [f"A workload with {forms}" for forms, _ in reference.WORKLOADS]
    assert [kind for _, kind in reference.WORKLOADS] == list(KINDS.values())
    assert all(own[0] == "dataset" and len(set(own)) == len(own) for own in keys[1:])
    assert set(keys[0]) >= set(Load.model_fields) and not any(set(keys[0]) & set(own) for own in keys[1:])


@pytest.mark.parametrize("model", [Config, Site])
def test_schema_closes_every_mapping_of_fixed_keys(model):
    schema = reference.json_schema(model)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$schema"].endswith("2020-12/schema") and schema["title"]
    for part in (schema, *schema["$defs"].values()):
        assert part["additionalProperties"] is False
        assert all(field.get("description") for field in part["properties"].values())


def test_every_column_has_a_meaning():
    assert [column.name for column in COLUMNS if not column.meaning] == []


def test_every_record_and_every_field_has_a_row():
    page = reference.records()
    for record in ALL_RECORDS:
        part = page.partition(f"## {record.KIND}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \| .+ \|", part, re.MULTILINE) == list(record.model_fields)


def test_command_shows_its_arguments():
    parser = argparse.ArgumentParser(prog="tool")
    one = parser.add_subparsers().add_parser("look", help="look at a file")
    one.add_argument("file")
    one.add_argument("-o", "--output", help="where | to")
    one.add_argument("--json", action="store_true", help="as JSON")
    page = reference.command_line(parser)
    assert "## tool look\n\nLook at a file.\n\n    tool look FILE [--output OUTPUT] [--json]\n" in page
    assert "| `--output OUTPUT` | where \\| to |" in page
