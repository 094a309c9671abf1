"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860). Imports torch and nothing of ours.

Axis letters, the same in every file of this folder:
    B rows of a batch    L tokens of a segment    M tokens of memory    K = M + L keys
    H heads              E width of one head      D width of the model  V vocabulary
    N layers
"""
