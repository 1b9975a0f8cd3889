"""A rank's process: its signals, its log, its exit code.

Started by `gang.py`, which has a fork server preload this module, so the expensive imports are paid
once for all ranks of a machine.
"""

import logging
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from time import sleep

from quantfleet_api.errors import ExitCode, Interrupted, QuantFleetError
from quantfleet_worker.control import Control
from quantfleet_worker.exchange import TransferFailed
from quantfleet_worker.liveness import NEWS_SECONDS
from quantfleet_worker.messages import RankJob
from quantfleet_worker.run import run_rank
from quantfleet_worker.work_folder import work_path

logger = logging.getLogger(__name__)


def rank_main(connection: Connection, job: RankJob) -> None:
    """The whole life of a rank's process; never returns."""
    _redirect_output(job)
    control = Control(connection, rank=job.rendezvous.rank, world_size=job.rendezvous.world_size)
    # Ctrl-C reaches the whole process group: the launcher decides what it means
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: _ask_to_stop(control, ExitCode.TERMINATED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    threading.Thread(target=control.listen, name="lifeline", daemon=True).start()
    code, cause = _outcome(lambda: run_rank(job, control), control)
    control.send("end", code=code, cause=cause, lost=None)
    logging.shutdown()
    os._exit(code)  # daemon threads may sit in a library; there is nothing left to clean up


def _outcome(work: Callable[[], None], control: Control) -> tuple[int, str]:
    try:
        work()
    except Interrupted:
        return control.stop_code or int(ExitCode.INTERRUPTED), "stopped on request"
    except TransferFailed as error:
        logger.warning("failed: %s", error, exc_info=True)
        sleep(NEWS_SECONDS)  # where a rank is lost, this process leaves meanwhile and names it
        return int(error.exit_code), str(error)
    except QuantFleetError as error:
        logger.warning("failed: %s", error, exc_info=True)
        return int(error.exit_code), str(error)
    except MemoryError:
        logger.error("out of memory", exc_info=True)
        return int(ExitCode.BUG), "out of memory"
    except BaseException as error:
        logger.error("bug", exc_info=True)
        last = traceback.format_exception_only(error)[-1].strip()
        return int(ExitCode.BUG), f"bug: {last}"
    return int(ExitCode.DONE), ""


def _ask_to_stop(control: Control, code: int) -> None:
    control.stop_code = int(code)


def _redirect_output(job: RankJob) -> None:
    """Everything this process says goes to its log in the work folder, libraries' output too."""
    path = work_path(job.output) / f"rank-{job.rendezvous.rank}.log"
    try:
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:
        log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s rank={job.rendezvous.rank} %(name)s %(levelname)s %(message)s",
        force=True,
    )
