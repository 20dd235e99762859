"""Make .venv independent of the checkout's path.

``.venv/bin/python -I envs/finish_setup.py``, after packages were installed. pip writes the folder's name into an editable install and
into the first line of every script. Python reads the .pth file in the locale's encoding (site.py), so that with ``LC_ALL=C`` no interpreter
starts below a name with an umlaut. In a script's first line the kernel takes no interpreter with a space, or beyond 127 bytes
(execve(2)), and a shell misreads quotes. So neither file gets the name.
"""

import os
import re
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ("snakemake-executor-plugin-slurm-guarded", "snakemake-logger-plugin-servemark")
PACKAGES = ("workflow/lib", *(f"plugins/{name}/src" for name in PLUGINS))
# For the shell, the second line starts the script again by the interpreter beside it; for Python it is the beginning of a text.
START = b"""#!/bin/sh
'''exec' env PYTHONUTF8=1 "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
# What pip begins a script with, by the length and the spaces of the folder's name.
BY_PIP = re.compile(rb"#!/bin/sh\n'''exec' .*\n' '''\n|#!.*/python[\d.]*\n")
COMMAND = b"""import sys
from servemark.cli.main import main

sys.exit(main())
"""


def find_packages(site: Path) -> None:
    """Put our packages on the path of .venv's interpreter: relative to ``site``, unless .venv is a link to somewhere else.

    Snakemake finds the two plugins there as it finds any plugin: by the name of its package.
    """
    folders = [ROOT / folder for folder in PACKAGES]
    if site.resolve().is_relative_to(ROOT):
        folders = [Path(os.path.relpath(folder, site)) for folder in folders]
    (site / "servemark.pth").write_text("".join(f"{folder}\n" for folder in folders))


def start_scripts(scripts: Path) -> None:
    """Rewrite the beginning of every script that pip has made, and add the command ``servemark``."""
    (scripts / "servemark").write_bytes(START + COMMAND)
    (scripts / "servemark").chmod(0o755)
    for script in scripts.iterdir():
        if script.is_file() and not script.is_symlink() and (found := BY_PIP.match(text := script.read_bytes())):
            mode = script.stat().st_mode
            new = script.with_name(f"{script.name}.new")
            new.write_bytes(START + text[found.end() :])
            new.chmod(mode)
            new.replace(script)


if __name__ == "__main__":
    find_packages(Path(sysconfig.get_path("purelib")))
    start_scripts(Path(sys.prefix, "bin"))
