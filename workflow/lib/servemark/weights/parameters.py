"""Parameter counts of a model by part."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of the whole model by part.

    Attributes:
        dense: attention, states, MLPs of dense layers, shared experts and routers of all layers.
        experts: weights of all routed experts, without their biases.
        embedding: of tokens and, if they are learned, of positions.
        head: the output head; 0 if it is tied to the input embedding.
    """

    dense: int
    experts: int
    expert_biases: int
    embedding: int
    head: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.dense + self.experts + self.expert_biases + self.embedding + self.head
