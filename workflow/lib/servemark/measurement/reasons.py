"""The one table of reasons: why a load point is SUSPECT or INVALID, why a stage failed, why servemark refused something.

``make generate`` writes docs/reference/reasons.md from it. Failures that a log explains have their rows (reason, cause, remedy) in
``diagnosis/catalogue.yaml``, next to the pattern that finds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servemark.records import Reason

Severity = Literal["SUSPECT", "INVALID"]

DEFAULT_REMEDY = "Read the logs of this attempt, fix the cause and run snakemake again."
MORE_TIME = (
    "Run the same command again: servemark measures the missing points in a new allocation. For a longer allocation, raise "
    "`minutes_per_point` or `max_minutes` in the cluster file."
)
CLIENT_LOG = "Read the client's log of this point."
OTHER_FORMAT = "Check the vLLM version: another version may write another format."


@dataclass(frozen=True)
class Row:
    """One reason.

    Attributes:
        code: name in records, tables and reports.
        severities: severities that a verdict can give it, the usual one first. Empty for failures and refusals.
        meaning: what happened, in one sentence.
        remedy: what to do; None if each message with this code states it.
        outside: the cause lies outside the load point, so servemark always measures the point again.
    """

    code: str
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str | None = None
    outside: bool = False


def _rows(*severities: Severity, outside: bool = False, **meanings: str | tuple[str, str]) -> dict[str, Row]:
    """Return rows by code, from the meaning of each, or from meaning and remedy."""
    pairs = {code: (given, None) if isinstance(given, str) else given for code, given in meanings.items()}
    return {code: Row(code, severities, meaning, remedy, outside) for code, (meaning, remedy) in pairs.items()}


TABLE: dict[str, Row] = {
    **_rows("INVALID",
        client_disagrees=("The client's totals differ from the totals of its own requests.",
            f"Compare the result file with the client's log. {OTHER_FORMAT}"),
        client_failed=("The benchmark client exited with an error.", CLIENT_LOG),
        client_timeout=("The benchmark client did not end in time.", "Raise `timeouts.point`, or lower `requests` or the load."),
        clients_unaccounted=("The number of client processes in the result file differs from the configuration.",
            f"{CLIENT_LOG} Then run again."),
        clock_odd=("The recorded times contradict each other.",
            "Look for a clock or virtualisation problem on the client's node, then run again."),
        no_output=("No request completed, or a completed request has no output token.",
            "Send one request by hand and read the server's log."),
        output_tokens_long=("The requests got more output tokens than configured.",
            "Check that no client option sets another output length."),
        output_tokens_short=("The requests got fewer output tokens than configured.",
            "Check that prompt and output together fit in `max-model-len`, and read the server's log."),
        requests_unaccounted=("The number of requests that the client sent differs from the configuration.", CLIENT_LOG),
        server_changed=("The server restarted during the point.", "Read the server's log, fix the cause and run again."),
        server_died=("The server ended during the point.", "Read the server's log, fix the cause and run again."),
        server_hung=("The server stopped responding during the point.",
            "Read the server's log. If the server ran out of memory, lower the load."),
    ),
    **_rows("INVALID", "SUSPECT",
        requests_failed=("Requests failed. The point is SUSPECT if `verdict.max_failed_fraction` allows this many.",
            "Read the errors in the raw result file and the server's log."),
    ),
    **_rows("SUSPECT",
        few_requests_per_slot=("Each slot served only a few requests, so ramp-up and ramp-down distort the results.",
            "Raise `requests`, so that each slot serves more of them."),
        input_tokens_differ=("The number of tokens in the prompts differs from the configuration.",
            "Check that client and server use the same tokenizer."),
        tokens_in_bursts=("Many tokens arrived together with the previous one, so the times between tokens include other delays.",
            "Stop other work on the machine, or raise `clients` of the workload."),
        too_short=("The measurement took less time than `verdict.min_duration_s`.", "Raise `requests`."),
        client_saturated=("A client process used nearly a whole core, so the results include its own delays.",
            "Raise `clients` of the workload: more processes then share the load."),
        clients_out_of_step=("The client processes sent requests at different times.",
            "Raise `requests`: the different start times then matter less."),
        rate_not_kept=("The client sent requests later or more slowly than `request_rate` demands.",
            "Raise `concurrency`, which limits the rate, raise `clients` of the workload, or lower `request_rate`."),
        interrupted=("The job, the client or the server stood still during the point.",
            "Find the cause (suspension, SIGSTOP, a frozen machine, compilation) and measure again."),
    ),
    **_rows("INVALID",
        non_finite=("The client's result file contains a number that is not finite.", f"{CLIENT_LOG} Then run again."),
        raw_broken=("The client's result file cannot be read.", CLIENT_LOG),
        raw_empty=("The client's result file is empty.", CLIENT_LOG),
        raw_extra=("The client's result file contains text after its end.", CLIENT_LOG),
        raw_incomplete=("The client's result file has no value for a required key.", OTHER_FORMAT),
        raw_lengths=("The lists in the client's result file have different lengths.", CLIENT_LOG),
        raw_missing=("The client wrote no result file.", CLIENT_LOG),
        raw_types=("A value in the client's result file has the wrong type.", OTHER_FORMAT),
        raw_truncated=("The client's result file is truncated.", CLIENT_LOG),
    ),
    **_rows(outside=True,
        disk_full="A file system is full.",
        no_space_left="A file system of the node is full.",
        not_permitted="You may not write to a file system.",
        out_of_time=("The allocation reached its time limit.", MORE_TIME),
        quota_exceeded="Your disk quota is used up.",
        read_only="A file system is read-only.",
        slurm_unreachable="Slurm's controller did not respond.",
        stage_killed=("A stage of the deployment was killed (kill -9, or out of memory).",
            "Find the cause in `dmesg` or in the scheduler's job record. Run the same command again to continue."),
        stop_requested=("The deployment was stopped on request.", "Run the same command again to continue."),
        taken_over=("A newer job took over this deployment.", "No action needed: the newer job continues."),
    ),
    **_rows(
        ambiguous="Several deployments have this name.",
        architecture_unknown="servemark does not know the architecture of the model.",
        archive_refused="A file cannot be part of the archive.",
        archive_unsafe="The archive is damaged, or could harm the computer that unpacks it.",
        archive_wrong="The archive contradicts itself or its checksums.",
        bad_config="The configuration or the cluster file has an error.",
        bad_option="vLLM does not have this option, or refuses its value.",
        build_failed="An environment could not be installed from its lock file.",
        bytecode_folder="The cache for compiled Python files cannot be used.",
        cache_not_writable="Files are missing in a shared cache, and you may not write there.",
        cannot_stop="A deployment could not be stopped.",
        compile_cache="The cache for compiled kernels cannot be used.",
        config_broken="The model's config.json cannot be read.",
        config_incomplete="The model's config.json has no value for a key that planning needs.",
        config_missing="The model has no config.json.",
        copy_failed="The model could not be copied to a node's own disk.",
        deployment_gone="The deployment was not running when a point was due.",
        devices_missing="A node has fewer devices than the topology needs.",
        does_not_fit="The model does not fit into the memory of the devices.",
        environment_broken="The environment does not run on the node.",
        environment_changed="The files of an environment differ from its record.",
        environment_refused="An environment cannot be used.",
        error="servemark has no specific code for this error.",
        fabric_failed="The ranks of a replica cannot reach each other.",
        folder_name="The path of the checkout contains characters that some programs cannot handle.",
        foreign_server="Another program responds at the server's port.",
        gpu_kinds_open="The node has several kinds of GPUs, and the probe's job has only some of them.",
        gpu_named_short="CUDA_VISIBLE_DEVICES contains an abbreviated UUID, which vLLM does not accept.",
        gpu_not_reached="torch cannot use the GPU.",
        gpu_order_open="CUDA_VISIBLE_DEVICES contains numbers, which are ambiguous for GPUs of several kinds.",
        gpu_part_named="A part of a GPU (MIG) was allocated or is in CUDA_VISIBLE_DEVICES.",
        gpus_hidden="CUDA_VISIBLE_DEVICES hides all GPUs.",
        hardware_differs="The nodes of the job differ from the hardware that was planned for.",
        hub_busy="The hub limits requests for now (HTTP 429).",
        hub_digest_differs="The sha256 of a downloaded file differs from the one that the hub states.",
        hub_file_missing="The hub does not deliver a file of the model.",
        hub_file_too_large="A file is too large for a download over plain HTTP.",
        hub_forbidden="The token has no permission to read the model.",
        hub_gated="The model is gated: its owner must give you access.",
        hub_offline="The model is not in the cache, and HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set.",
        hub_out_of_order="The hub failed with a server error (HTTP 5xx).",
        hub_refused="The hub refuses to deliver the model.",
        hub_repository_missing="The hub does not have this repository.",
        hub_revision_missing="The repository does not have this revision.",
        hub_unauthorised="The hub does not accept the token.",
        hub_unreachable="The hub does not respond.",
        illegal_topology="vLLM cannot serve the model with this topology.",
        invalid_measurements="The run has INVALID measurements.",
        keeper_ended="The supervisor of the deployment ended.",
        ledger_unreadable="The ledger cannot be read.",
        link_leaves_directory="A link in the model's folder points outside of it.",
        link_loop="A link in the model's folder points back to itself.",
        link_to_folder="A link in the model's folder points to a folder.",
        model_missing="The model's folder does not exist.",
        never_started="The supervisor did not start a process in time.",
        no_gpu="The environment is built for GPUs, and the node has none.",
        no_lock_fits="No lock file supports this hardware.",
        no_reason_recorded="A record is INVALID and has no reason.",
        no_room="The cache has too little space for an environment.",
        no_space="A node's disk has too little space for the model.",
        no_such_file="The archive does not exist.",
        no_such_run="The run does not exist.",
        node_not_described="Slurm does not report what the hardware probe needs to know about a node.",
        node_silent="A node did not respond.",
        nodes_missing="The job has fewer nodes than the topology needs.",
        not_measured="The run ended before the point was measured.",
        not_planned="The run ended before the deployment was planned.",
        not_started="The endpoint never started.",
        nothing_to_stop="No deployment of this name is running.",
        nothing_to_show="The run has no measurements.",
        nvidia_smi_failed="nvidia-smi failed.",
        one_at_a_time="On one machine, only one endpoint is served at a time.",
        open_door="A route of the server responds without the API key.",
        pickle_weights="The model's weights are pickles, which can run code when they are loaded.",
        plan_refused="This topology cannot serve the model on this hardware.",
        port_taken="Another process uses the port.",
        prefix_broken="The interpreter of the environment's prefix does not run.",
        prefix_missing="The environment's prefix does not exist.",
        ray_gate_failed="The Ray node check failed.",
        ray_incomplete="Not all nodes joined the Ray cluster in time.",
        ray_missing="The environment has no Ray.",
        record_broken="A record cannot be read.",
        record_missing="A record does not exist.",
        router_missing="The environment has no router.",
        run_locked="Another run is using this checkout.",
        runtime_folder_refused="The folder for short-lived files is not private to you.",
        secret_found="A file for the archive contains a secret.",  # noqa: S106
        server_exited="The server ended while it started.",
        shard_missing="A file that the model's index names does not exist.",
        slurm_boot_fail="Slurm could not start a job: a node did not boot.",
        slurm_cancelled="A job was cancelled.",
        slurm_deadline="A job could not have ended before its deadline.",
        slurm_error="A call of Slurm failed.",
        slurm_failed="A job ended with a nonzero exit code or by a signal.",
        slurm_launch_failed="Slurm could not start a job.",
        slurm_leftovers="Jobs of an earlier run do not end.",
        slurm_lost="Slurm has no record of a job, and some of its outputs are missing.",
        slurm_missing="This machine does not have Slurm's commands.",
        slurm_node_fail="A node of a job failed.",
        slurm_not_submitted="Slurm did not accept a job.",
        slurm_out_of_memory="A job used more memory than it requested.",
        slurm_preempted="A job of higher priority preempted a job.",
        slurm_reconfig_fail="Slurm could not start a job: configuring its node failed.",
        slurm_refused="Slurm would reject a job of this run.",
        slurm_revoked="Another cluster of the Slurm federation started the job.",
        slurm_stuck="A job ended, but Slurm does not remove it from its node.",
        slurm_timeout="A job reached its time limit.",
        stage_failed="A stage failed.",
        startup_stalled="The server made no progress while it started.",
        startup_timeout="The server was not ready in time.",
        tokenizer_missing="The model has no tokenizer.",
        too_many_files="The model's folder holds too many files.",
        unknown_builtin="servemark has no builtin model of this name.",
        unknown_option="vLLM does not have this option.",
        variable_not_set="The cluster file names a variable that is not set in the job.",
        versions_differ="The nodes run different versions.",
        weights_broken="A JSON file of the model cannot be used.",
        weights_changed="The model's files differ from its manifest.",
        weights_missing="The model has no weights.",
        weights_refused="A model cannot be used.",
        weights_truncated="A file of the model is truncated.",
        weights_unreadable="A file of the model cannot be read.",
        weights_unwritable="The folder for the model is not writable.",
        wrong_interface="The network interface does not connect the nodes.",
    ),
}  # fmt: skip

OUTSIDE = frozenset(row.code for row in TABLE.values() if row.outside)


def remedy(code: str) -> str:
    """Return what to do about a reason; a general sentence if the table has none."""
    row = TABLE.get(code)
    return (row and row.remedy) or DEFAULT_REMEDY


def reason(code: str, detail: str, severity: Severity | None = None) -> Reason:
    """Return a reason for a verdict, with its usual severity or another one that the table allows.

    Raises:
        ValueError: the table does not allow this severity.
    """
    allowed = TABLE[code].severities
    if (severity or allowed[0]) not in allowed:
        raise ValueError(f"{code} is never {severity}")
    return Reason(code=code, severity=severity or allowed[0], detail=detail)
