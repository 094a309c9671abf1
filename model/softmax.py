"""From the last hidden states to losses and probabilities: the plain softmax and the adaptive one.

With cutoffs the head chooses among the ids below the first cutoff and one entry for each rarer
cluster, in the clusters' order; a cluster chooses among its own ids. Without cutoffs the head is
everything.
"""

from collections.abc import Iterator
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.cross_entropy import penalized_cross_entropy
from model.embedding import Embedding, cluster_shapes, table_shapes


class Softmax(nn.Module):
    """The output layer. Tied weights stay the embedding's: they are read from it, never copied."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config, self.edges = config, config.cluster_edges
        self.tail = len(config.cutoffs)  # clusters beyond the head
        inner = torch.tensor(config.cutoffs, dtype=torch.int64)
        self.register_buffer("cutoffs", inner, persistent=False)
        shapes = table_shapes(config)
        self.tables = nn.ParameterList(
            [] if config.tie_weights else [nn.Parameter(torch.empty(shape)) for shape in shapes]
        )
        self.biases = nn.ParameterList(nn.Parameter(torch.empty(rows)) for rows, _ in shapes)
        self.cluster_table = self.cluster_bias = None  # the head's entries for the rarer clusters
        if self.tail:
            self.cluster_table = nn.Parameter(torch.empty(self.tail, config.embedding_width))
            self.cluster_bias = nn.Parameter(torch.empty(self.tail))
        self.projections = nn.ParameterDict(
            {
                str(cluster): nn.Parameter(torch.empty(config.width, width))
                for cluster, (_, width) in enumerate(cluster_shapes(config))
                if (config.div_val > 1 or width != config.width)
                and not config.ties_projection(cluster)
            }
        )

    def nll(self, hidden: Tensor, targets: Tensor, embedding: Embedding) -> Tensor:
        """Give -log p(target) of every token, in token order; 0 where the target is -100.

        Args:
            hidden: (B, L, D).
            targets: (B, L) int64.
            embedding: Whose weights may be tied.

        Returns:
            (B, L), float32, or float64 for a float64 model.
        """
        return self.penalized(hidden, targets, embedding, z_loss=0.0)[0]

    def penalized(
        self, hidden: Tensor, targets: Tensor, embedding: Embedding, *, z_loss: float
    ) -> tuple[Tensor, Tensor]:
        """Give the losses with z_loss * log(Z)^2 added, and these penalties, (B, L) each.

        With clusters, the head of every token and the cluster of a rare one each have their Z.
        """
        flat, goal = hidden.flatten(0, 1), targets.flatten()
        cluster = torch.bucketize(goal, self.get_buffer("cutoffs"), right=True)  # -100: the head
        in_head = goal.where(cluster == 0, self.edges[1] + cluster - 1)
        sums = penalized_cross_entropy(
            self._projected(flat, 0, embedding), *self._head(embedding), in_head, z_loss=z_loss
        )
        for at, parts in self._tails(flat, goal, cluster, embedding, z_loss):
            sums = (sums[0].index_add(0, at, parts[0]), sums[1].index_add(0, at, parts[1]))
        return sums[0].view(targets.shape), sums[1].view(targets.shape)

    def _tails(
        self, hidden: Tensor, targets: Tensor, cluster: Tensor, embedding: Embedding, z_loss: float
    ) -> Iterator[tuple[Tensor, tuple[Tensor, Tensor]]]:
        """Give each rarer cluster's tokens, and for them -log p(target) within it, penalized."""
        if not self.tail:
            return
        # The host looks at the counts once for all clusters. An empty cluster runs too, so that
        # every parameter has a gradient on every worker, as DDP wants.
        order = cluster.argsort(stable=True)
        ids = torch.arange(self.tail + 1, device=cluster.device)
        ends = list(accumulate((cluster[:, None] == ids).sum(dim=0).tolist()))
        for tail in range(1, self.tail + 1):
            at = order[ends[tail - 1] : ends[tail]]
            yield (
                at,
                penalized_cross_entropy(
                    self._projected(hidden[at], tail, embedding),
                    *self._cluster(tail, embedding),
                    targets[at] - self.edges[tail],
                    z_loss=z_loss,
                ),
            )

    def log_prob(self, hidden: Tensor, embedding: Embedding) -> Tensor:
        """Give log p of every id, (..., D) to (..., V) in order of the ids."""
        head = self._log_softmax(self._projected(hidden, 0, embedding), *self._head(embedding))
        first = self.edges[1]
        parts = [head[..., :first]]
        for tail in range(1, self.tail + 1):
            inside = self._log_softmax(
                self._projected(hidden, tail, embedding), *self._cluster(tail, embedding)
            )
            parts.append(head[..., first + tail - 1, None] + inside)
        return torch.cat(parts, dim=-1)

    def _head(self, embedding: Embedding) -> tuple[Tensor, Tensor]:
        weight, bias = self._cluster(0, embedding)
        if self.cluster_table is None or self.cluster_bias is None:
            return weight, bias
        return torch.cat([weight, self.cluster_table]), torch.cat([bias, self.cluster_bias])

    def _cluster(self, cluster: int, embedding: Embedding) -> tuple[Tensor, Tensor]:
        tables = embedding.tables if self.config.tie_weights else self.tables
        if len(tables) > 1:
            return tables[cluster], self.biases[cluster]
        if not self.tail:
            return tables[0], self.biases[0]
        ids = slice(self.edges[cluster], self.edges[cluster + 1])
        return tables[0][ids], self.biases[0][ids]

    def _projected(self, hidden: Tensor, cluster: int, embedding: Embedding) -> Tensor:
        """Bring hidden states to the width of a cluster's embeddings."""
        if not embedding.projections:
            return hidden
        if self.config.ties_projection(cluster):
            own = embedding.projections[cluster if self.config.div_val > 1 else 0]
        else:
            own = self.projections[str(cluster)]
        return F.linear(hidden, own.mT)

    @staticmethod
    def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        logits = F.linear(hidden, weight, bias)
        half = logits.dtype in (torch.bfloat16, torch.float16)
        return logits.log_softmax(dim=-1, dtype=torch.float32 if half else None)
