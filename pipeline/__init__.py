"""Corpus to batches. Imports nothing of ours and no torch: an actor starts small.

Offline, once per corpus:
    corpus.py      files of text               -> tasks, each a few stretches of files
    records.py     a task                      -> documents and rejects (columns.py: of tables)
    tokenizer.py   text                        -> token ids, and back
    store.py       token ids                   -> Arrow parts + manifest, and back
    encode.py      documents                   -> rows of a part (pieces.py: cut where too long)
    build.py       tasks                       -> a store (build_actor.py: the same in Ray actors)

Online, every step:
    order.py       (seed, epoch, index)        -> which document
    layout.py      what a run decides about its rows
    rows_state.py  where all rows stand: the RowsState, saved and checked
    rows.py        lengths + RowsState         -> what every row reads at a step + RowsState (pure)
    batch.py       what the rows read          -> Batch
    block.py       batches on their way        -> several steps in few arrays
    server.py      store + RowsState           -> blocks (server_actor.py: the same behind Ray)
    client.py      blocks                      -> the trainer's loop, one batch a step
"""
