"""check_accuracy: one accuracy check of a live deployment, from the store of finished checks or with lm-eval."""

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from servemark.config import asked_checks
from servemark.deployment import attempts
from servemark.deployment.context import StageContext
from servemark.deployment.launcher import Launcher
from servemark.deployment.measure import Measuring, death, gone
from servemark.deployment.watch import ServerWatch, scraper
from servemark.environments import bytecode_cache
from servemark.errors import ServemarkError
from servemark.files import storage
from servemark.launch import command_lines
from servemark.measurement import accuracy, accuracy_key, reasons
from servemark.measurement.accuracy import RESULT, STAGE, Checks
from servemark.measurement.ledger import Ledger, file_sha256
from servemark.measurement.verdict import ServerFacts
from servemark.processes.children import ToolResult
from servemark.records import Accuracy, Environment, Failure, PlannedCheck, Ready, utc_now
from servemark.supervisor.process_request import DaemonRequest

# What lm-eval's libraries write if they cannot fetch a task's data.
_UNREACHABLE = re.compile(
    r"OfflineModeIsEnabled|LocalEntryNotFoundError|Couldn't reach|Couldn't find cache for|Temporary failure in name resolution|ConnectError"
)


@dataclass(frozen=True)
class Checking:
    """Runs the accuracy checks of one deployment. ``environment``: lm-eval's."""

    here: StageContext
    store: Checks
    environment: Environment

    def run(self, name: str, ready_path: Path, folder: Path) -> Accuracy:
        """Return the record of a planned check, and copy lm-eval's result file to ``folder``.

        A failure ends neither the rule nor, unless a server died or hung, the deployment: the record states it.
        """
        here, check = self.here, next(one for one in self.here.plan.checks if one.name == name)
        folder.mkdir(parents=True, exist_ok=True)
        if found := self.store.find(check.key):
            record, result = found
            here.progress.say(f"{name}: checked before, taken from the ledger")
            here.check()
            shutil.copyfile(result, folder / RESULT)
            return record.model_copy(update={"deployment": here.plan.deployment, "check": check})
        measuring = Measuring(here, Ledger(here.config.ledger_folder))
        ready, failure = measuring.live(ready_path)
        if ready is None or failure:
            attempt = attempts.latest(here.deployment)
            return self._failed(check, failure or gone(attempt, "this check ran"), attempt)
        return self._check(check, ready, folder, measuring)

    def _check(self, check: PlannedCheck, ready: Ready, folder: Path, measuring: Measuring) -> Accuracy:
        assert ready.attempt and ready.key_file, "a live deployment's live record is complete"
        here, attempt = self.here, Path(ready.attempt)
        if check.task and asked_checks.digest(Path(check.task), here.config.cache) != check.data:
            what = f"Files in the folder of {check.task} were changed since the plan was made, or cannot be read on this node."
            return self._failed(
                check, self._failure("content_changed", what, "Rerun the same command. Put the task on a shared disk."), attempt
            )
        key = Path(ready.key_file).read_text().strip()
        scrapes = {server.daemon: scraper(server.url, key) for server in ready.servers}
        server, started_at = ServerWatch(attempt, scrapes, here.timeouts.no_progress), utc_now()
        for left in folder.glob(".draft-*"):
            shutil.rmtree(left, ignore_errors=True)
        # lm-eval writes prompts and outputs there.
        draft = folder / f".draft-{attempt.name}"
        draft.mkdir(mode=0o700)
        here.progress.say(f"{check.name}: lm-eval sends at most {check.limit} examples of each task")
        server.begin()
        ended = self._run(check, ready, draft, server)
        server.settle()
        died = death(attempt, server)
        facts = ServerFacts(died=died, hung=server.hung)
        try:
            if failure := measuring.end_deployment(attempt, f"the check {check.name}", facts, server.blamed):
                # The check ran, so a second such failure is a permanent gap.
                return self._failed(check, failure.model_copy(update={"stage": STAGE}), attempt)
            here.check()
            found = self._found(check, ended, draft)
            produced = next(draft.glob("lm-eval_*.json"))
            if check.task:
                accuracy.without_task_texts(produced)
            os.replace(produced, folder / RESULT)
        except ServemarkError as error:
            storage.require(folder)
            failure = self._failure(error.reason or "accuracy_failed", error.what, error.do)
            return self._failed(check, failure, attempt)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        record = self._record(
            check,
            attempt,
            metric=found.metric,
            value=found.value,
            stderr=found.stderr,
            samples=found.samples,
            data=found.data,
            lm_eval=found.lm_eval,
            started_at=started_at,
            seconds=round(ended.seconds, 2),
            result=RESULT,
            result_sha256=file_sha256(folder / RESULT),
        )
        self.store.store(record, folder / RESULT)
        error_words = "" if found.stderr is None else f" with standard error {found.stderr:.3g}"
        here.progress.say(f"{check.name}: {found.metric} {found.value:.4g}{error_words}, {found.samples} examples")
        return record

    def _run(self, check: PlannedCheck, ready: Ready, draft: Path, server: ServerWatch) -> ToolResult:
        """Run lm-eval on the client's node. It may fetch data, so only the endpoint is kept from a site's proxy."""
        assert ready.attempt and ready.url and ready.served_name and ready.key_file, "a live deployment's live record is complete"
        here = self.here
        direct = ",".join(filter(None, (os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), urlsplit(ready.url).hostname)))
        python, tokenizer = self.environment.python, here.manifest.path
        argv = command_lines.lm_eval(
            python, ready.url, ready.served_name, tokenizer, here.plan, check, str((draft / "lm-eval.json").absolute())
        )
        launcher = Launcher.of(Path(ready.attempt))
        request = DaemonRequest(
            name=f"lm-eval-{check.name}",
            argv=tuple(argv),
            env={"NO_PROXY": direct, "no_proxy": direct, "TOKENIZERS_PARALLELISM": "false", **bytecode_cache.variables(self.environment)},
            secret_env={"OPENAI_API_KEY": str(ready.key_file)},
            log=str(here.log.absolute()),
            modules=here.plan.modules,
            grace_s=3.0,
        )
        tool = launcher.tool(ready.client_node or launcher.alloc.nodes[0], request)
        return tool.run(log=here.log, timeout_s=here.timeouts.point, watch=here.watch, check=server)

    def _found(self, check: PlannedCheck, ended: ToolResult, draft: Path) -> accuracy.Found:
        """Return lm-eval's result.

        Raises:
            ServemarkError: lm-eval failed, took too long, or its result cannot be used.
        """
        if ended.stopped:
            raise ServemarkError(f"servemark stopped lm-eval: {ended.stopped}.", reason="accuracy_timeout")
        results = sorted(draft.glob("lm-eval_*.json"))
        if ended.exit_code == 0 and results:
            return accuracy.read(results[0], check)
        log = self.here.log.read_text(errors="replace")
        unreachable = ended.exit_code != 0 and _UNREACHABLE.search(log)
        # The last line of the log may quote an output, and a user's own task may be private.
        last = "" if check.task else next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "no output")
        raise ServemarkError(
            f"lm-eval exited with code {ended.exit_code} and wrote {'a' if results else 'no'} result file."
            + (f" Its log ends with: {last[:300]}" if last else ""),
            reason="accuracy_data_unreachable" if unreachable else "accuracy_failed",
        )

    def _failure(self, reason: str, detail: str, remedy: str | None) -> Failure:
        return Failure(stage=STAGE, reason=reason, detail=detail, log=str(self.here.log), remedy=remedy or reasons.remedy(reason))

    def _failed(self, check: PlannedCheck, failure: Failure, attempt: Path | None) -> Accuracy:
        self.here.check()
        self.here.progress.say(f"{check.name}: no result: {failure.detail.splitlines()[0]}")
        return self._record(check, attempt, failure=failure)

    def _record(self, check: PlannedCheck, attempt: Path | None, **fields: Any) -> Accuracy:
        plan = self.here.plan
        parts = {"deployment": plan.key_parts, "point": accuracy_key.key_parts(check)}
        return Accuracy(deployment=plan.deployment, check=check, key_parts=parts, attempt=str(attempt) if attempt else None, **fields)
