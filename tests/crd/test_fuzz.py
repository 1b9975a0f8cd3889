"""For any manifest, a real API server and the models give the same answer."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from cluster_access import Cluster
from crd_cases import models_refuse, only_models_refuse, server_refuses
from crd_strategies import manifests
from quantfleet_api.crd import schema

pytestmark = pytest.mark.controlplane


def compared(cluster: Cluster, examples: int) -> Counter[str]:
    """Asks both about this many manifests; how often they gave which answer."""
    answers: Counter[str] = Counter()

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(manifest=manifests(schema()))
    def agree(manifest: dict[str, Any]) -> None:
        of_server, of_models = server_refuses(cluster, manifest), models_refuse(manifest)
        if of_server is None and of_models is not None and only_models_refuse(of_models):
            answers["only models refuse"] += 1
            return
        assert (of_server is None) == (of_models is None), (of_server, of_models)
        answers["accepted" if of_server is None else "refused"] += 1

    agree()
    return answers


def check(answers: Counter[str], examples: int) -> None:
    assert answers.total() >= examples
    assert answers["accepted"] > examples / 10
    assert answers["refused"] > examples / 4


def test_server_and_models_agree(cluster: Cluster) -> None:
    check(compared(cluster, 200), 200)


@pytest.mark.soak
def test_server_and_models_agree_at_length(cluster: Cluster) -> None:
    check(compared(cluster, 2000), 2000)
