"""A run's config is right or refused, and the refusal names every mistake."""

from pathlib import Path

import pytest

from jobs.config import keys, read_config
from trainer.errors import ConfigError

GOLDEN_KEYS = Path(__file__).parents[1] / "golden" / "config_keys.txt"


def mistakes(*sets: str, **layers: object) -> list[str]:
    with pytest.raises(ConfigError) as refusal:
        read_config(sets=sets, **layers)  # pyright: ignore[reportArgumentType]
    return str(refusal.value).splitlines()


def test_the_keys_are_those_that_were_promised() -> None:
    assert sorted(keys()) == GOLDEN_KEYS.read_text(encoding="utf-8").splitlines()


def test_each_layer_lies_over_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[trainer]\nsteps = 2\naccumulation = 2\nthreads = 2\n[rows]\nsegment = 2\n")
    config = read_config(
        path,
        base={"trainer": {"steps": 1}, "checkpoint": {"every": 1}},
        environment={
            "LONGROW__TRAINER__ACCUMULATION": "4",
            "LONGROW__ROWS__SEGMENT": "4",
            "HOME": "/",
        },
        sets=["rows.segment=8"],
    )
    assert config.checkpoint.every == 1
    assert config.trainer.steps == 2
    assert config.trainer.accumulation == 4
    assert config.rows.segment == 8
    assert config.trainer.threads == 2


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("trainer.stepz", "trainer.steps"),
        ("optimizer.steps", "trainer.steps"),
        ("trainr.steps", "trainer.steps"),
        ("optimiser.learning_rate", "optimizer.learning_rate"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(wrong: str, meant: str) -> None:
    assert mistakes(f"{wrong}=5") == [f"{wrong} (--set) is unknown: did you mean {meant}?"]


def test_all_mistakes_of_all_layers_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(
        "steps = 5\n[trainer]\nsteps = -1\naccumulation = 0\nprecision = 'fp64'\n[rows]\nrow = 4\n"
    )
    told = mistakes(
        "rows.segment=0",
        "data.held_out=2",
        "rows",
        path=path,
        environment={"LONGROW__MODEL__LAYERS": "0", "LONGROW__OPTIMIZER__CLIP": "much"},
    )
    for part in (
        f"steps ({path}) is unknown",
        "trainer.steps = -1 must be above 0.",
        "trainer.accumulation = 0 must be above 0.",
        f"trainer.precision = \"fp64\" ({path}): must be 'fp32' or 'bf16'.",
        f"rows.row ({path}) is unknown: did you mean rows.rows?",
        "rows.segment = 0 must be above 0.",
        "data.held_out = 2.0 must be",
        "--set rows: write it as --set section.key=value.",
        "model.layers = 0 must be at least 1.",
        'optimizer.clip = "much" (LONGROW__OPTIMIZER__CLIP): must be a valid number.',
    ):
        assert [line for line in told if part in line], (part, told)
    assert len(told) == 10


@pytest.mark.parametrize("value", ['"3"', "true", "3.0", "[3]", "1979-05-27", "{a = 1}"])
def test_a_value_of_another_type_is_not_bent_into_shape(value: str) -> None:
    (told,) = mistakes(f"trainer.steps={value}")
    assert "trainer.steps = " in told
    assert "must be a valid integer" in told


def test_a_whole_number_fills_a_float_and_a_list_a_tuple() -> None:
    config = read_config(sets=["optimizer.clip=1", "optimizer.betas=[0.5, 0.75]"])
    assert config.optimizer.clip == 1.0
    assert config.optimizer.betas == (0.5, 0.75)


@pytest.mark.parametrize("text", ["2024", "2024-05-27", "true", "a_b", '"quoted"'])
def test_a_name_on_the_command_line_needs_no_quotes(text: str) -> None:
    assert read_config(sets=[f"run.name={text}"]).run.name == text.strip('"')


def test_a_word_on_the_command_line_cannot_carry_a_second_key() -> None:
    (told,) = mistakes("trainer.steps=1\n[model]\nlayers = 7")
    assert "must be a valid integer" in told


def test_the_seed_of_the_run_is_that_of_every_part_without_its_own() -> None:
    config = read_config(sets=["run.seed=11", "rows.seed=12"])
    assert config.tokenizer.seed == 11
    assert config.rows.seed == 12
    assert read_config().tokenizer.seed == read_config().run.seed


def test_rows_that_the_workers_cannot_share_are_refused() -> None:
    (told,) = mistakes("rows.rows=6", "cluster.workers=4")
    assert "rows.rows = 6" in told
    (told,) = mistakes("evaluate.rows=6", "cluster.workers=4")
    assert "evaluate.rows = 6" in told


def test_what_counts_evaluations_is_refused_where_there_are_none() -> None:
    (told,) = mistakes("evaluate.patience=3")
    assert told.startswith("evaluate.patience = 3 counts evaluations")
    (told,) = mistakes("checkpoint.keep_best=2")
    assert told.startswith("checkpoint.keep_best = 2 wants the best of several evaluations")
    for when in ("evaluate.every=5", "evaluate.minutes=0.5"):
        config = read_config(sets=["evaluate.patience=3", "checkpoint.keep_best=2", when])
        assert config.evaluate.patience == 3
    assert read_config().checkpoint.keep_best == 1


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Signature=hunter2",
        "versionId=3&X-Goog-Signature=hunter2",
        "sv=2024&sig=hunter2",
        "token=hunter2",
        "access_token=hunter2",
        "AWSAccessKeyId=hunter2",
        "X-Amz-Security-Token=hunter2",
        "api_key=hunter2",
    ],
)
def test_a_signed_url_is_refused_and_not_repeated(query: str) -> None:
    (told,) = mistakes(f'data.store="https://bucket.example/store?{query}"')
    assert "data.store (--set) holds a secret in its query" in told
    assert "hunter2" not in told


def test_a_query_that_opens_no_door_is_taken() -> None:
    url = "https://bucket.example/store?versionId=3&monkey=1"
    assert read_config(sets=[f'data.store="{url}"']).data.store == url


def test_rows_are_not_measured_by_a_world_size_that_comes_later() -> None:
    config = read_config(sets=["rows.rows=6", "cluster.workers=4", "cluster.launcher=local"])
    assert config.rows.rows == 6


def test_a_missing_file_and_a_torn_file_are_told_with_their_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        read_config(tmp_path / "none.toml")
    torn = tmp_path / "torn.toml"
    torn.write_text("[trainer\nsteps = 1\n")
    with pytest.raises(ConfigError, match=r"torn\.toml is not TOML.*line 1"):
        read_config(torn)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "a b"])
def test_a_run_is_not_named_like_a_path(name: str) -> None:
    (told,) = mistakes(f'run.name="{name}"')
    assert told.startswith("run.name = ")
