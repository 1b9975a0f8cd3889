"""Runs whose output bytes must not depend on the number of ranks: axes, recipes, and selections.

A case is one model and one recipe with everything else that could matter. `suite_cases` pairs every
recipe with every model and spreads the values of all other axes evenly over them; `soak_cases` is
the product of what could plausibly interact.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from engine_runs import BOTH, Manifest, make_manifest

RECIPES = ("W8A8", "SmoothQuant-W8A8", "W8A8Dynamic", "W4A16-GPTQ")
TINY = ("llama", "mistral", "qwen2", "qwen3")
SMOLLM2 = "smollm2"
MODELS = (SMOLLM2, *TINY)

LAYOUTS = ((2, 10), (3, 10), (5, 10), (5, 3))
"""(ranks, samples); each is compared with one rank that has the same samples."""

AXES: dict[str, tuple[Any, ...]] = {
    "dtype": ("float32", "bfloat16"),
    "propagation": ("Quantized", "Float"),
    "observer": ("MinMax", "Percentile", "MSE"),
    "symmetric": (False, True),  # activations; with GPTQ the weights
    "tied": (True, False),
    "head": (False, True),  # quantized too
    "overrides": (False, True),
    "batch_size": (1, 2),
    "formats": (BOTH, tuple(reversed(BOTH)), BOTH[:1]),
    "small_chunks": (False, True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One choice of every axis."""

    recipe: str
    model: str
    layouts: tuple[tuple[int, int], ...]
    dtype: str
    propagation: str
    observer: str
    symmetric: bool
    tied: bool
    head: bool
    overrides: bool
    batch_size: int
    formats: tuple[str, ...]
    small_chunks: bool

    def __str__(self) -> str:
        values = (getattr(self, field.name) for field in fields(self) if field.name != "layouts")
        return "-".join("+".join(v) if isinstance(v, tuple) else str(v) for v in values)

    @property
    def checkpoint(self) -> str:
        """The model's name in the claim `models`."""
        if self.model == SMOLLM2:
            return f"{self.model}-{self.dtype}"
        return f"{self.model}-{self.dtype}-{'tied' if self.tied else 'untied'}"

    @property
    def chunk_bytes(self) -> int | None:
        """So small that one exchange takes many transfers, or None for the engine's own."""
        if not self.small_chunks:
            return None
        return 1 << 18 if self.model == SMOLLM2 else 1 << 14

    def manifest(self, samples: int) -> Manifest:
        """What to run."""
        data = {"batchSize": self.batch_size, "sampleCount": samples}
        return make_manifest(self.checkpoint, self._recipe(), formats=self._formats(), **data)

    def _formats(self) -> tuple[str, ...]:
        return BOTH[:1] if self.recipe == "W4A16-GPTQ" else self.formats

    def _recipe(self) -> dict[str, Any]:
        uses_gptq = self.recipe == "W4A16-GPTQ"
        recipe: dict[str, Any] = {
            "scheme": "W4A16" if uses_gptq else self.recipe.removeprefix("SmoothQuant-"),
            "propagation": self.propagation,
            "ignore": [] if self.head else ["lm_head"],
        }
        if uses_gptq:
            recipe["weights"] = {
                "method": "GPTQ",
                "groupSize": 64 if self.model == SMOLLM2 else 32,
                # asymmetric weights are the only scheme of their model
                "symmetric": self.symmetric or self.overrides,
                "gptq": {"activationOrder": self.symmetric},
            }
        if self.recipe in ("SmoothQuant-W8A8", "W8A8Dynamic"):
            recipe["transforms"] = [{"smoothQuant": {"alpha": "0.5"}}]
        if self.recipe.endswith("W8A8"):
            recipe["activations"] = {
                "symmetric": self.symmetric,
                "observer": self.observer,
                "percentile": "99.5",
            }
        if self.overrides:
            other = "W8A16" if self.recipe.endswith("W8A8") else "W8A8"
            recipe["overrides"] = [
                {"targets": ["*.layers.1.mlp.down_proj"], "scheme": other},
                {"targets": ["*.layers.0.self_attn.o_proj"], "scheme": "None"},
            ]
        return recipe


def suite_cases(seed: int = 20) -> list[Case]:
    """Every recipe on every model; the values of each other axis are dealt out to each recipe.

    The real model is large, so there each recipe meets two layouts, and all four are met.
    """
    rng = random.Random(seed)
    cases = []
    for number, recipe in enumerate(RECIPES):
        dealt = {axis: _dealt(values, len(MODELS), rng) for axis, values in AXES.items()}
        for index, model in enumerate(MODELS):
            choice = {axis: values[index] for axis, values in dealt.items()}
            layouts = LAYOUTS
            if model == SMOLLM2:
                choice["tied"] = True
                layouts = (LAYOUTS[number], LAYOUTS[2]) if number != 2 else LAYOUTS[:1]
            cases.append(Case(recipe=recipe, model=model, layouts=layouts, **choice))
    return cases


def soak_cases(seed: int = 21) -> Iterator[Case]:
    """All of recipe, model, dtype and propagation, on tiny models also of batch size and observer.

    The rest is dealt out.
    """
    rng = random.Random(seed)
    for model in MODELS:
        product_of = ["dtype", "propagation"]
        product_of += [] if model == SMOLLM2 else ["batch_size", "observer"]
        for recipe, *values in itertools.product(RECIPES, *(AXES[axis] for axis in product_of)):
            yield from _soak_case(recipe, model, dict(zip(product_of, values, strict=True)), rng)


def _soak_case(
    recipe: str, model: str, chosen: dict[str, Any], rng: random.Random
) -> Iterator[Case]:
    """The case, unless it differs from another only by an observer that nothing uses."""
    if recipe.endswith("W8A8") or chosen.get("observer", "MinMax") == "MinMax":
        choice = chosen | {axis: rng.choice(AXES[axis]) for axis in AXES if axis not in chosen}
        choice["tied"] |= model == SMOLLM2
        yield Case(recipe=recipe, model=model, layouts=LAYOUTS, **choice)


def _dealt(values: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    """`count` values in random order, each as often as any other, give or take one."""
    dealt = [value for value, _ in zip(itertools.cycle(values), range(count), strict=False)]
    rng.shuffle(dealt)
    return dealt
