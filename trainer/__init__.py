"""The loop, checkpoints, evaluation and tracking: the only folder that knows both model and pipeline."""
