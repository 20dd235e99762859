"""Names in messages for what a user can change.

By default these are the resources of a rule. A workflow whose users set them in its own configuration puts the names of its keys here:
``TERMS.update(speaker="my-workflow", place="site.yaml", partition="queue")``.
"""

TERMS = {
    "speaker": "slurm-guarded",
    "place": "the rule's resources",
    "account": "slurm_account",
    "partition": "slurm_partition",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gres": "gres",
    "time": "runtime",
    "memory": "mem_mb",
    "extra": "slurm_extra",
    "reservation": "slurm_extra",
}
