"""Values and functions for the rules' `resources` and `localrule`. Without a scheduler the rules request nothing."""


def runs_on_login(where):
    """Return whether a stage runs on the main process's machine: the cluster file puts it there, or there is no cluster."""
    return experiment.config.cluster is None or where == "login"


def small_job_resource(rule, key):
    """Return one resource of a rule's short job, which probes a node or checks an environment."""
    requested = scheduled.small_request(experiment.config, rule).resources() if SCHEDULED else {}
    return requested.get(key, scheduled.RESOURCES[key])


def small_job_site(rule):
    """Return a short job's settings in the cluster file: account, partition, QOS, constraint, further options."""
    return {key: small_job_resource(rule, key) for key in scheduled.SITE}


def allocation_resource(key):
    """Return one resource of a deployment's job. Only one member of the group has it, because Snakemake adds numbers up and refuses different texts."""
    default = scheduled.RESOURCES[key]

    def requested(wildcards):
        kept = wildcards.life == serving.FOLDER
        request = scheduled.allocation_request(
            experiment.config, experiment.folder, wildcards.deployment, serving=kept, timed=key == "runtime"
        )
        return request.resources().get(key, default)

    return requested if SCHEDULED else default


def allocation_site():
    """Return a deployment's settings in the cluster file: account, partition, QOS, constraint, further options."""
    return {key: allocation_resource(key) for key in scheduled.SITE}
