"""Files of ``--configfile`` are checked before Snakemake reads them."""

from __future__ import annotations

import pytest

from builders.config_text import BASE
from servemark.config.load import check_configfiles


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(BASE)
    (tmp_path / "bad.yaml").write_text("- a\n")


@pytest.mark.parametrize("program", ["/x/bin/snakemake", "snakemake", "/x/snakemake/__main__.py"])
@pytest.mark.parametrize(
    "arguments",
    [
        "--configfile bad.yaml",
        "--configfile=bad.yaml",
        "--configfiles good.yaml bad.yaml --cores 1",
        "-n --cores 2 --config run=b --configfile good.yaml bad.yaml -- all",
        "--configfile good.yaml --configfile none.yaml",
    ],
)
def test_bad_file_ends_snakemake_with_exit_code_2(capsys, program, arguments):
    with pytest.raises(SystemExit) as caught:
        check_configfiles([program, *arguments.split()])
    assert caught.value.code == 2
    assert "servemark: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "snakemake",
        "snakemake --configfile",
        "snakemake --configfile good.yaml --cores 1",
        "snakemake --configfile bad.yaml --configfile good.yaml",
        "snakemake --config configfile=bad.yaml",
        "pytest --configfile bad.yaml",
        "",
    ],
)
def test_other_command_lines_are_accepted(command):
    check_configfiles(command.split())
