"""The error that a user can act on, and the names in messages for what a user can change."""

TERMS = {
    "speaker": "slurm-guarded",
    "place": "the rule's resources",
    "account": "slurm_account",
    "partition": "slurm_partition",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gres": "gres",
    "exclusive": "slurm_exclusive",
    "time": "runtime",
    "memory": "mem_mb",
    "extra": "slurm_extra",
    "reservation": "slurm_extra",
}
"""By default the resources of a rule. A workflow with a configuration of its own puts its keys here:
``TERMS.update(speaker="my-workflow", place="site.yaml", partition="queue")``."""


class GuardedError(Exception):
    """Report what happened, where to look (a file or log) and what to do; ``reason`` is a stable code for records and tests."""

    default_reason = "slurm_error"

    def __init__(self, what: str, *, look: str | None = None, do: str | None = None, reason: str | None = None):
        self.what, self.look, self.do = what, look, do
        self.reason = reason or self.default_reason
        super().__init__(self.message())

    def message(self) -> str:
        """Return the full text: what happened, then where to look, then what to do."""
        rest = {"look at": self.look, "what to do": self.do}
        return "\n".join([self.what, *(f"  {label}: {text}" for label, text in rest.items() if text)])
