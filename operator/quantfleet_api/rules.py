"""Rules of a manifest that concern more than one field; single fields are bounded in the models.

Called by `loading` for every manifest. The first broken rule is raised, with the full path of the
field that the user should change.
"""

from quantfleet_api.errors import InvalidInput
from quantfleet_api.recipe import STATIC, WEIGHT_ONLY, Recipe, needs_data, schemes_of
from quantfleet_api.spec import JobSpec, PathInClaim, QuantizationJob


def check(job: QuantizationJob) -> None:
    """Raises InvalidInput at the first rule that the job breaks."""
    spec = job.spec
    _check_weights(spec.recipe)
    _check_activations(spec.recipe)
    _check_transforms(spec.recipe)
    _check_calibration(spec)
    _check_devices(spec)
    _check_output_apart(spec)


def _check_weights(recipe: Recipe) -> None:
    weights, where = recipe.weights, "spec.recipe.weights"
    if weights.gptq is not None and weights.method != "GPTQ":
        raise InvalidInput(f"{where}.gptq", weights.method, "is only allowed with method GPTQ")
    if recipe.scheme in WEIGHT_ONLY:
        return
    if weights.group_size:
        rule = f"must be 0 with scheme {recipe.scheme}, whose weights have one scale a row"
        raise InvalidInput(f"{where}.groupSize", weights.group_size, rule)
    if not weights.symmetric:
        rule = f"must be true with scheme {recipe.scheme}, whose weights are symmetric"
        raise InvalidInput(f"{where}.symmetric", "false", rule)


def _check_activations(recipe: Recipe) -> None:
    if recipe.activations is not None and STATIC.isdisjoint(schemes_of(recipe)):
        rule = f"is only allowed with a static scheme ({', '.join(sorted(STATIC))})"
        raise InvalidInput("spec.recipe.activations", recipe.scheme, rule)


def _check_transforms(recipe: Recipe) -> None:
    if len(recipe.transforms) > 1:
        rule = "must hold smoothQuant at most once"
        raise InvalidInput("spec.recipe.transforms", f"{len(recipe.transforms)} of them", rule)


def _check_calibration(spec: JobSpec) -> None:
    calibration = spec.calibration
    if calibration is None:
        if needs_data(spec.recipe):
            rule = f"is required: {_why_data(spec.recipe)} needs calibration data"
            raise InvalidInput("spec.calibration", None, rule)
    elif calibration.min_tokens > calibration.sequence_length:
        rule = f"must be at most sequenceLength ({calibration.sequence_length})"
        raise InvalidInput("spec.calibration.minTokens", calibration.min_tokens, rule)


def _why_data(recipe: Recipe) -> str:
    if recipe.weights.method == "GPTQ":
        return "GPTQ"
    if recipe.transforms:
        return "smoothQuant"
    return f"the static scheme {next(name for name in schemes_of(recipe) if name in STATIC)}"


def _check_devices(spec: JobSpec) -> None:
    workers, where = spec.workers, "spec.workers"
    if workers.devices_per_worker and workers.device_resource_name is None:
        rule = "is required with devicesPerWorker above 0"
        raise InvalidInput(f"{where}.deviceResourceName", None, rule)
    if workers.device_resource_name is not None and not workers.devices_per_worker:
        rule = "must be at least 1 with deviceResourceName"
        raise InvalidInput(f"{where}.devicesPerWorker", workers.devices_per_worker, rule)
    if workers.devices_per_worker and workers.processes_per_worker > workers.devices_per_worker:
        rule = f"must be at most devicesPerWorker ({workers.devices_per_worker}), one a process"
        raise InvalidInput(f"{where}.processesPerWorker", workers.processes_per_worker, rule)
    names = [variable.name for variable in workers.env]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{where}.env", name, "must not name a variable twice")


def _check_output_apart(spec: JobSpec) -> None:
    """Publishing replaces folders by renaming, so no input may lie where the output will."""
    inputs: dict[str, PathInClaim] = {"spec.model": spec.model.source.pvc}
    if spec.calibration is not None:
        inputs["spec.calibration"] = spec.calibration.source.pvc
    if spec.evaluation is not None:
        inputs["spec.evaluation"] = spec.evaluation.source.pvc
    out = spec.output.pvc
    for field, source in inputs.items():
        if source.claim_name != out.claim_name:
            continue
        for suffix in ("", ".work", ".rejected"):
            if f"{source.path}/".startswith(f"{out.path}{suffix}/"):
                rule = f"must not hold what {field}.source reads ({source.path})"
                raise InvalidInput("spec.output.pvc.path", out.path, rule)
