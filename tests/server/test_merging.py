"""Reports of pods become one progress: newer ones count, and nothing goes back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantfleet_api.report import LayerReport, ProgressReport, RankReport, ReportSummary
from quantfleet_api.status import ReportedProgress
from quantfleet_server.live import Live

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC)


def rank(number: int = 0, **more: Any) -> RankReport:
    return RankReport(rank=number, world_size=4, stage=more.pop("stage", "Calibrating"), **more)


def report(sequence: int, *ranks: RankReport, pod: int = 0, **more: Any) -> ProgressReport:
    given = ranks or (rank(pod),)
    return ProgressReport(attempt=1, pod=pod, sequence=sequence, ranks=given, **more)


def begun(attempt: int = 1) -> Live:
    live = Live()
    live.begin(attempt)
    return live


def drawn(live: Live) -> ReportedProgress:
    progress = live.draw()
    assert progress is not None
    return progress


@pytest.mark.parametrize("sequence", [4, 5])
def test_what_is_not_newer_is_dropped(sequence: int) -> None:
    live = begun()
    live.take(report(5, rank(layer=3, num_layers=4)), NOW)

    assert live.take(report(sequence, rank(layer=4, num_layers=4)), NOW).stale
    assert drawn(live).layers_completed == 3


def test_pods_have_sequences_of_their_own() -> None:
    live = begun()
    assert not live.take(report(9, pod=0), NOW).stale
    assert not live.take(report(1, pod=1), NOW).stale


def test_nothing_follows_the_final_report_of_a_pod() -> None:
    live = begun()
    live.take(report(1, rank(stage="Done"), final=True), NOW)

    assert live.take(report(2, rank(stage="Calibrating")), NOW).stale
    assert drawn(live).stage == "Done"


def test_the_slowest_rank_counts_and_ranks_of_all_pods_are_kept() -> None:
    live = begun()
    live.take(report(1, rank(0, layer=8, num_layers=10), rank(1, layer=6, num_layers=10)), NOW)
    live.take(report(1, rank(2, layer=4, num_layers=10), pod=1), NOW)

    progress = drawn(live)

    assert (progress.layers_completed, progress.total_layers, progress.percent) == (4, 10, 40)
    assert sorted(live.ranks) == [0, 1, 2]


def test_a_layer_counts_by_its_passes() -> None:
    half = rank(num_layers=10, pass_index=2, num_passes=2, micro_batch=2, num_micro_batches=4)
    live = begun()
    live.take(report(1, half), NOW)

    assert drawn(live).percent == int(100 * 0.75 / 10)


def test_samples_are_those_of_all_ranks() -> None:
    live = begun()
    live.take(report(1, rank(0, samples=3, num_samples=8), rank(1, samples=5, num_samples=7)), NOW)

    progress = drawn(live)

    assert (progress.samples_processed, progress.total_samples) == (8, 15)


def test_layers_and_percent_never_go_back_within_an_attempt() -> None:
    live = begun()
    live.take(report(1, rank(0, layer=8, num_layers=10)), NOW)
    before = drawn(live)
    live.take(report(1, rank(1, layer=2, num_layers=10), pod=1), NOW)

    after = drawn(live)

    assert (after.layers_completed, after.percent) == (before.layers_completed, before.percent)


def test_a_new_attempt_begins_anew_and_keeps_the_layers() -> None:
    live = begun()
    layer = LayerReport(layer=0, seconds=1.0)
    live.take(report(7, rank(layer=8, num_layers=10), layers=(layer,)), NOW)
    live.draw()

    live.begin(2)

    assert live.draw() is None
    assert live.known_layers() == 0
    assert live.layers[0].attempt == 1
    assert not live.take(report(1, rank(layer=1, num_layers=10)), NOW).stale
    assert drawn(live).layers_completed == 1


def test_an_old_attempt_does_not_come_back() -> None:
    live = begun(3)
    live.take(report(1), NOW)
    live.begin(2)
    assert live.attempt == 3
    assert live.ranks


def test_a_server_that_starts_anew_goes_on_from_the_status() -> None:
    first = begun()
    first.take(report(1, rank(layer=6, num_layers=10)), NOW)
    second = Live()
    second.seed(drawn(first))

    assert drawn(second) == drawn(first)
    second.take(report(2, rank(0, layer=5, num_layers=10)), NOW)
    assert drawn(second).layers_completed == 6
    assert second.known_layers() == 0  # so pod 0 sends its layers again


def test_known_layers_are_told_once_and_by_pod_0_only() -> None:
    live = begun()
    layers = (LayerReport(layer=0, seconds=1.0), LayerReport(layer=1, seconds=2.0, repeated=True))

    assert live.take(report(1, layers=layers), NOW).layers == layers
    assert live.take(report(2, layers=layers), NOW).layers == ()
    assert (
        live.take(report(1, pod=1, layers=(LayerReport(layer=2, seconds=1.0),)), NOW).layers == ()
    )
    assert live.known_layers() == 2


def test_layers_are_known_up_to_the_first_that_is_lacking() -> None:
    live = begun()
    for sequence, (layer, known) in enumerate([(0, 1), (2, 1), (3, 1), (1, 4)], 1):
        live.take(report(sequence, layers=(LayerReport(layer=layer, seconds=1.0),)), NOW)
        assert live.known_layers() == known


def test_summary_is_of_pod_0_at_its_end() -> None:
    live, summary = begun(), ReportSummary(warnings=3)
    live.take(report(1, summary=summary), NOW)
    live.take(report(1, pod=1, final=True, summary=summary), NOW)
    assert live.summary is None
    live.take(report(2, final=True, summary=summary), NOW)
    assert live.summary == summary


def test_time_is_the_servers_own() -> None:
    live = begun()
    live.take(report(1), NOW)
    live.take(report(1, pod=1), NOW + timedelta(seconds=1.5))
    assert drawn(live).last_update_time == "2026-11-30T12:00:01.500000Z"


def test_rank_0_tells_the_stage_and_hundred_percent_means_done() -> None:
    live = begun()
    live.take(report(1, rank(1, stage="Done", layer=9, num_layers=9), pod=1), NOW)
    done = rank(0, stage="Publishing", layer=9, num_layers=9, eta_seconds=4.6)
    taken = live.take(report(1, done), NOW)

    assert taken.stage_changed
    progress = drawn(live)
    assert (progress.stage, progress.percent) == ("Publishing", 99)
    assert progress.estimated_remaining_seconds == 5
    live.take(report(2, rank(0, stage="Done", layer=9, num_layers=9)), NOW)
    assert (drawn(live).percent, drawn(live).estimated_remaining_seconds) == (100, 0)


REPORTS = st.builds(
    lambda sequence, pod, layer, total, micro: report(
        sequence,
        rank(
            pod,
            layer=layer,
            num_layers=total,
            pass_index=1,
            num_passes=2,
            micro_batch=micro,
            num_micro_batches=4,
        ),
        pod=pod,
    ),
    st.integers(0, 30),
    st.integers(0, 3),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 6),
)


@given(st.lists(REPORTS, max_size=40))
def test_whatever_is_reported_progress_only_grows(reports: list[ProgressReport]) -> None:
    live = begun()
    layers = percent = 0
    for one in reports:
        live.take(one, NOW)
        progress = live.draw()
        if progress is None:
            continue
        assert 0 <= progress.percent <= 99
        assert (progress.layers_completed, progress.percent) >= (layers, 0)
        assert progress.percent >= percent
        assert progress.layers_completed >= layers
        layers, percent = progress.layers_completed, progress.percent
