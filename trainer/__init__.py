"""The loop, checkpoints, evaluation, tracking: the only folder that knows model and pipeline."""
