"""What the images run: a worker without a place, a whole small quantization, the operator."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from containers import BuiltImage, open_to_all
from tiny_models import make_tiny_model, tiny_texts

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of a model, of texts and for output that the image's user may use."""
    folder = tmp_path_factory.mktemp("volumes")
    make_tiny_model(folder / "models" / "tiny", "llama")
    (folder / "data").mkdir()
    lines = [json.dumps({"text": text}) for text in tiny_texts(8)]
    (folder / "data" / "calib.jsonl").write_text("\n".join(lines) + "\n")
    job = {
        "apiVersion": "quantfleet.io/v1alpha1",
        "kind": "QuantizationJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "model": {"source": {"pvc": {"claimName": "models", "path": "tiny"}}},
            "calibration": {
                "source": {"pvc": {"claimName": "data", "path": "calib.jsonl"}},
                "sampleCount": 8,
                "sequenceLength": 32,
            },
            "recipe": {"scheme": "W8A8", "weights": {"method": "RTN"}},
            "workers": {"count": 2},
            "output": {
                "pvc": {"claimName": "out", "path": "tiny"},
                "formats": ["CompressedTensors"],
            },
        },
    }
    (folder / "data" / "job.yaml").write_text(yaml.safe_dump(job))
    (folder / "out").mkdir()
    shutil.chown(folder / "out", 1000, 1000)
    open_to_all(folder)
    return folder


def quantfleet(worker: BuiltImage, folder: Path, command: str) -> tuple[int, str]:
    """Exit code and output of the image's `quantfleet` on the folders."""
    mounted = {folder / name: f"/volumes/{name}" for name in ("models", "data", "out")}
    done = worker.run("quantfleet", *command.split(), volumes=mounted)
    return done.returncode, done.stdout + done.stderr


VOLUMES = "--volume models=/volumes/models --volume data=/volumes/data --volume out=/volumes/out"


def test_a_worker_without_a_place_ends_with_64_and_one_line(worker: BuiltImage) -> None:
    done = worker.run(environment={"QUANTFLEET_TERMINATION_LOG": "/dev/shm/last-words"})
    assert done.returncode == 64
    assert done.stderr.splitlines()[0].startswith("error: QUANTFLEET_SPEC")
    assert len(done.stderr.splitlines()) == 1, done.stderr


def test_a_small_model_is_planned_quantized_and_verified(worker: BuiltImage, volumes: Path) -> None:
    """On a read-only root, as the image's user, without a network."""
    code, said = quantfleet(worker, volumes, f"plan /volumes/data/job.yaml {VOLUMES}")
    assert code == 0, said
    code, said = quantfleet(worker, volumes, f"run /volumes/data/job.yaml {VOLUMES}")
    assert code == 0, said
    code, said = quantfleet(worker, volumes, "verify /volumes/out/tiny")
    assert code == 0, said
    assert (volumes / "out" / "tiny" / "config.json").stat().st_uid == 1000


@pytest.mark.parametrize(
    ("module", "variable", "value"),
    [
        ("quantfleet_operator", "QUANTFLEET_RECONCILE_WORKERS", "many"),
        ("quantfleet_server", "QUANTFLEET_TLS_CERTIFICATE_FILE", ""),
    ],
)
def test_a_wrong_setting_ends_with_2_and_names_it(
    operator: BuiltImage, module: str, variable: str, value: str
) -> None:
    """One image holds both programs, and all that they import."""
    done = operator.run("python", "-m", module, environment={variable: value})
    assert done.returncode == 2, done.stderr
    assert variable in done.stderr
    assert "Traceback" not in done.stderr
