"""Make .venv independent of the checkout's path, and compile our packages.

Run ``.venv/bin/python -I envs/finish_setup.py`` after each installation of packages. pip writes the folder's name into editable installs
(.pth files) and into the first line of every script. Python reads .pth files in the locale's encoding (site.py): with ``LC_ALL=C`` no
interpreter starts below a name with an umlaut. In a script's first line the kernel accepts no interpreter with a space or with more than
127 bytes (execve(2)), and a shell misreads quotes. So this script removes the name from both.

Each job of a run is a process. Where PYTHONDONTWRITEBYTECODE is set, as in many images, each would compile our packages again.
"""

import compileall
import os
import re
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = ("snakemake-executor-plugin-slurm-guarded", "snakemake-logger-plugin-servemark")
PACKAGES = ("workflow/lib", *(f"plugins/{name}/src" for name in PLUGINS))
# For the shell, the second line starts the script again with the interpreter in its folder; for Python it begins a string.
START = b"""#!/bin/sh
'''exec' env PYTHONUTF8=1 "$(dirname -- "$(realpath -- "$0")")/python" "$0" "$@"
' '''
"""
# The two forms in which pip begins a script, by the length and the spaces of the folder's name.
BY_PIP = re.compile(rb"#!/bin/sh\n'''exec' .*\n' '''\n|#!.*/python[\d.]*\n")
COMMAND = b"""import sys
from servemark.cli.main import main

sys.exit(main())
"""


def find_packages(site: Path) -> None:
    """Put our packages on the path of .venv's interpreter: relative to ``site``, unless .venv is a link to another place.

    Snakemake finds the two plugins there by the names of their packages, like any plugin.
    """
    folders = [ROOT / folder for folder in PACKAGES]
    if site.resolve().is_relative_to(ROOT):
        folders = [Path(os.path.relpath(folder, site)) for folder in folders]
    (site / "servemark.pth").write_text("".join(f"{folder}\n" for folder in folders))


def start_scripts(scripts: Path) -> None:
    """Rewrite the beginning of every script from pip, and add the command ``servemark``."""
    (scripts / "servemark").write_bytes(START + COMMAND)
    (scripts / "servemark").chmod(0o755)
    for script in scripts.iterdir():
        if script.is_file() and not script.is_symlink() and (found := BY_PIP.match(text := script.read_bytes())):
            mode = script.stat().st_mode
            new = script.with_name(f"{script.name}.new")
            new.write_bytes(START + text[found.end() :])
            new.chmod(mode)
            new.replace(script)


def compile_packages() -> None:
    """Write the bytecode of our packages next to them. In a folder without write access, Python compiles them at each start."""
    for folder in PACKAGES:
        compileall.compile_dir(ROOT / folder, quiet=2)


if __name__ == "__main__":
    find_packages(Path(sysconfig.get_path("purelib")))
    start_scripts(Path(sys.prefix, "bin"))
    compile_packages()
