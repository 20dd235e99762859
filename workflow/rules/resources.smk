"""What the rules ask of a scheduler: values and functions for `resources` and `localrule`. Without a scheduler they ask for nothing."""


def runs_on_login(where):
    """Return whether a stage runs beside the main process: the cluster file puts it on the login node, or there is no cluster."""
    return experiment.config.cluster is None or where == "login"


def small_job_resource(rule, key):
    """Return one resource of a rule's short job, which looks at a node or at an environment."""
    requested = scheduled.small_request(experiment.config, rule).resources() if SCHEDULED else {}
    return requested.get(key, scheduled.RESOURCES[key])


def small_job_site(rule):
    """Return what the cluster file names for a rule's short job: account, partition, QOS, constraint, further options."""
    return {key: small_job_resource(rule, key) for key in scheduled.SITE}


def allocation_resource(key):
    """Return one resource of a deployment's job. One rule of the group has them, because Snakemake adds them up or wants them equal."""
    default = scheduled.RESOURCES[key]

    def requested(wildcards):
        kept = wildcards.life == serving.FOLDER
        request = scheduled.allocation_request(
            experiment.config, experiment.folder, wildcards.deployment, serving=kept, timed=key == "runtime"
        )
        return request.resources().get(key, default)

    return requested if SCHEDULED else default


def allocation_site():
    """Return what the cluster file names for a deployment's job: account, partition, QOS, constraint, further options."""
    return {key: allocation_resource(key) for key in scheduled.SITE}
