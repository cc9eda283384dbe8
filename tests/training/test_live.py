"""What is shown while a training runs: a table on a terminal, lines elsewhere, nothing when asked for nothing."""

import io
import itertools
import os
import pty
import re
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from vitrail.training import live as module
from vitrail.training.live import Live, Progress, duration

SCRIPT = """
import sys, threading, time
from vitrail.training.live import Live
live = Live(40, 10, title="flowers", quiet="quiet" in sys.argv)
live.note("a note [bold]as it is[/]")
for step in range(1, 41):
    time.sleep(0.02)
    live.update({"kind": "train", "step": step, "time": step * 60.0, "loss": 1 / step, "accuracy": step / 80,
                 "lr": 1e-3, "pictures_per_s": 2314.2, "skipped_steps": int(step == 5), "bad_pictures": 3})
    if step % 10 == 0:
        live.update({"kind": "eval", "step": step, "time": step * 60.0, "loss": 0.5,
                     "accuracy": {10: 0.5, 20: 0.9, 30: 0.8, 40: 0.7}[step]})
    if step == 20:
        live.update({"kind": "event", "step": step, "text": "something happened"})
assert threading.active_count() == 1
live.close()
live.close()
print("the end")
"""


def on_terminal(size: tuple[int, int], **environment: str) -> str:
    """What a program writes to a terminal of this many lines and columns."""
    first, second = pty.openpty()
    places = {"LINES": str(size[0]), "COLUMNS": str(size[1]), "TERM": "xterm-256color", **environment}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=second, env={**os.environ, **places})
    os.close(second)
    parts = []
    while True:
        try:
            part = os.read(first, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    os.close(first)
    assert process.wait() == 0
    return b"".join(parts).decode()


def screens(raw: str) -> list[list[str]]:
    """The tables that were drawn, one after the other, without colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw).replace("\r", "")
    return [part.splitlines() for part in re.findall(r"╭.*?╯", plain, re.DOTALL)]


def test_a_terminal_shows_one_table_with_everything_in_it() -> None:
    raw = on_terminal((40, 100))
    last = "\n".join(screens(raw)[-1])
    for words in ("flowers", "100%", "epoch 4/4", "40 of 40", "pictures/s      2,314", "70.0%", "1.00e-03", "best"):
        assert words in last
    assert re.search(r"best\s+90.0%, epoch 2", last)
    assert re.search(r"skipped steps\s+1\b", last)
    assert re.search(r"unreadable\s+3 pictures", last)
    assert "a note [bold]as it is[/]" in raw
    assert "something happened" in raw
    assert raw.rstrip().endswith("the end")


def test_the_table_is_drawn_at_most_four_times_a_second_and_at_evaluations() -> None:
    assert 5 <= len(screens(on_terminal((40, 100)))) <= 16


@pytest.mark.parametrize("size", [(40, 60), (18, 100)])
def test_the_table_fits_its_terminal(size: tuple[int, int]) -> None:
    for screen in screens(on_terminal(size)):
        assert len(screen) <= size[0]
        assert max(map(len, screen)) <= size[1]


def test_a_terminal_that_cannot_move_its_cursor_gets_lines() -> None:
    assert "\x1b" not in on_terminal((40, 100), TERM="dumb")


def piped(*words: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_pipe_gets_plain_lines() -> None:
    lines = piped()
    assert lines[0] == "a note [bold]as it is[/]"
    assert "epoch 1/4  val accuracy 50.0%  val loss 0.500  train loss 0.100  best so far  30 min 00 s left" in lines
    assert "epoch 3/4  val accuracy 80.0%  val loss 0.500  train loss 0.033  10 min 00 s left" in lines
    assert "something happened" in lines
    assert not any("\x1b" in line for line in lines)


def test_quiet_means_nothing_on_the_standard_output() -> None:
    assert piped("quiet") == ["the end"]


def test_lines_come_at_first_often_and_in_long_runs_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))  # the rest keeps its own clock
    page = io.StringIO()
    live = Live(1_000_000, 1000, stream=page)
    at = []
    for step in range(1, 200_000, 10):
        clock[0] = float(step)
        before = page.tell()
        live.update({"kind": "train", "step": step, "time": clock[0], "loss": 1.0})
        if page.tell() > before:
            at.append(step)
    gaps = [b - a for a, b in itertools.pairwise(at)]
    assert min(gaps) >= 10
    assert max(gaps) <= 310
    assert 700 < len(at) < 900  # in more than two days


def test_time_left_is_measured_without_the_slow_start() -> None:
    progress = Progress(total_steps=101, steps_per_epoch=10)
    progress.take({"kind": "train", "step": 1, "time": 1000.0})
    assert progress.seconds_left is None
    progress.take({"kind": "train", "step": 11, "time": 1020.0})
    assert progress.seconds_left == pytest.approx(180)


def test_steps_that_are_to_come_take_as_long_as_their_work() -> None:
    """Of 100 steps the last 30 compute three times as much; before them something compiles for 500 s."""
    progress = Progress(100, 10, lambda step: step + 2 * max(0, step - 70))
    progress.take({"kind": "train", "step": 10, "time": 1000.0})
    progress.take({"kind": "train", "step": 60, "time": 1050.0})
    assert progress.seconds_left == pytest.approx(10 + 90)
    progress.take({"kind": "event", "step": 70, "time": 1060.0, "stage": True})
    assert progress.seconds_left == pytest.approx(90)
    progress.take({"kind": "train", "step": 71, "time": 1563.0})
    assert progress.seconds_left == pytest.approx(87)  # by the pace of before
    progress.take({"kind": "train", "step": 81, "time": 1623.0})
    assert progress.seconds_left == pytest.approx(19 * 6)  # by its own


def test_a_run_that_goes_on_knows_its_best() -> None:
    before = [
        {"kind": "train", "step": 5, "time": 1000.0, "loss": 1.0},
        {"kind": "eval", "step": 5, "time": 1001.0, "accuracy": 0.9},
    ]
    page = io.StringIO()
    live = Live(20, 5, stream=page, before=before)
    live.update({"kind": "train", "step": 6, "time": 1002.0, "loss": 1.0})
    live.update({"kind": "eval", "step": 10, "time": 1010.0, "accuracy": 0.8})
    assert live.progress.best is not None
    assert live.progress.best["accuracy"] == 0.9
    assert "best so far" not in page.getvalue()
    assert live.progress.seconds_left == pytest.approx(20)


def test_without_accuracy_the_lowest_loss_is_best_and_for_several_labels_the_map() -> None:
    progress = Progress(30, 10)
    for step, loss in ((10, 2.0), (20, 1.0), (30, 1.5)):
        progress.take({"kind": "eval", "step": step, "loss": loss})
    assert progress.best is not None
    assert progress.best["step"] == 20
    progress = Progress(30, 10)
    for step, value in ((10, 0.2), (20, 0.4), (30, 0.3)):
        progress.take({"kind": "eval", "step": step, "loss": 1.0, "map": value})
    assert progress.best is not None
    assert progress.best["step"] == 20


def test_names_cannot_write_control_characters_to_the_terminal() -> None:
    page = io.StringIO()
    Live(1, 1, stream=page).note("evil\x1b[2J\nname")
    assert page.getvalue() == "evil\\x1b[2J\\nname\n"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (8040, "2 h 14 min"), (273_600, "3 d 4 h")],
)
def test_durations_are_said_in_two_units(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    with Live(10, 5, stream=io.StringIO()) as live:
        live.update({"kind": "train", "step": 1, "loss": 1.0})
        assert threading.active_count() == before
