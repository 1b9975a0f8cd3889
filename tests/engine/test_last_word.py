"""What a rank said before it stopped is heard, and nobody waits for what it will never say."""

import threading

import torch

from quantfleet_worker.exchange import Exchange
from quantfleet_worker.messages import Rendezvous


def alone() -> Exchange:
    """An exchange of one rank, which is its own peer."""
    place = Rendezvous(rank=0, world_size=1, host="127.0.0.1", port=0)
    return Exchange(
        place,
        None,
        backend="gloo",
        chunk_bytes=1 << 20,
        device=torch.device("cpu"),
        should_stop=lambda: None,
    )


def test_a_record_is_waited_for_and_found_after_a_stop() -> None:
    exchange = alone()
    late = threading.Timer(0.05, exchange.put, ["done/0/0", "files"])
    late.start()
    assert exchange.last_word("done/0/0", rank=0) == "files"
    exchange.stop_everyone()
    assert exchange.last_word("done/0/0", rank=0) == "files"
    late.join()


def test_a_rank_that_stopped_before_its_first_layer_is_not_waited_for() -> None:
    """It never promised a record, so nothing but its silence tells that there will be none."""
    exchange = alone()
    stop = threading.Timer(0.05, exchange.stop_everyone)
    stop.start()
    assert exchange.last_word("done/0/0", rank=0) is None
    stop.join()
