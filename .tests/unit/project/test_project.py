"""Rules of the project: generated files are up to date, every rule is documented and logged, git holds no large files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from builders.paths import ROOT
from servemark.cli import main as cli
from servemark.records import ALL_RECORDS, Check, Plans, schemas


def tracked() -> list[Path]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name]


def test_every_stage_is_a_rule(rules):
    stages = """probe_hardware build_environment check_environment stage_weights plan_deployment start_cluster serve_model
        await_ready measure stop_deployment collect_measurements write_report archive_results check_measurements"""
    assert set(stages.split()) <= set(rules)


def test_every_rule_has_a_docstring_and_named_inputs_and_outputs(rules):
    assert [rule.name for rule in rules.values() if not rule.documented or rule.unnamed] == []


def test_every_rule_with_outputs_has_a_script_a_log_and_a_benchmark(rules):
    stages = [rule for rule in rules.values() if rule.outputs]
    assert [rule.name for rule in stages if not (rule.script and rule.has_log and rule.has_benchmark)] == []
    # The other rules are targets and run nothing.
    assert {rule.name for rule in rules.values() if rule.script} == {rule.name for rule in stages}


def test_every_script_belongs_to_the_rule_of_its_name(rules):
    scripts = {path.name for path in (ROOT / "workflow" / "scripts").glob("*.py")}
    assert {rule.script for rule in rules.values() if rule.script} == scripts
    assert all(rules[Path(script).stem].script == script for script in scripts)


def test_the_architecture_page_names_every_rule(rules):
    page = (ROOT / "workflow" / "README.md").read_text()
    stages = [rule.name for rule in rules.values() if rule.script in (None, f"{rule.name}.py")]
    assert [name for name in stages if not re.search(rf"\b{name}\b", page)] == []


def test_scripts_are_adapters():
    lengths = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "workflow" / "scripts").glob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 45} == {}


def test_schemas_match_the_types():
    written = {path.name: path.read_text() for path in (ROOT / "workflow" / "schemas").glob("*.json")}
    assert written == schemas.texts(), "run: make generate"
    assert len(written) == len(ALL_RECORDS)


def test_record_fits_only_its_own_schema():
    schema = schemas.record_schema(Plans)
    record = {"kind": "plans", "version": 1, "load_points": {"a": 2}}
    jsonschema.validate(record, schema)
    for wrong in (
        {**record, "kind": "plan"},
        {**record, "version": 2},
        {**record, "more": 1},
        {"kind": "plans", "version": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
    jsonschema.Draft202012Validator.check_schema(schemas.record_schema(Check))


def test_no_large_file_except_locks_and_archives():
    sizes = {p.name: p.stat().st_size for p in tracked() if p.is_file() and p.suffix != ".lock"}
    archives = {p.name for folder in (".tests/fixtures/archives", "docs/benchmarks/archives") for p in (ROOT / folder).iterdir()}
    assert {name: size for name, size in sizes.items() if size > 2**20 * (2 if name in archives else 1)} == {}


def test_lock_files_have_hashes_and_name_no_index():
    for lock in (ROOT / "envs").glob("*.lock"):
        text = lock.read_text()
        requirements = re.findall(r"^[A-Za-z0-9][^\n]*==.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
        assert len(requirements) > 10, lock
        assert all("--hash=sha256:" in requirement for requirement in requirements), lock
        assert not re.search(r"https?://|--index|--find-links", text), lock


def test_make_targets_in_documents_and_workflows_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / ".github").rglob("*.*"))]
    named = {name for path in files for name in re.findall(r"\bmake ([a-z-]+)\b", path.read_text())}
    assert "test-unit" in named
    assert named <= targets | {"it"}


def test_check_prints_a_summary_of_a_configuration(capsys):
    assert cli.main(["check", str(ROOT / "config" / "config.yaml")]) == 0
    assert "ray-tp2: model tiny, environment cpu, executor ray, 2 rank(s), 6 load points" in capsys.readouterr().out


def test_closed_output_pipe_gives_no_traceback(tmp_path):
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "servemark.cli", "check", str(ROOT / "config" / "config.yaml")]
    done = subprocess.run(argv, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_check_exits_with_2_and_names_the_line_of_a_mistake(tmp_path, capsys):
    bad = tmp_path / "bad.yaml"
    bad.write_text((ROOT / "config" / "config.yaml").read_text().replace("output_tokens:", "output_token:"))
    assert cli.main(["check", str(bad)]) == 2
    said = capsys.readouterr().err
    assert "bad.yaml:" in said and "output_tokens" in said and "Traceback" not in said


def test_generate_writes_what_is_committed(tmp_path):
    pages = [f"docs/reference/{name}.md" for name in ("configuration", "columns", "command-line", "reasons", "records")]
    (tmp_path / pages[0]).parent.mkdir(parents=True)
    (tmp_path / pages[0]).write_text((ROOT / pages[0]).read_text())
    assert cli.main(["generate", str(tmp_path)]) == 0
    for name in ("config/schema.json", "workflow/schemas/plan.schema.json", *pages):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
