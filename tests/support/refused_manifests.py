"""Manifests that are refused, each as edits of the full one and the line that says why.

Read by the tests of the models and by those that ask a real API server for the same answer.
"""

from manifests import DELETE

CAL = "spec.calibration"
REC = "spec.recipe"
WORK = "spec.workers"

# (edits of the full manifest, the message)
# fmt: off
SINGLE_FIELD = [
    ({"apiVersion": "v1"}, "apiVersion: must be 'quantfleet.io/v1alpha1', got 'v1'"),
    ({"kind": "Job"}, "kind: must be 'QuantizationJob', got 'Job'"),
    ({"kind": DELETE}, "kind: is required, got nothing"),
    ({"status": {}}, "status: unknown field, known are apiVersion, kind, metadata, spec, got {}"),
    ({"metadata.name": "Big"},
     r"metadata.name: must match ^[a-z]([-a-z0-9]*[a-z0-9])?$, got 'Big'"),
    ({"metadata.name": "1st"},
     r"metadata.name: must match ^[a-z]([-a-z0-9]*[a-z0-9])?$, got '1st'"),
    (
        {"metadata.name": "a" * 47},
        f"metadata.name: must have at most 46 characters, got '{'a' * 47}'",
    ),
    ({"metadata.name": False},
     "metadata.name: must be a string (a number needs quotes), got False"),
    ({"spec": []}, "spec: must be a mapping, got []"),
    (
        {f"{REC}.weigths": {}},
        "spec.recipe.weigths: unknown field, did you mean 'weights'?, got {}",
    ),
    (
        {f"{REC}.weights.group_size": 0},
        "spec.recipe.weights.group_size: unknown field, did you mean 'groupSize'?, got 0",
    ),
    (
        {f"{REC}.overrides.0.target": "x"},
        "spec.recipe.overrides[0].target: unknown field, did you mean 'targets'?, got 'x'",
    ),
    (
        {f"{REC}.overrides.0.zzz": 1},
        "spec.recipe.overrides[0].zzz: unknown field, known are targets, scheme, got 1",
    ),
    ({"spec.model.trustRemoteCode": True}, "spec.model.trustRemoteCode: must be false: code that "
     "comes with a model is never run, got True"),
    (
        {"spec.model.source": {}},
        "spec.model.source.pvc: is required: give exactly one of pvc, got nothing",
    ),
    (
        {"spec.model.source": {"hub": {}}},
        "spec.model.source.hub: unknown field, known are pvc, got {}",
    ),
    (
        {"spec.model.source.pvc.path": "../m"},
        "spec.model.source.pvc.path: must be a relative path without empty, '.' or '..' segments, "
        "got '../m'",
    ),
    (
        {"spec.model.source.pvc.path": "/m"},
        "spec.model.source.pvc.path: must be a relative path without empty, '.' or '..' segments, "
        "got '/m'",
    ),
    (
        {"spec.model.source.pvc.path": "a\nb"},
        r"spec.model.source.pvc.path: must hold printable characters only, got 'a\nb'",
    ),
    (
        {"spec.model.source.pvc.claimName": ""},
        "spec.model.source.pvc.claimName: must not be empty, got ''",
    ),
    ({f"{CAL}.sampleCount": "64"}, "spec.calibration.sampleCount: must be an integer, got '64'"),
    ({f"{CAL}.sampleCount": True}, "spec.calibration.sampleCount: must be an integer, got True"),
    ({f"{CAL}.sampleCount": 64.0}, "spec.calibration.sampleCount: must be an integer, got 64.0"),
    ({f"{CAL}.sampleCount": 0}, "spec.calibration.sampleCount: must be at least 1, got 0"),
    ({f"{CAL}.sampleCount": DELETE}, "spec.calibration.sampleCount: is required, got nothing"),
    ({f"{CAL}.sequenceLength": 2**31}, "spec.calibration.sequenceLength: must be at most "
     "2147483647, got 2147483648"),
    ({f"{CAL}.minTokens": 0}, "spec.calibration.minTokens: must be at least 1, got 0"),
    ({f"{CAL}.concatenate": "yes"},
     "spec.calibration.concatenate: must be true or false, got 'yes'"),
    ({f"{CAL}.textField": "body"}, "spec.calibration.textField: must be 'text', 'messages' or "
     "'inputs_pretokenized', got 'body'"),
    ({f"{CAL}.seed": -1}, "spec.calibration.seed: must be at least 0, got -1"),
    ({f"{REC}.scheme": "W4A4"}, "spec.recipe.scheme: must be 'W8A8', 'W8A8Dynamic', 'W8A16' or "
     "'W4A16', got 'W4A4'"),
    ({f"{REC}.weights.method": "AWQ"}, "spec.recipe.weights.method: must be 'RTN' or 'GPTQ', got "
     "'AWQ'"),
    ({f"{REC}.weights.groupSize": 48}, "spec.recipe.weights.groupSize: must be 0, 32, 64 or 128, "
     "got 48"),
    ({f"{REC}.weights.groupSize": False}, "spec.recipe.weights.groupSize: must be an integer, got "
     "False"),
    ({f"{REC}.activations.percentile": 99.9}, "spec.recipe.activations.percentile: must be a "
     'decimal number in quotes, such as "0.5", got 99.9'),
    ({f"{REC}.activations.percentile": "50"}, "spec.recipe.activations.percentile: must be a "
     "decimal number above 50 to 100, got '50'"),
    ({f"{REC}.activations.observer": 1}, "spec.recipe.activations.observer: must be 'MinMax', "
     "'Percentile' or 'MSE', got 1"),
    ({f"{REC}.transforms.0.smoothQuant.alpha": "1.5"}, "spec.recipe.transforms[0].smoothQuant."
     "alpha: must be a decimal number from 0 to 1, got '1.5'"),
    ({f"{REC}.transforms.0.smoothQuant.alpha": "nan"}, "spec.recipe.transforms[0].smoothQuant."
     "alpha: must be a decimal number in quotes, such as \"0.5\", got 'nan'"),
    ({f"{REC}.transforms.0.smoothQuant.alpha": "-0.5"}, "spec.recipe.transforms[0].smoothQuant."
     r"alpha: must match ^(0|[1-9][0-9]*)(\.[0-9]+)?$, got '-0.5'"),
    ({f"{REC}.transforms": [{}]},
     "spec.recipe.transforms[0].smoothQuant: is required: give exactly "
     "one of smoothQuant, got nothing"),
    ({f"{REC}.transforms": ""}, "spec.recipe.transforms: must be a list, got ''"),
    ({f"{REC}.overrides.0.scheme": "none"}, "spec.recipe.overrides[0].scheme: must be W8A8, "
     "W8A8Dynamic, W8A16, W4A16 or None, got 'none'"),
    ({f"{REC}.overrides.0.scheme": DELETE}, "spec.recipe.overrides[0].scheme: is required, got "
     "nothing"),
    ({f"{REC}.overrides.0.scheme": None}, "spec.recipe.overrides[0].scheme: is required, got "
     "nothing"),
    ({f"{REC}.wegihts": None}, None),
    ({f"{REC}.ignore": [None]}, None),
    ({f"{WORK}.labels": {"a\nb": "x"}}, None),
    ({f"{REC}.overrides.0.targets": "*.q_proj"},
     "spec.recipe.overrides[0].targets: must be a list, "
     "got '*.q_proj'"),
    ({f"{REC}.overrides.0.targets": []}, "spec.recipe.overrides[0].targets: must not be "
     "empty, got []"),
    ({f"{REC}.ignore": ["re:("]}, "spec.recipe.ignore[0]: must be a valid regular expression after "
     "'re:' (missing ), unterminated subpattern at position 0), got 're:('"),
    ({f"{REC}.ignore": [""]}, "spec.recipe.ignore[0]: must not be empty, got ''"),
    ({f"{REC}.propagation": "Both"}, "spec.recipe.propagation: must be 'Float' or 'Quantized', got "
     "'Both'"),
    ({f"{WORK}.count": 10_001}, "spec.workers.count: must be at most 10000, got 10001"),
    ({f"{WORK}.backend": "MPI"}, "spec.workers.backend: must be 'Auto', 'HCCL', 'NCCL' or 'Gloo', "
     "got 'MPI'"),
    ({f"{WORK}.hostPath": "/"}, None),
    ({f"{WORK}.serviceAccountName": "admin"}, None),
    ({f"{WORK}.resources.limits.memory": 16}, "spec.workers.resources.limits.memory: must be a "
     "string (a number needs quotes), got 16"),
    ({f"{WORK}.nodeSelector": {"a b": "x"}}, None),
    ({"spec.output.pvc.path": ""}, "spec.output.pvc.path: must not be empty, got ''"),
    ({"spec.output.pvc.path": "."}, "spec.output.pvc.path: must be a relative path without empty, "
     "'.' or '..' segments, got '.'"),
    ({"spec.output.formats": []}, "spec.output.formats: must not be empty, got []"),
    ({"spec.output.formats": ["Ascend", "Ascend"]}, "spec.output.formats: must not name a format "
     "twice, got ['Ascend', 'Ascend']"),
    ({"spec.output.formats": ["GGUF"]}, "spec.output.formats[0]: must be 'CompressedTensors' or "
     "'Ascend', got 'GGUF'"),
    ({"spec.output": DELETE}, "spec.output: is required, got nothing"),
    ({"spec.evaluation.windowLength": 1},
     "spec.evaluation.windowLength: must be at least 2, got 1"),
    ({"spec.evaluation.maxPerplexityRatio": 1.05}, "spec.evaluation.maxPerplexityRatio: must be a "
     'decimal number in quotes, such as "0.5", got 1.05'),
    ({"spec.evaluation.maxPerplexityRatio": "0"}, "spec.evaluation.maxPerplexityRatio: must be a "
     "decimal number above 0 to 1000000, got '0'"),
    ({"spec.checkpoint.everyLayers": -1},
     "spec.checkpoint.everyLayers: must be at least 0, got -1"),
    ({"spec.runPolicy.backoffLimit": -1},
     "spec.runPolicy.backoffLimit: must be at least 0, got -1"),
]

GPTQ = {"spec.recipe.weights": {"method": "GPTQ"}}

SEVERAL_FIELDS = [
    ({f"{REC}.weights.gptq": {}}, "spec.recipe.weights.gptq: is only allowed with method GPTQ, got "
     "'RTN'"),
    ({f"{REC}.weights": {"method": "GPTQ", "gptq": {"dampening": "1"}}}, "spec.recipe.weights.gptq."
     "dampening: must be a decimal number above 0 below 1, got '1'"),
    ({f"{REC}.weights.groupSize": 128},
     "spec.recipe.weights.groupSize: must be 0 with scheme W8A8, "
     "whose weights have one scale a row, got 128"),
    ({f"{REC}.weights.symmetric": False}, "spec.recipe.weights.symmetric: must be true with scheme "
     "W8A8, whose weights are symmetric, got 'false'"),
    ({f"{REC}.scheme": "W8A16"}, "spec.recipe.activations: is only allowed with a static scheme "
     "(W8A8), got 'W8A16'"),
    ({f"{REC}.transforms": [{"smoothQuant": {}}, {"smoothQuant": {}}]}, "spec.recipe.transforms: "
     "must hold smoothQuant at most once, got '2 of them'"),
    ({CAL: DELETE, f"{REC}.transforms": []},
     "spec.calibration: is required: the static scheme W8A8 "
     "needs calibration data, got None"),
    ({CAL: DELETE, f"{REC}.transforms": [], **GPTQ}, "spec.calibration: is required: GPTQ needs "
     "calibration data, got None"),
    ({CAL: DELETE, f"{REC}.scheme": "W8A16", f"{REC}.activations": DELETE}, "spec.calibration: is "
     "required: smoothQuant needs calibration data, got None"),
    ({f"{CAL}.minTokens": 257}, "spec.calibration.minTokens: must be at most sequenceLength (256), "
     "got 257"),
    ({f"{WORK}.deviceResourceName": DELETE}, "spec.workers.deviceResourceName: is required with "
     "devicesPerWorker above 0, got None"),
    ({f"{WORK}.devicesPerWorker": 0}, "spec.workers.devicesPerWorker: must be at least 1 with "
     "deviceResourceName, got 0"),
    ({f"{WORK}.env": [{"name": "A"}, {"name": "A"}]}, "spec.workers.env: must not name a variable "
     "twice, got 'A'"),
    ({"spec.output.pvc": {"claimName": "models", "path": "smollm2"}}, "spec.output.pvc.path: must "
     "not hold what spec.model.source reads (smollm2), got 'smollm2'"),
    (
        {
            "spec.calibration.source.pvc.path": "smollm2-w8a8.work/calib.jsonl",
            "spec.output.pvc.claimName": "data",
        },
        "spec.output.pvc.path: must not hold what spec.calibration.source reads "
        "(smollm2-w8a8.work/calib.jsonl), got 'smollm2-w8a8'",
    ),
]
# fmt: on
