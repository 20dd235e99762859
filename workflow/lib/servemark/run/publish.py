"""Run a user's command with the path of the sealed archive: ``publish`` of the configuration."""

from collections.abc import Mapping
from pathlib import Path

from servemark.config.after import with_archive
from servemark.deployment.stage import Stage
from servemark.errors import ServemarkError
from servemark.processes.children import ToolResult, run_tool

TIMEOUT_S = 24 * 3600.0
"""An upload of the largest archive, 16 GiB, takes 18 hours at 2 Mbit/s."""
_QUOTED = 5


class PublishFailed(ServemarkError):
    """The command failed. Results and archive are complete."""

    default_reason = "publish_failed"


def publish(command: tuple[str, ...], archive: Path, stage: Stage, environ: Mapping[str, str]) -> ToolResult:
    """Run the command to its end. Its output goes to the stage's log.

    Args:
        archive: absolute path of the archive. Its digest is in the file next to it.
        environ: the command's environment; SERVEMARK_ARCHIVE, SERVEMARK_SHA256 and SERVEMARK_RUN are added.

    Raises:
        PublishFailed: the command cannot be started or exits with another code than 0.
    """
    sha256 = sha256_of(archive)
    run = archive.name.removesuffix(".tar.zst")
    env = {**environ, "SERVEMARK_ARCHIVE": str(archive), "SERVEMARK_SHA256": sha256, "SERVEMARK_RUN": run}
    do = f"{archive} is complete. Repair the command or the key `publish`, and rerun snakemake: only the command runs again."
    try:
        done = run_tool(with_archive(command, str(archive)), log=stage.log, env=env, timeout_s=TIMEOUT_S, watch=stage.watch)
    except OSError as error:
        raise PublishFailed(f"The command of `publish`, {command[0]}, cannot be started: {error.strerror}.", do=do) from None
    if done.stopped or done.exit_code:
        how = done.stopped or (f"exit code {done.exit_code}" if done.exit_code > 0 else f"signal {-done.exit_code}")
        said = stage.log.read_text(errors="replace").strip().splitlines()[-_QUOTED:]
        what = "\n".join([f"The command of `publish`, {command[0]}, failed: {how}.", *(f"  {line}" for line in said)])
        raise PublishFailed(what, look=str(stage.log), do=do)
    return done


def sha256_of(archive: Path) -> str:
    """Return the digest in the file next to an archive."""
    return archive.with_name(f"{archive.name}.sha256").read_text().split()[0]
