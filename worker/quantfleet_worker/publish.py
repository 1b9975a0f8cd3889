"""From finished layers to a published folder: by one rename, with its digest manifest.

Called by rank 0 when everything is committed and verified. Nothing here depends on the run: report
and summary lie beside the output, not in it.
"""

import shutil
from pathlib import Path

from quantfleet_api.errors import GateNotMet, InvalidInput
from quantfleet_worker import published, report
from quantfleet_worker.engine import Engine
from quantfleet_worker.formats import FORMATS
from quantfleet_worker.journal import Journal, read_journal
from quantfleet_worker.verify import Perplexities
from quantfleet_worker.work_folder import sync_folder


def publish(engine: Engine, perplexities: Perplexities | None) -> None:
    """Complete the folder, check the gates, write the report, rename.

    A missed gate leaves `<output>.rejected` instead of the output and raises GateNotMet.
    """
    journal = read_journal(engine.folder)
    assert journal is not None, "layers are committed"
    assert len(journal.layers) == len(engine.plan.layers), "all of them"
    files = _complete(engine, journal)
    output = engine.folder.output
    missed = _missed_gate(engine, journal, perplexities)
    content = report.build(engine, journal, files, perplexities, missed)
    target = output if missed is None else output.with_name(output.name + ".rejected")
    report.write(engine, content, target)
    _rename(engine, target, replace=missed is not None or _replaces(engine))
    shutil.rmtree(engine.folder.path, ignore_errors=True)  # the launcher removes the rest
    if missed is not None:
        raise GateNotMet(f"{missed}; the result was left in {target}")


def _complete(engine: Engine, journal: Journal) -> dict[str, tuple[str, int]]:
    """Write what is not tensors; every file of the output with its SHA-256 and size."""
    files = {
        name.removeprefix("out/"): (record.sha256, record.num_bytes)
        for layer in journal.layers
        for name, record in layer.files.items()
        if name.startswith("out/")
    }
    several = len(engine.plan.formats) > 1
    for name in engine.plan.formats:
        folder = engine.folder.format_folder(FORMATS[name].folder, several=several)
        contents = FORMATS[name].metadata_files(engine.plan, engine.checkpoint.config)
        for copied in engine.plan.copied_files:
            contents[copied] = (engine.checkpoint.folder / copied).read_bytes()
        for file, content in contents.items():
            files[engine.format_path(name, file)] = engine.folder.write_bytes(
                folder / file, content
            )
    manifest = published.manifest(files, engine.plan.digest)
    engine.folder.write_bytes(engine.folder.publishing / published.MANIFEST_NAME, manifest)
    return files


def _missed_gate(engine: Engine, journal: Journal, perplexities: Perplexities | None) -> str | None:
    spec = engine.job.spec
    if spec.recipe.warnings == "Fail":
        warnings = report.all_warnings(engine, journal)
        if warnings:
            return f"spec.recipe.warnings is Fail and there is one: {warnings[0]}"
    limit = None if spec.evaluation is None else spec.evaluation.max_perplexity_ratio
    if limit is None or perplexities is None:
        return None
    if not perplexities.ratio <= float(limit):  # also refuses a ratio that is not a number
        return (
            f"perplexity is {perplexities.ratio:.4f} times that of the float model, "
            f"spec.evaluation.maxPerplexityRatio is {limit}"
        )
    return None


def _replaces(engine: Engine) -> bool:
    return engine.job.spec.output.overwrite_policy == "Replace"


def _rename(engine: Engine, target: Path, *, replace: bool) -> None:
    folder = engine.folder
    with folder.writing(target):
        if target.exists():
            if not replace:
                raise InvalidInput("spec.output", str(target), "must not exist under Fail")
            # into the work folder, with which it goes, whenever that is
            target.rename(folder.path / f"replaced-{folder.attempt}")
        folder.publishing.rename(target)
        sync_folder(target.parent)
