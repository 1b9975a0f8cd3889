"""Token buckets: how much somebody may ask for, per key; pure but for its own memory.

Times are seconds of a clock that never goes back, given by the caller.
"""

from collections import OrderedDict
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Buckets:
    """A bucket a key: `burst` at once, `rate` a second in the long run."""

    rate: float
    burst: float
    most_keys: int = 20_000
    """The key that was used least lately is forgotten beyond this: it would be full by then."""
    _levels: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def take(self, key: str, now: float, *, amount: float = 1.0) -> float:
        """Takes from a key's bucket; 0 where that could be done, else seconds until it can."""
        level, then = self._levels.pop(key, (self.burst, now))
        level = min(self.burst, level + (now - then) * self.rate)
        short = amount - level
        self._levels[key] = (level if short > 0 else level - amount, now)
        while len(self._levels) > self.most_keys:
            self._levels.popitem(last=False)
        return short / self.rate if short > 0 else 0.0
