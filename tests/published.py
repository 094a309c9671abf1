"""Transformer-XL by its definition, written out one number at a time in plain numpy.

It shares nothing with model/: names are the published ones, every score is its own loop. Slow, and
meant to be read beside the paper.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def position(distance: int, width: int, clamp_len: int) -> Array:
    t = min(distance, clamp_len) if clamp_len > 0 else distance
    angles = [t / 10_000 ** (2 * n / width) for n in range(width // 2)]
    return np.array([np.sin(a) for a in angles] + [np.cos(a) for a in angles])


def normalised(x: Array, w: Mapping[str, Array], name: str) -> Array:
    centred = x - x.mean()
    scaled = centred / np.sqrt((centred**2).mean() + 1e-5)
    return scaled * w[name + ".weight"] + w[name + ".bias"]


def log_softmax(x: Array) -> Array:
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


class Published:
    """One row of a published model; config and weights by their published names."""

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, Array]) -> None:
        self.c, self.w = config, weights
        self.edges = [0, *config["cutoffs"], config["n_token"]]
        self.past: list[list[Array]] = [[] for _ in range(config["n_layer"])]

    def forget(self) -> None:
        self.past = [[] for _ in self.past]

    def cluster(self, token: int) -> int:
        return next(i for i, edge in enumerate(self.edges[1:]) if token < edge)

    def embed(self, token: int) -> Array:
        i = self.cluster(token)
        if self.c["div_val"] > 1:
            e = self.w[f"word_emb.emb_layers.{i}.weight"][token - self.edges[i]]
        else:
            i, e = 0, self.w["word_emb.emb_layers.0.weight"][token]
        projection = self.w.get(f"word_emb.emb_projs.{i}")
        return (e if projection is None else projection @ e) * np.sqrt(self.c["d_model"])

    def attend(self, layer: int, past: list[Array], x: list[Array], i: int) -> Array:
        H, E, at = self.c["n_head"], self.c["d_head"], f"layers.{layer}.dec_attn."
        states = past + x
        if self.c["pre_lnorm"]:
            states = [normalised(s, self.w, at + "layer_norm") for s in states]
        q, k, v = np.split(self.w[at + "qkv_net.weight"], 3)
        own = "" if not self.c["untie_r"] else at
        here, heads = len(past) + i, []
        longest = self.c["mem_len"] - 1 if self.c["same_length"] else here
        for h in range(H):
            part = slice(h * E, (h + 1) * E)
            query = q[part] @ states[here]
            scores, values = [], []
            for j in range(max(0, here - longest), here + 1):
                r = position(here - j, self.c["d_model"], self.c["clamp_len"])
                content = (query + self.w[own + "r_w_bias"][h]) @ (k[part] @ states[j])
                by_distance = self.w[at + "r_net.weight"][part] @ r
                scores.append(content + (query + self.w[own + "r_r_bias"][h]) @ by_distance)
                values.append(v[part] @ states[j])
            weights = np.exp(log_softmax(np.array(scores) / np.sqrt(E)))
            heads.append(weights @ np.array(values))
        return self.w[at + "o_net.weight"] @ np.concatenate(heads)

    def feed(self, layer: int, x: Array) -> Array:
        at = f"layers.{layer}.pos_ff.CoreNet."
        inner = np.maximum(0, self.w[at + "0.weight"] @ x + self.w[at + "0.bias"])
        return self.w[at + "3.weight"] @ inner + self.w[at + "3.bias"]

    def read(self, tokens: list[int], mem_len: int) -> list[Array]:
        """Read a segment; give the last hidden states and remember `mem_len` states."""
        self.c = {**self.c, "mem_len": mem_len}
        x = [self.embed(token) for token in tokens]
        for layer in range(self.c["n_layer"]):
            past = self.past[layer]
            self.past[layer] = (past + x)[max(0, len(past) + len(x) - mem_len) :]
            attn, ff = f"layers.{layer}.dec_attn.layer_norm", f"layers.{layer}.pos_ff.layer_norm"
            attended = [s + self.attend(layer, past, x, i) for i, s in enumerate(x)]
            if self.c["pre_lnorm"]:
                x = [s + self.feed(layer, normalised(s, self.w, ff)) for s in attended]
            else:
                middle = [normalised(s, self.w, attn) for s in attended]
                x = [normalised(s + self.feed(layer, s), self.w, ff) for s in middle]
        return x

    def log_prob(self, hidden: Array, *, reverse_clusters: bool) -> Array:
        """Log probability of every id."""
        n = len(self.edges) - 2
        head = self.logits(hidden, 0)
        if n:
            extra = self.w["crit.cluster_weight"] @ self.narrowed(hidden, 0)
            head = log_softmax(np.concatenate([head, extra + self.w["crit.cluster_bias"]]))
        else:
            head = log_softmax(head)
        parts = [head[: self.edges[1]]]
        for i in range(1, n + 1):
            column = n - i if reverse_clusters else i - 1
            parts.append(head[self.edges[1] + column] + log_softmax(self.logits(hidden, i)))
        return np.concatenate(parts)

    def narrowed(self, hidden: Array, cluster: int) -> Array:
        projection = self.w.get(f"crit.out_projs.{cluster}")
        return hidden if projection is None else projection.T @ hidden

    def logits(self, hidden: Array, cluster: int) -> Array:
        i = cluster if self.c["div_val"] > 1 else 0
        weight = self.w[f"crit.out_layers.{i}.weight"]
        bias = self.w[f"crit.out_layers.{i}.bias"]
        if self.c["div_val"] == 1:
            ids = slice(self.edges[cluster], self.edges[cluster + 1])
            weight, bias = weight[ids], bias[ids]
        return weight @ self.narrowed(hidden, cluster) + bias
