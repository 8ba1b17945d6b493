"""Laws of replay: the recorded scores are the whole history, and nothing else is taken for it."""

from dataclasses import replace
from pathlib import Path

import pytest

from esctl.errors import RunError
from esctl.methods.es import ES
from esctl.methods.essam import ESSAM
from esctl.runs.metrics import KEYS, all_metrics, next_metrics
from esctl.runs.records import ScoreRecord
from esctl.runs.replay import replay, usable_scores

SCORES = Path("run/scores.jsonl")
DIM = 1000


def record(generation: int, index: int, member: int, score: float | None) -> ScoreRecord:
    parts = {"strict": 0.5, "flexible": 0.75, "formatted": 1.0, "truncated": 0.0, "length": 12.0}
    return ScoreRecord(generation, index, member, score, parts, 8, 80, 96, 0.5)


def history_of(generations: int, rounds: int, members: int) -> list[ScoreRecord]:
    places = [(g, r, m) for g in range(generations) for r in range(rounds) for m in range(members)]
    return [record(g, r, m, 0.1 * ((7 * g + 3 * r + m * m) % 10)) for g, r, m in places]


def test_replay_is_the_fold_of_ask_and_tell():
    method, records = ESSAM(population=4), history_of(2, 2, 4)
    state, moves = method.start(3, DIM), []
    for start in range(0, 16, 4):
        before = state.generation
        state, move = method.tell(state, [r.score or 0.0 for r in records[start : start + 4]])
        moves += [move] if state.generation > before else []
    found = replay(method, 3, DIM, records, SCORES)
    assert (found.state, found.moves, found.pending) == (state, tuple(moves), ())


@pytest.mark.parametrize("done", range(17))
def test_a_round_that_was_cut_short_is_pending_and_moves_nothing(done):
    method, records = ESSAM(population=4), history_of(2, 2, 4)
    whole, cut = replay(method, 0, DIM, records, SCORES), replay(method, 0, DIM, records[:done], SCORES)
    assert cut.pending == tuple(records[done - done % 4 : done])
    assert cut.moves == whole.moves[: done // 8]
    assert (cut.state.generation, cut.state.index) == (done // 8, done // 4 % 2)


@pytest.mark.parametrize(
    ("place", "wrong", "says"),
    [
        (5, {"member": 3}, "run/scores.jsonl:6: holds generation, round, member (0, 1, 3) where (0, 1, 1) must come"),
        (4, {"round": 0}, "run/scores.jsonl:5: holds generation, round, member (0, 0, 0) where (0, 1, 0) must come"),
        (9, {"generation": 0}, "run/scores.jsonl:10: holds generation, round, member (0, 0, 1) where (1, 0, 1)"),
    ],
)
def test_a_record_out_of_order_is_refused_by_file_and_line(place, wrong, says):
    records = history_of(2, 2, 4)
    records[place] = replace(records[place], **wrong)
    with pytest.raises(RunError) as error:
        replay(ESSAM(population=4), 0, DIM, records, SCORES)
    assert str(error.value).startswith(says)
    assert str(error.value).endswith("restore the file from a copy")


def test_a_missing_or_repeated_line_is_refused():
    records = history_of(2, 1, 4)
    for damaged in ([*records[:2], *records[3:]], [*records[:3], *records[2:]]):
        with pytest.raises(RunError, match=r"scores.jsonl:[34]: holds generation, round, member"):
            replay(ES(population=4), 0, DIM, damaged, SCORES)


def test_a_candidate_without_finite_logits_gets_the_lowest_finite_score():
    records = [record(0, 0, m, s) for m, s in enumerate([0.5, None, -0.25, None])]
    assert usable_scores(records) == [0.5, -0.25, -0.25, -0.25]


def test_a_round_without_any_finite_score_is_an_error():
    with pytest.raises(RunError) as error:
        replay(ES(population=2), 0, DIM, [record(0, 0, m, None) for m in range(2)], SCORES)
    assert str(error.value) == (
        "generation 0, round 0: no candidate had finite logits; check the model's weights, or start another run"
        " with a lower method.sigma"
    )


def test_equal_scores_move_nothing():
    found = replay(ES(population=4), 0, DIM, [record(0, 0, m, 0.3) for m in range(4)], SCORES)
    assert [move.norm(DIM) for move in found.moves] == [0]
    assert found.state.generation == 1


def test_metrics_follow_from_scores_alone():
    records = history_of(3, 2, 4)
    moves = replay(ESSAM(population=4), 0, DIM, records, SCORES).moves
    _, found = all_metrics(records, moves, DIM)
    assert [m["generation"] for m in found] == [1, 2, 3]
    assert found == all_metrics([*records, record(3, 0, 0, 0.9)], moves, DIM)[1]  # an unfinished generation has none
    second = [r.score or 0.0 for r in records[4:8]]
    assert found[0]["reward/mean"] == pytest.approx(sum(second) / 4)
    assert found[0]["probe/reward_mean"] == pytest.approx(sum(r.score or 0.0 for r in records[:4]) / 4)
    assert found[2]["cost/rollouts"] == 3 * 8 * 8
    assert found[1]["drift/norm"] == pytest.approx((found[0]["update/norm"] ** 2 + found[1]["update/norm"] ** 2) ** 0.5)


def test_metrics_taken_up_at_any_generation_are_those_of_the_whole_run():
    records = history_of(5, 2, 4)
    moves = replay(ESSAM(population=4), 0, DIM, records, SCORES).moves
    whole = all_metrics(records, moves, DIM)
    for begun in range(5):
        totals, found = all_metrics(records[: 8 * begun], moves[:begun], DIM)
        for g in range(begun, 5):
            totals, metrics = next_metrics(totals, records[8 * g : 8 * g + 8], moves[g], DIM)
            found.append(metrics)
        assert (totals, found) == whole


def test_every_metric_of_a_generation_is_explained_and_every_explained_one_is_written():
    records = history_of(2, 2, 4)
    _, metrics = all_metrics(records, replay(ESSAM(population=4), 0, DIM, records, SCORES).moves, DIM)
    assert [m.keys() for m in metrics] == [KEYS.keys()] * 2
