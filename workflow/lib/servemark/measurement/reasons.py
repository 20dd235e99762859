"""The one table of reasons: why a load point is SUSPECT or INVALID, why a stage failed, why something was refused.

To add a reason, add a row here; ``make generate`` writes docs/reference/reasons.md from it. Failures that a log explains have rows of their
own in ``diagnosis/catalogue.yaml`` (reason, cause, remedy), because these belong to a pattern of the log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from servemark.records import Reason

Severity = Literal["SUSPECT", "INVALID"]
AGAIN = "Run snakemake again: it goes on where it ended, and keeps finished measurements."
DEFAULT_REMEDY = "Read the logs of this attempt, then run snakemake again."
MORE_TIME = (
    "Run the same command again: what is missing is measured in a new allocation. To ask for more time at once, raise "
    "minutes_per_point or max_minutes in the cluster file."
)


@dataclass(frozen=True)
class Row:
    """One reason.

    Attributes:
        severities: which a verdict can give it; the first one is the usual one. Empty for failures and refusals.
        remedy: what to do; None if the message that comes with it states that.
        outside: it comes from outside and has no bearing on the load point, which is measured again however often that happens.
    """

    code: str
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str | None = None
    outside: bool = False


def _rows(*severities: Severity, outside: bool = False, **rows: str | tuple[str, str | None]) -> tuple[Row, ...]:
    """Return rows from their meaning, or meaning and remedy, by code."""
    pairs = {code: (row, None) if isinstance(row, str) else row for code, row in rows.items()}
    return tuple(Row(code, severities, meaning, remedy, outside) for code, (meaning, remedy) in pairs.items())


TABLE: dict[str, Row] = {row.code: row for row in (
    *_rows("INVALID",
        client_disagrees=("The client's totals differ from its own requests.",
            "Compare the result file with the client's log; another vLLM may write another format."),
        client_failed=("The benchmark client exited with an error.", "Read the client's log of this point."),
        client_timeout=("The benchmark client did not end in time.",
            "Allow the point more time, or ask for fewer requests or a lower load."),
        clients_unaccounted=("The result file holds another number of client processes than configured.", "Run again."),
        clock_odd=("The recorded times contradict each other.",
            "Look for a clock or virtualisation problem on the client's node, then run again."),
        no_output=("Completed requests have no output token.", "Send one request by hand and read the server's log."),
        non_finite=("The result file holds a number that is not finite.", "Read the client's log of this point, then run again."),
        output_tokens_long=("Requests got more output tokens than configured.",
            "Check that the client's options do not ask for other lengths."),
        output_tokens_short=("Requests got fewer output tokens than configured.",
            "Check `ignore-eos` and that input and output fit in `max-model-len`."),
        raw_broken=("The client's result file cannot be read.", "Read the client's log of this point."),
        raw_empty=("The client's result file is empty.", "Read the client's log of this point."),
        raw_extra=("The client's result file holds text after its end.", "Read the client's log of this point."),
        raw_incomplete=("The client's result file lacks a key.", "Another version of vLLM may write another format."),
        raw_lengths=("The lists of the client's result file have different lengths.", "Read the client's log of this point."),
        raw_missing=("The client wrote no result file.", "Read the client's log of this point."),
        raw_types=("A value of the client's result file is of another type.", "Another version of vLLM may write another format."),
        raw_truncated=("The client's result file ends in the middle.", "Read the client's log of this point."),
        requests_unaccounted=("The client sent another number of requests than configured.", "Read the client's log."),
        server_changed=("The server was restarted during the point.", "Read its log, then run again."),
        server_died=("The server ended during the point.", "Read the server's log; after fixing the cause run again."),
        server_hung=("The server stopped responding during the point.", "Read the server's log; lower the load if it ran out of memory."),
    ),
    *_rows("INVALID", "SUSPECT",
        requests_failed=("Requests failed. SUSPECT if `verdict.max_failed_fraction` allows that many.",
            "Read the errors in the raw result file and the server's log."),
    ),
    *_rows("SUSPECT",
        client_saturated=("A client process used nearly a whole core, so its times include its own delays.",
            "Have more `clients` share the load."),
        clients_out_of_step=("The client processes did not send requests at the same time.",
            "Raise `requests`, so that the point takes longer than the start of the clients."),
        few_requests_per_slot=("Each slot of the concurrency served few requests, so ramp-up and tail weigh much.",
            "Raise `requests`, so that each slot of the concurrency serves several."),
        input_tokens_differ=("The prompts have another number of tokens than configured.",
            "Check that client and server use the same tokenizer."),
        interrupted=("The job, the client or the server stood still during the point.",
            "Find out what stopped it (suspension, SIGSTOP, a frozen machine, compilation), and measure again."),
        rate_not_kept=("The client sent requests more slowly than `request_rate`.",
            "Raise `concurrency`, the upper limit of the rate, have more `clients` share the load, or lower `request_rate`."),
        tokens_in_bursts=("Many tokens arrived with no time after the one before, so latencies between tokens describe a delay elsewhere.",
            "Free the machine of other work, or have more `clients` share the load."),
        too_short=("The load took less time than `verdict.min_duration_s`.", "Raise `requests`, so that the point takes longer."),
    ),
    *_rows(outside=True,
        disk_full="A file system is full.",
        no_space_left="A file system of the node is full.",
        not_permitted="A file system does not let this user write.",
        out_of_time=("The allocation's time was over.", MORE_TIME),
        quota_exceeded="Your disk quota is used up.",
        read_only="A file system is read-only.",
        slurm_unreachable="Slurm's controller did not respond.",
        stage_killed=("The stage that worked on the deployment was killed (kill -9, or out of memory).",
            "See `dmesg` or the scheduler's record for the cause; run the same command again to go on."),
        stop_requested=("The deployment was stopped on request.", "Run the same command again to go on."),
        taken_over=("A newer allocation works on this deployment.", "No action needed: the newer one goes on."),
    ),
    *_rows(
        ambiguous="Several deployments have this name.",
        architecture_unknown="servemark does not know the architecture of the model.",
        archive_refused="A file cannot be part of the archive.",
        archive_unsafe="The archive is damaged, or could harm the computer that unpacks it.",
        archive_wrong="The archive contradicts itself or its checksums.",
        bad_config="The configuration or the cluster file has an error.",
        bad_option="vLLM does not have this option, or refuses its value.",
        build_failed="An environment could not be installed from its lock file.",
        bytecode_folder="The cache for compiled Python files cannot be used.",
        cache_not_writable="A shared cache lacks something, and this user may not write there.",
        cannot_stop="A deployment could not be stopped.",
        compile_cache="The cache for compiled kernels cannot be used.",
        config_broken="The model's config.json cannot be read.",
        config_incomplete="The model's config.json lacks a value that planning needs.",
        config_missing="The model has no config.json.",
        copy_failed="The model could not be copied to a node's own disk.",
        deployment_gone="The deployment was no longer there when a point was to be measured.",
        devices_missing="A node has fewer devices than the topology needs.",
        does_not_fit="The model does not fit into the memory of the devices.",
        environment_broken="The environment does not run on the node.",
        environment_changed="The files of an environment differ from its record.",
        environment_refused="An environment cannot be used.",
        error="An error without a code of its own.",
        fabric_failed="The ranks of a replica do not reach each other.",
        folder_name="The name of the checkout's folder has characters that programs here cannot use.",
        foreign_server="Another program responds at the server's port.",
        gpu_kinds_open="The GPUs of the node are of several kinds.",
        gpu_named_short="CUDA_VISIBLE_DEVICES has an abbreviation that fits several GPUs.",
        gpu_not_reached="torch does not reach the GPU.",
        gpu_order_open="CUDA_VISIBLE_DEVICES has numbers, and GPUs of several kinds are there.",
        gpu_part_named="CUDA_VISIBLE_DEVICES has a part of a GPU (MIG).",
        gpus_hidden="CUDA_VISIBLE_DEVICES hides all GPUs.",
        hardware_differs="The nodes of the job are not of the kind that was planned for.",
        hub_busy="The hub refuses requests for now (429).",
        hub_digest_differs="A file from the hub differs from the digest that the hub states.",
        hub_file_missing="The hub does not have a file of the model.",
        hub_file_too_large="A file of the hub is larger than its client can fetch.",
        hub_forbidden="The hub does not let this token read the model.",
        hub_gated="The model is gated: its owner must let you read it.",
        hub_offline="The model is not in the cache, and the hub may not be used.",
        hub_out_of_order="The hub reports an error of its own.",
        hub_refused="The hub refuses to deliver the model.",
        hub_repository_missing="The hub does not have this repository.",
        hub_revision_missing="The repository does not have this revision.",
        hub_unauthorised="The hub does not accept the token.",
        hub_unreachable="The hub does not respond.",
        illegal_topology="vLLM cannot serve the model with this topology.",
        invalid_measurements="The run has INVALID measurements.",
        keeper_ended="The supervisor of the deployment ended.",
        ledger_unreadable="The ledger cannot be read.",
        link_leaves_directory="A link in the model's folder leads out of it.",
        link_loop="A link in the model's folder leads back to itself.",
        link_to_folder="A link in the model's folder leads to a folder.",
        model_missing="The model's folder does not exist.",
        never_started="The supervisor did not start a process in time.",
        no_gpu="The environment is built for GPUs, and the node has none.",
        no_lock_fits="No lock file fits the hardware.",
        no_reason_recorded="A record is INVALID and has no reason.",
        no_room="The cache has too little space for an environment.",
        no_space="A node's disk has too little space for the model.",
        no_such_file="The archive does not exist.",
        no_such_run="The run does not exist.",
        node_not_described="Slurm does not state what the probe needs of a node.",
        node_silent="A node did not respond.",
        nodes_missing="The job has fewer nodes than the topology needs.",
        not_measured="The run ended before the point was measured.",
        not_planned="The run ended before the deployment was planned.",
        not_started="The endpoint was never started.",
        nothing_to_stop="No deployment of this name is alive.",
        nothing_to_show="The run has no measurement.",
        nvidia_smi_failed="nvidia-smi failed.",
        one_at_a_time="On one machine, only one endpoint is served at a time.",
        open_door="A route of the server responds without the API key.",
        pickle_weights="The model's weights are pickles, which run code when they are loaded.",
        plan_refused="The deployment cannot be served as configured.",
        port_taken="Another process has the port.",
        prefix_broken="The interpreter of the environment's prefix does not run.",
        prefix_missing="The environment's prefix does not exist.",
        ray_gate_failed="The Ray node check failed.",
        ray_incomplete="Not all nodes joined the Ray cluster in time.",
        ray_missing="The environment has no Ray.",
        record_broken="A record cannot be read.",
        record_missing="A record does not exist.",
        router_missing="The environment has no router.",
        run_locked="Another run works in this checkout.",
        runtime_folder_refused="The folder for short-lived files is not a private folder of this user.",
        secret_found="A file of the archive holds a secret.",  # noqa: S106
        server_exited="The server ended while it started.",
        shard_missing="A file of the model's index does not exist.",
        slurm_leftovers="Jobs of an earlier run do not end.",
        slurm_error="A call of Slurm failed.",
        slurm_missing="Slurm's commands are not on this machine.",
        slurm_not_submitted="Slurm did not accept a job.",
        slurm_refused="Slurm would refuse a job of this run.",
        stage_failed="A stage failed.",
        startup_stalled="The server made no progress while it started.",
        startup_timeout="The server was not ready in time.",
        tokenizer_missing="The model has no tokenizer.",
        too_many_files="The model's folder holds too many files.",
        unknown_builtin="servemark has no builtin model of this name.",
        unknown_option="vLLM does not have this option.",
        variable_not_set="A variable that a path of the cluster file names is not set on the node.",
        versions_differ="The nodes run different versions.",
        weights_broken="A JSON file of the model cannot be used.",
        weights_changed="The model's files differ from its manifest.",
        weights_missing="The model has no weights.",
        weights_refused="A model cannot be used.",
        weights_truncated="A file of the model ends in the middle.",
        weights_unreadable="A file of the model cannot be read.",
        weights_unwritable="The folder for the model cannot be written.",
        wrong_interface="The network interface does not connect the nodes.",
    ),
)}  # fmt: skip

OUTSIDE = frozenset(row.code for row in TABLE.values() if row.outside)


def reason(code: str, detail: str, severity: Severity | None = None) -> Reason:
    """Return a reason for a verdict, with the usual severity or another that the table allows; else KeyError or ValueError."""
    allowed = TABLE[code].severities
    chosen = severity or allowed[0]
    if chosen not in allowed:
        raise ValueError(f"{code} is never {chosen}")
    return Reason(code=code, severity=chosen, detail=detail)


def remedy(code: str) -> str:
    """Return what to do about a reason; a general sentence if the table has none."""
    row = TABLE.get(code)
    return (row and row.remedy) or DEFAULT_REMEDY
