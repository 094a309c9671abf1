"""The board: lines up, a wish to stop down, and who came how often."""

from trainer.board import Board, Verdict

STEP = {"kind": "step", "step": 1}
CHECKPOINT = {"kind": "checkpoint", "step": 1}


def test_lines_are_taken_once_and_in_order() -> None:
    board = Board()
    board.push([STEP, {**STEP, "step": 2}], ["a"], moved=True)
    board.push([{**STEP, "step": 3}], [], moved=True)
    news = board.drain()
    assert [line["step"] for line in news.lines] == [1, 2, 3]
    assert news.notes == ["a"]
    assert board.drain().lines == []


def test_a_wish_to_stop_reaches_the_next_push() -> None:
    board = Board()
    assert board.push([], [], moved=True) == ""
    board.ask_stop("enough")
    assert board.push([], [], moved=True) == "enough"


def test_only_a_worker_that_moves_breaks_the_silence() -> None:
    board = Board()
    board._beat -= 100
    board.push([], [], moved=False)
    assert board.drain().silent_s >= 100
    board.push([], [], moved=True)
    assert board.drain().silent_s < 100


def test_starts_are_counted_for_each_rank_until_a_checkpoint_is_told_of() -> None:
    board = Board()
    assert [board.enter(0).starts, board.enter(1).starts, board.enter(0).starts] == [1, 1, 2]
    board.push([STEP], [], moved=True)
    assert board.enter(0).starts == 3
    board.push([CHECKPOINT], [], moved=True)
    assert board.enter(0).starts == 1


def test_the_first_error_is_the_cause_and_the_only_one_told() -> None:
    board = Board()
    board.failed("Rank 1: OSError: No space left on device")
    board.failed("Rank 0: RuntimeError: Connection closed by peer")
    assert board.enter(0).first_error == "Rank 1: OSError: No space left on device"
    assert board.drain().notes == ["A worker failed. Rank 1: OSError: No space left on device"]
    board.push([CHECKPOINT], [], moved=True)
    assert board.enter(0).first_error == ""


def test_the_verdict_stays_on_the_board_until_the_driver_has_read_it() -> None:
    board = Board()
    assert board.drain().verdict is None
    board.end(Verdict(status="done", step=3))
    assert board.drain().verdict == Verdict(status="done", step=3)


def test_workers_that_wait_are_silent_and_not_quiet() -> None:
    board = Board()
    board._beat = board._word = board._word - 100
    board.push([], [], moved=False)
    news = board.drain()
    assert news.silent_s >= 100
    assert news.quiet_s < 100
