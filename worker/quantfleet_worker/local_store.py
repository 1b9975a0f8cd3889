"""The key-value store of a rank that is alone; `exchange` uses it where there is no gang."""

import threading


class LocalStore:
    """The store of a rank that is alone."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        with self._lock:
            self._values[key] = value.encode()

    def get(self, key: str) -> bytes:
        """The value of a key that is there."""
        with self._lock:
            return self._values[key]

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        with self._lock:
            return all(key in self._values for key in keys)

    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; its new value."""
        with self._lock:
            value = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(value).encode()
            return value

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key that has the expected value, or none where "" is expected; its value now."""
        with self._lock:
            if self._values.get(key, b"").decode() == expected:
                self._values[key] = desired.encode()
            return self._values[key]

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        with self._lock:
            return self._values.pop(key, None) is not None
