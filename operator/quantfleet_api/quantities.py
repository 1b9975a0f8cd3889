"""Amounts as people read them."""


def shown_bytes(num_bytes: int) -> str:
    """In GiB, or in MiB below one."""
    gib = num_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 1 else f"{num_bytes / (1 << 20):.1f} MiB"
