"""Run ``snakemake --lint`` and fail on every finding that is not accepted here, with the reason."""

import re
import subprocess
import sys

ACCEPTED = {
    "Specify a conda environment or container for each rule.": (
        "The rules' scripts run in the workflow environment, which is pinned with hashes in envs/workflow.lock; the model "
        "environment is itself the output of a rule, because its list depends on the hardware that was probed."
    ),
}


def main() -> int:
    """Run the linter; return the exit code."""
    done = subprocess.run(["snakemake", "--lint"], capture_output=True, text=True)
    text = done.stdout + done.stderr
    found = re.findall(r"^ +\* (.+?):?$", text, re.MULTILINE)
    if not found and done.returncode != 0:
        print(text)
        return 1
    unknown = [finding for finding in found if finding not in ACCEPTED]
    for finding in unknown:
        print(f"snakemake --lint: {finding}")
    print(f"snakemake --lint: {len(found) - len(unknown)} accepted findings, {len(unknown)} others")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
