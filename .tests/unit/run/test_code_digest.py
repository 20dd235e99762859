"""Files that decide what a stage writes: found from imports, and a parameter of each rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from builders.paths import ROOT
from servemark.run import code_digest

WORKFLOW = ROOT / "workflow"
LIBRARY, SCRIPTS = WORKFLOW / "lib", WORKFLOW / "scripts"
MODULES = sorted([*LIBRARY.glob("servemark/**/*.py"), *Path(code_digest.plugin.__path__[0]).glob("*.py")])
# Their records report what happened in a live deployment; without a start they repeat it.
LIVE = {"start_cluster", "check_fabric", "serve_model", "await_ready", "stop_deployment", "hold_endpoint"}
RULES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


def of_rule(rule: str) -> set[str]:
    """Return a rule's dependencies in addition to its script, without the package's name."""
    return {name.removeprefix("servemark.") for name in code_digest.files(SCRIPTS / f"{rule}.py", LIBRARY)} - {f"{rule}.py"}


@pytest.mark.parametrize("path", [*MODULES, *SCRIPTS.glob("*.py")], ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_pattern_finds_the_imports_that_python_finds(path: Path):
    parsed = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            parsed |= {(alias.name, None) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the pattern does not find relative imports"
            parsed |= {(str(node.module), alias.name) for alias in node.names}
    ours = (code_digest.PACKAGE, code_digest.plugin.__name__)
    assert set(code_digest.imports(path)) == {one for one in parsed if one[0].split(".")[0] in ours}


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Path]:
    """A script and a library of a few modules."""
    library = tmp_path / "lib"
    texts = {
        "records/__init__.py": "from servemark.records.plan import Plan\nfrom servemark.records.ready import (\n    Ready,  # a token\n)\n",
        "records/plan.py": "from servemark import progress\n",
        "records/ready.py": "",
        "figures.py": "def late():\n    from servemark.rounding import to_places as places\n",
        "rounding.py": "import servemark.words\n",
        "words.py": "",
        "unused.py": "from servemark import figures\n",
        "progress.py": "from servemark import unused\n",
        "report/page.py": "",
    }
    for name, text in texts.items():
        path = library / "servemark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (library / "servemark" / "__init__.py").touch()
    (tmp_path / "templates" / "parts").mkdir(parents=True)
    (tmp_path / "templates" / "parts" / "head.html.j2").touch()
    script = tmp_path / "stage.py"
    script.write_text("from servemark import figures\nfrom servemark.records import Plan\nfrom servemark.report import page\n")
    return script, library


REACHED = {
    "stage.py",
    "servemark.figures",
    "servemark.rounding",
    "servemark.words",
    "servemark.records.plan",
    "servemark.report.page",
    "templates/parts/head.html.j2",
}


def test_imports_lead_to_defining_module_but_not_into_apart(small: tuple[Path, Path]):
    assert code_digest.files(*small).keys() == REACHED


@pytest.mark.parametrize("name", sorted(REACHED))
def test_digest_changes_with_each_file_that_counts(small: tuple[Path, Path], name: str):
    before = code_digest.digest(*small)
    code_digest.files(*small)[name].open("a").write("# edited\n")
    assert code_digest.digest(*small) != before


def test_digest_ignores_other_files_and_times(small: tuple[Path, Path]):
    script, library = small
    before = code_digest.digest(script, library)
    for name in ("unused", "progress", "records/__init__", "records/ready"):
        (library / "servemark" / f"{name}.py").open("a").write("# edited\n")
    script.touch()
    assert code_digest.digest(script, library) == before


def test_digest_changes_with_a_new_file(small: tuple[Path, Path]):
    before = code_digest.digest(*small)
    (small[1].parent / "templates" / "foot.html.j2").touch()
    assert code_digest.digest(*small) != before


def test_each_rule_has_a_digest_unless_it_is_of_a_live_deployment(rules):
    expected = {rule: None if rule in LIVE else code_digest.digest(SCRIPTS / f"{rule}.py", LIBRARY) for rule in RULES}
    assert {rule: rules[rule].code for rule in RULES} == expected


def test_early_rules_depend_on_few_modules():
    """A change of an early rule runs all later rules again, so their dependencies are listed here."""
    assert of_rule("probe_hardware") == {
        "machine.hardware", "machine.visible_gpus", "records.base", "records.inputs", "records.options", "planning.node_share"
    }  # fmt: skip
    assert of_rule("build_environment") == {
        "environments.build", "environments.bytecode_cache", "environments.container", "environments.images", "environments.installed",
        "environments.interpreter", "environments.lockfiles", "environments.own_lock", "environments.registry", "files.content",
        "records.base", "records.inputs", "records.options", f"{code_digest.plugin.__name__}.secret_names",
    }  # fmt: skip
    assert of_rule("check_environment") == {
        "environments.build", "environments.bytecode_cache", "environments.check", "environments.images", "environments.installed",
        "environments.interpreter", "environments.known_options", "environments.lockfiles", "environments.options", "environments.own_lock",
        "files.content", "lib/servemark/environments/vllm-options/0.19.1.json", "lib/servemark/environments/vllm-options/0.32.0.json",
        "lib/servemark/in_model_env/check_environment.py", "lib/servemark/in_model_env/list_options.py", "machine.visible_gpus",
        "records.base", "records.inputs", "records.options", f"{code_digest.plugin.__name__}.secret_names",
    }  # fmt: skip
    assert {name.split(".")[0] for name in of_rule("stage_weights")} == {"files", "records", "weights"}
    assert {name.split(".")[0] for name in of_rule("plan_deployment")} == {
        "datasets", "environments", "files", "launch", "machine", "measurement", "planning", "records", code_digest.plugin.__name__,
        "variables", "weights", "lib/servemark/in_model_env/random_weights/servemark_random_weights-1", "lib/servemark/planning/advice",
        "lib/servemark/planning/devices",
    }  # fmt: skip


def test_rule_depends_on_its_modules_of_the_slurm_plugin():
    name = code_digest.plugin.__name__
    assert {f"{name}.job_accounts", f"{name}.queries", f"{name}.states"} <= of_rule("account_allocation")
    assert f"{name}.commands" not in of_rule("write_report")


@pytest.mark.parametrize("rule", sorted(set(RULES) - LIVE))
def test_no_rule_depends_on_modules_apart(rule: str):
    reached = of_rule(rule)
    assert reached & {"records.base", "records.plan"}
    assert not [name for name in reached if re.match(r"(run|progress|supervisor|processes|config|launch\.[a-q]|in_model_env)\b", name)]


def test_modules_apart_exist_and_each_template_counts():
    for name in code_digest.NOT_FOLLOWED:
        place = LIBRARY.joinpath(*name.split("."))
        assert place.is_dir() or place.with_suffix(".py").is_file(), name
    templates = {path.relative_to(WORKFLOW).as_posix() for path in WORKFLOW.glob("templates/**/*") if path.is_file()}
    assert templates and templates <= of_rule("write_report")
    other = [path for path in LIBRARY.glob("servemark/**/*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    data_files = {
        match.resolve()
        for module, patterns in code_digest.DATA_FILES.items()
        for pattern in patterns.split()
        for match in _folder(module).glob(pattern)
    }
    tests_only = {LIBRARY / "servemark" / "measurement" / "formats.yaml"}
    assert set(other) - tests_only <= data_files, "name each file that a module reads in DATA_FILES"


def _folder(module: str) -> Path:
    place = LIBRARY.joinpath(*module.split("."))
    return place if place.is_dir() else place.parent
