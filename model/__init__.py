"""Transformer-XL (Dai et al. 2019, arXiv:1901.02860). Imports torch and nothing of ours.

    config = ModelConfig(vocab_size=8_000, layers=6, memory=256)     # model.config
    model = TransformerXL(config)                                    # model.transformer_xl
    memory = empty_memory(config, rows=4)                            # model.memory
    hidden, memory = model(tokens, offset, memory)                   # segment after segment
    total, count = loss_sum(model.nll(hidden, targets), targets)     # model.loss

Axis letters, the same in every file of this folder:
    B rows of a batch    L tokens of a segment    M tokens of memory    K = M + L keys
    H heads              E width of one head      D width of the model  V vocabulary
    N layers             T tokens of a batch, flat
"""
