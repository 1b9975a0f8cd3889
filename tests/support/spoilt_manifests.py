"""Ways to spoil manifest, arguments, recipe and output of a job; each says how it is told."""

from spoilt_jobs import Job, case

# the manifest


@case(
    "manifest: must be valid YAML (expected ',' or ']', but got '<stream end>' at lin",
    "'{root}/job.yaml'",
)
def no_yaml(job: Job) -> None:
    job.text = "spec: [1, 2"


@case("manifest: must be UTF-8 text (byte 3 is not)", "'{root}/job.yaml'")
def manifest_not_utf8(job: Job) -> None:
    job.text = "caf\udce9"


@case("manifest: must hold one document, not 0", "'{root}/job.yaml'")
def empty_manifest(job: Job) -> None:
    job.text = ""


@case("spec.recipe.weigths: unknown field, did you mean 'weights'?", "{}")
def unknown_field(job: Job) -> None:
    job.spec["recipe"]["weigths"] = {}


@case("apiVersion: must be 'quantfleet.io/v1alpha1'", "'quantfleet.io/v2'")
def unknown_version(job: Job) -> None:
    job.manifest["apiVersion"] = "quantfleet.io/v2"


@case(
    "metadata.name: must have at most 46 characters",
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'",
)
def name_too_long(job: Job) -> None:
    job.manifest["metadata"]["name"] = "a" * 60


@case("spec.recipe.scheme: must be 'W8A8', 'W8A8Dynamic', 'W8A16' or 'W4A16'", "'W2A2'")
def unknown_scheme(job: Job) -> None:
    job.spec["recipe"]["scheme"] = "W2A2"


@case("spec.calibration.sampleCount: must be an integer", "'many'")
def number_for_a_text(job: Job) -> None:
    job.spec["calibration"]["sampleCount"] = "many"


@case("spec.calibration.sampleCount: must be at least 1", "0")
def no_samples_wanted(job: Job) -> None:
    job.spec["calibration"]["sampleCount"] = 0


@case(
    "spec.model.source.pvc.path: must be a relative path without empty, '.' or '..' s",
    "'../secret'",
)
def path_leaves_the_claim(job: Job) -> None:
    job.spec["model"]["source"]["pvc"]["path"] = "../secret"


@case("spec.output.pvc.path: must be a relative path without empty, '.' or '..' segment", "'.'")
def output_is_the_claim_itself(job: Job) -> None:
    job.spec["output"]["pvc"]["path"] = "."


@case("spec.recipe.weights.gptq: is only allowed with method GPTQ", "'RTN'")
def gptq_options_for_rtn(job: Job) -> None:
    job.spec["recipe"]["weights"]["gptq"] = {"blockSize": 64}


@case("spec.model.trustRemoteCode: must be false: code that comes with a model is never", "True")
def code_of_the_model_trusted(job: Job) -> None:
    job.spec["model"]["trustRemoteCode"] = True


@case("spec.calibration: is required: the static scheme W8A8 needs calibration data", "None")
def data_needed_but_absent(job: Job) -> None:
    del job.spec["calibration"]


# the arguments


@case("--workers: must be from 1 to 10000", "0")
def no_workers(job: Job) -> None:
    job.options = ["--workers", "0"]


@case("--workers: must be from 1 to 10000", "-1")
def fewer_than_no_workers(job: Job) -> None:
    job.options = ["--workers", "-1"]


@case("--workers: must be from 1 to 10000", "100000")
def far_too_many_workers(job: Job) -> None:
    job.options = ["--workers", "100000"]


@case("spec.workers: must need at most the ", "'9000 ranks on this machine'")
def more_workers_than_memory(job: Job) -> None:
    job.options = ["--workers", "9000"]


@case("spec.calibration.source.pvc.claimName: names a volume that is not mapped: pass -", "'data'")
def claim_not_mapped(job: Job) -> None:
    job.volumes["data"] = ""


@case("--volume: must be CLAIM=DIR", "'models'")
def volume_without_a_folder(job: Job) -> None:
    job.options = ["--volume", "models"]


@case("--volume: must name a folder, not a file", "'data={root}/data/calib.jsonl'")
def volume_is_a_file(job: Job) -> None:
    job.volumes["data"] = str(job.data)


# the recipe


@case("spec.recipe.weights.groupSize: must divide the 64 input features of model.layers", "128")
def group_size_that_does_not_divide(job: Job) -> None:
    job.spec["recipe"] = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 128}}


@case(
    "spec.recipe.overrides[0].targets[0]: must name at least one linear of the model,",
    "'*.layers.9.mlp.down_proj'",
)
def target_that_names_no_module(job: Job) -> None:
    override = {"targets": ["*.layers.9.mlp.down_proj"], "scheme": "W8A16"}
    job.spec["recipe"]["overrides"] = [override]


@case("spec.recipe.overrides[0].targets[0]: must be a valid regular expression after 'r", "'re:('")
def target_is_a_broken_pattern(job: Job) -> None:
    job.spec["recipe"]["overrides"] = [{"targets": ["re:("], "scheme": "W8A16"}]


@case(
    "spec.recipe.ignore[1]: must name at least one linear of the model, for example *",
    "'*.o_porj'",
)
def ignore_that_names_no_module(job: Job) -> None:
    job.spec["recipe"]["ignore"] = ["lm_head", "*.o_porj"]


@case(
    "spec.recipe.overrides[0].targets[0]: must not name the embedding, which cannot b",
    "'model.embed_tokens'",
)
def embeddings_targeted(job: Job) -> None:
    job.spec["recipe"]["overrides"] = [{"targets": ["model.embed_tokens"], "scheme": "W8A16"}]


@case(
    "spec.recipe: must leave at least one linear to quantize (overrides and ignore ta",
    "'scheme W8A8'",
)
def all_ignored(job: Job) -> None:
    job.spec["recipe"]["ignore"] = ["*"]


@case(
    "spec.output.formats[0]: must have what model.layers.0.self_attn.q_proj needs, W4",
    "'Ascend'",
)
def ascend_with_w4a16(job: Job) -> None:
    job.spec["recipe"] = {"scheme": "W4A16", "weights": {"method": "RTN", "groupSize": 32}}
    job.spec["output"]["formats"] = ["Ascend"]


# the output


@case(
    "spec.output.pvc.path: must not exist yet (overwritePolicy Replace replaces it)",
    "'{root}/out/result'",
)
def output_exists(job: Job) -> None:
    job.output.mkdir()
    (job.output / "precious").write_text("do not touch")


@case("spec.output.pvc.path: must be a folder where it exists", "'{root}/out/result'")
def output_is_a_file(job: Job) -> None:
    job.output.write_text("do not touch")


@case(
    "spec.output.pvc.path: must not lie in the model, {root}/models/llama",
    "'{root}/models/llama/result'",
)
def output_inside_the_model(job: Job) -> None:
    job.volumes["out"] = str(job.model)


@case(
    "spec.output.pvc.path: must lie in folders, but {root}/out/file is none",
    "'{root}/out/file/result'",
)
def output_under_a_file(job: Job) -> None:
    (job.root / "out" / "file").write_text("")
    job.spec["output"]["pvc"]["path"] = "file/result"


@case(
    "spec.output.pvc.path: must not hold what is read, {root}/out/result/calib.jsonl",
    "'{root}/out/result'",
)
def output_holds_the_data(job: Job) -> None:
    job.output.mkdir()
    job.data.rename(job.output / "calib.jsonl")
    job.volumes["data"] = str(job.output)
    job.spec["output"]["overwritePolicy"] = "Replace"
