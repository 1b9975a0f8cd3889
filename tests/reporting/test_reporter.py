"""Reports of a pod, over real HTTPS: what arrives when, and that nothing is ever in the way."""

import threading
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from time import monotonic

import pytest

from quantfleet_api.progress import Progress, Stage
from quantfleet_api.report import LayerReport, ProgressReport, ReportSummary
from quantfleet_worker import report_sender, reporter
from quantfleet_worker.report_sender import Target, retry_after, target_of
from quantfleet_worker.reporter import Reporter
from status_listener import Listener, Reply, listening, taken


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with listening(tmp_path / "server") as found:
        yield found


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of the product, a hundredth of each."""
    for name in ("INTERVAL_SECONDS", "CHANGE_SECONDS", "MOST_WAIT_SECONDS"):
        monkeypatch.setattr(reporter, name, getattr(reporter, name) / 100)
    monkeypatch.setattr(report_sender, "SEND_SECONDS", 1.0)


class Log(list[str]):
    """Lines said; `wait` for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self.changed:
            self.append(line)
            self.changed.notify_all()

    def wait(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self) >= count, 60), self


def report_to(listener: Listener, log: Log, *, pod: int = 0) -> Reporter:
    target = Target(url=listener.url, token_file=listener.token_file, ca_file=listener.ca_file)
    return Reporter(target, attempt=2, pod=pod, say=log)


def at(layer: int, stage: Stage = "Calibrating", **more: int) -> Progress:
    return Progress(rank=0, world_size=1, stage=stage, layer=layer, num_layers=9, **more)


def layers(*numbers: int) -> list[LayerReport]:
    return [LayerReport(layer=number, seconds=1.0, relative_error=0.5) for number in numbers]


def quick(report: ProgressReport) -> Reply:
    """Takes every layer, and wants reports often."""
    known = max((layer.layer + 1 for layer in report.layers), default=0)
    return taken(knownLayers=known, minIntervalSeconds=0.01)


def test_every_change_arrives_in_order_and_the_last_word_is_waited_for(listener: Listener) -> None:
    log = Log()
    pod = report_to(listener, log)
    for layer in range(3):
        pod.progress(at(layer))
        listener.wait(lambda found, layer=layer: found.heard[-1:] and _place(found) == layer)
    digest = "sha256:" + "a" * 64
    pod.finish(ReportSummary(digest=digest, warnings=1), seconds=60)
    last = listener.heard[-1]
    assert last.final
    assert last.summary is not None
    assert last.summary.digest == digest
    assert [report.final for report in listener.heard[:-1]] == [False] * (len(listener.heard) - 1)
    sequence = [report.sequence for report in listener.heard]
    assert sequence == sorted(set(sequence))
    assert {report.attempt for report in listener.heard} == {2}
    assert set(listener.tokens) == {"Bearer first.token"}
    assert log == []


def _place(listener: Listener) -> int:
    return listener.heard[-1].ranks[0].layer


def test_what_happens_while_a_report_is_on_its_way_is_sent_as_one(listener: Listener) -> None:
    go = threading.Event()

    def slow(report: ProgressReport) -> Reply:
        assert go.wait(60)
        return quick(report)

    listener.answer = slow
    pod = report_to(listener, Log())
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    started = monotonic()
    for batch in range(10_000):
        pod.progress(at(1 + batch % 2, micro_batch=batch))
    assert monotonic() - started < 5, "nobody waits for the server"
    go.set()
    listener.wait(lambda found: len(found.heard) == 2)
    assert listener.heard[1].ranks[0].micro_batch == 9_999
    pod.finish(None, seconds=60)
    assert len(listener.heard) == 3


def test_without_a_change_reports_keep_the_distance_that_the_server_asks(
    listener: Listener,
) -> None:
    listener.answer = lambda report: taken(minIntervalSeconds=3600)
    pod = report_to(listener, Log())
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    for batch in range(20):
        pod.progress(at(0, micro_batch=batch))
    pod.progress(at(1))  # a change is told nevertheless
    listener.wait(lambda found: len(found.heard) == 2)
    assert _place(listener) == 1
    pod.finish(None, seconds=60)
    assert [report.ranks[0].layer for report in listener.heard] == [0, 1, 1]


def test_layers_are_sent_until_the_server_has_them_and_again_when_it_has_lost_them(
    listener: Listener,
) -> None:
    held: set[int] = set()

    def keep(report: ProgressReport) -> Reply:
        held.update(layer.layer for layer in report.layers)
        return taken(knownLayers=len(held), minIntervalSeconds=0.01)

    listener.answer = keep
    pod = report_to(listener, Log())
    pod.progress(at(0))
    pod.layers(layers(*range(300)))
    listener.wait(lambda found: len(held) == 300)
    assert max(len(report.layers) for report in listener.heard) <= 128
    pod.progress(at(1))
    listener.wait(lambda found: _place(found) == 1)
    assert listener.heard[-1].layers == ()
    held.clear()  # as after a restart of the server
    pod.progress(at(2))
    listener.wait(lambda found: len(held) == 300)
    pod.finish(None, seconds=60)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500),
        Reply(status=401),
        Reply(status=403),
        Reply(status=404),
        Reply(status=413),
        Reply(status=422, body=b"<html>"),
        Reply(status=302, headers={"Location": "https://elsewhere.invalid/"}),
        Reply(body=b"\xff garbage"),
        Reply(body=b"[1]"),
        Reply(body=b'{"knownLayers": -1}'),
    ],
    ids=lambda reply: f"{reply.status}-{len(reply.body)}",
)
def test_one_line_says_that_reports_fail_and_one_that_they_work_again(
    listener: Listener, reply: Reply
) -> None:
    log = Log()
    listener.answer = lambda report: reply
    pod = report_to(listener, log)
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) >= 3)
    assert len(log) == 1
    assert log[0].startswith("progress is not reported: ")
    listener.answer = quick
    log.wait(2)
    assert log[1] == "progress is reported again"
    pod.finish(None, seconds=60)
    assert len(log) == 2
    assert "token" not in "".join(log).lower()


def test_a_server_that_is_down_is_found_again(listener: Listener) -> None:
    log = Log()
    listener.stop()
    pod = report_to(listener, log)
    pod.progress(at(0))
    log.wait(1)
    listener.start("first")
    log.wait(2)
    assert _place(listener) == 0
    pod.finish(None, seconds=60)
    assert listener.heard[-1].final


def test_token_and_certificates_are_read_for_each_report(listener: Listener) -> None:
    log = Log()
    pod = report_to(listener, log)
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    listener.token_file.write_text("second.token")
    pod.progress(at(1))
    listener.wait(lambda found: len(found.heard) == 2)
    assert listener.tokens == ["Bearer first.token", "Bearer second.token"]
    trusted = listener.ca_file.read_bytes()
    listener.stop()
    listener.new_certificate("second")
    renewed = listener.ca_file.read_bytes()
    listener.ca_file.write_bytes(trusted)  # the pod's copy is behind for a while
    listener.start("second")
    pod.progress(at(2))
    log.wait(1)
    assert "CERTIFICATE_VERIFY_FAILED" in log[0]
    listener.ca_file.write_bytes(renewed)
    log.wait(2)
    assert _place(listener) == 2
    pod.finish(None, seconds=60)


@pytest.mark.parametrize("content", ["", "two words", "line\nbreak", "\x00"])
def test_a_file_that_holds_no_token_is_named_and_its_content_is_not(
    listener: Listener, content: str
) -> None:
    log = Log()
    listener.token_file.write_text(content)
    pod = report_to(listener, log)
    pod.progress(at(0))
    log.wait(1)
    assert log[0] == f"progress is not reported: {listener.token_file} holds no token"
    listener.token_file.write_text("good")
    log.wait(2)
    pod.finish(None, seconds=60)


def test_too_many_requests_is_no_failure_and_is_waited_out(listener: Listener) -> None:
    log = Log()
    replies = iter([Reply(status=429, headers={"Retry-After": "1"})])
    listener.answer = lambda report: next(replies, taken(minIntervalSeconds=0.01))
    pod = report_to(listener, log)
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    refused = monotonic()
    pod.progress(at(1))
    listener.wait(lambda found: len(found.heard) == 2)
    assert monotonic() - refused >= 0.9
    assert _place(listener) == 1
    pod.finish(None, seconds=60)
    assert log == []


def test_a_report_of_another_attempt_is_the_last(listener: Listener) -> None:
    log = Log()
    listener.answer = lambda report: Reply(status=409)
    pod = report_to(listener, log)
    pod.progress(at(0))
    log.wait(1)
    for layer in range(1, 5):
        pod.progress(at(layer))
    pod.finish(None, seconds=60)
    assert len(listener.heard) == 1
    assert log == ["progress is not reported any more: the server waits for none (409)"]


def test_a_server_that_never_answers_costs_nothing_but_the_wait_at_the_end(
    listener: Listener,
) -> None:
    go = threading.Event()

    def never(report: ProgressReport) -> Reply:
        go.wait(60)
        return taken()

    listener.answer = never
    pod = report_to(listener, Log())
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    started = monotonic()
    pod.progress(at(1))
    assert monotonic() - started < 0.5
    pod.finish(None, seconds=0.5)
    assert 0.4 < monotonic() - started < 3
    go.set()


def test_the_last_report_is_tried_again_and_does_not_wait_for_a_turn(listener: Listener) -> None:
    replies = iter(
        [taken(minIntervalSeconds=3600), Reply(status=429, headers={"Retry-After": "300"})]
    )
    listener.answer = lambda report: next(replies, taken())
    pod = report_to(listener, Log())
    pod.progress(at(0))
    listener.wait(lambda found: len(found.heard) == 1)
    pod.finish(ReportSummary(warnings=3), seconds=60)
    assert [report.final for report in listener.heard] == [False, True, True]
    assert listener.heard[2].sequence > listener.heard[1].sequence


def test_a_pod_that_never_began_reports_nothing(listener: Listener) -> None:
    pod = report_to(listener, Log())
    pod.finish(ReportSummary(cause="no such file"), seconds=60)
    assert listener.heard == []


def test_a_wait_is_told_in_seconds_or_as_a_time_of_the_servers_clock() -> None:
    skewed = 86_400.0 * 365 * 40  # that clock may be years behind ours
    later = {"retry-after": formatdate(skewed + 7, usegmt=True)}
    assert retry_after({"retry-after": "7"}) == 7.0
    assert retry_after(later | {"date": formatdate(skewed, usegmt=True)}) == 7.0
    assert retry_after({"retry-after": "1000000"}) == report_sender.MOST_RETRY_SECONDS
    assert retry_after(later) is None
    assert retry_after({"retry-after": "soon", "date": formatdate(skewed)}) is None
    assert retry_after({}) is None


def test_nothing_is_reported_without_an_address_or_in_clear(listener: Listener) -> None:
    assert target_of({}) is None
    assert target_of({"QUANTFLEET_PROGRESS_URL": "https://a/"}) is None
    log = Log()
    clear = Target(url="http://localhost:1/x", token_file=listener.token_file, ca_file=None)
    pod = Reporter(clear, attempt=1, pod=0, say=log)
    pod.progress(at(0))
    log.wait(1)
    assert "https://" in log[0]
    pod.finish(None, seconds=60)
