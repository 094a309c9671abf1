"""From the last hidden states to losses and probabilities: the plain softmax and the adaptive one.

With cutoffs the head chooses among the ids below the first cutoff and one entry for each rarer
cluster, in the clusters' order; a cluster chooses among its own ids. Without cutoffs the head is
everything.
"""

from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.cross_entropy import linear_cross_entropy
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
        flat, goal = hidden.flatten(0, 1), targets.flatten()
        cluster = torch.bucketize(goal, self.get_buffer("cutoffs"), right=True)  # -100: the head
        in_head = goal.where(cluster == 0, self.edges[1] + cluster - 1)
        losses = linear_cross_entropy(
            self._projected(flat, 0, embedding), *self._head(embedding), in_head
        )
        if self.tail:
            losses = self._add_tails(losses, flat, goal, cluster, embedding)
        return losses.view(targets.shape)

    def _add_tails(
        self, losses: Tensor, hidden: Tensor, targets: Tensor, cluster: Tensor, embedding: Embedding
    ) -> Tensor:
        """Add -log p(target) within its cluster, (T,), to that of the cluster."""
        # The host looks at the counts once for all clusters. An empty cluster runs too, so that
        # every parameter has a gradient on every worker, as DDP wants.
        order = cluster.argsort(stable=True)
        ids = torch.arange(self.tail + 1, device=cluster.device)
        ends = list(accumulate((cluster[:, None] == ids).sum(dim=0).tolist()))
        for tail in range(1, self.tail + 1):
            at = order[ends[tail - 1] : ends[tail]]
            part = linear_cross_entropy(
                self._projected(hidden[at], tail, embedding),
                *self._cluster(tail, embedding),
                targets[at] - self.edges[tail],
            )
            losses = losses.index_add(0, at, part)
        return losses

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
