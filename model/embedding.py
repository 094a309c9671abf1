"""Token ids to vectors; with clusters, rarer ids have narrower ones."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig


class Embedding(nn.Module):
    """The input embedding, scaled by sqrt(D), and the weights that the softmax may share.

    With `div_val` 1 there is one table for all clusters, and a projection only if embeddings are
    not as wide as the model. With `div_val` above 1 every cluster has a table and a projection.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.width, self.edges = config.width, config.cluster_edges
        self.tables = nn.ParameterList(
            nn.Parameter(torch.empty(rows, width)) for rows, width in table_shapes(config)
        )
        self.projections = nn.ParameterList(
            nn.Parameter(torch.empty(config.width, width))
            for _, width in table_shapes(config)
            if config.div_val > 1 or width != config.width
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Look tokens (B, L) up: (B, L, D)."""
        if len(self.tables) == 1:
            return self._projected(F.embedding(tokens, self.tables[0]), 0) * self.width**0.5
        # Every cluster looks up every token, and the wrong answers are masked: no cluster's count
        # is needed on the host, and every table is part of every graph, as DDP wants.
        parts = []
        for cluster, table in enumerate(self.tables):
            low, high = self.edges[cluster], self.edges[cluster + 1]
            found = F.embedding((tokens - low).clamp(0, high - low - 1), table)
            inside = ((tokens >= low) & (tokens < high)).unsqueeze(-1)
            parts.append(self._projected(found.masked_fill(~inside, 0), cluster))
        return sum(parts[1:], parts[0]) * self.width**0.5

    def _projected(self, embedded: Tensor, cluster: int) -> Tensor:
        return F.linear(embedded, self.projections[cluster]) if self.projections else embedded


def table_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Rows and width of each table: one, or one a cluster with `div_val` above 1."""
    if config.div_val == 1:
        return [(config.vocab_size, config.embedding_width)]
    return cluster_shapes(config)


def cluster_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """Ids and width of each cluster."""
    edges = config.cluster_edges
    return [
        (high - low, config.embedding_width // config.div_val**cluster)
        for cluster, (low, high) in enumerate(pairwise(edges))
    ]
