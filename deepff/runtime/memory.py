"""How much main memory there is to use."""

import os

_LEAST_MEMORY = 2**30


def available_memory() -> int:
    """Bytes of main memory that are free or can be freed at once; at least 1 GiB is assumed."""
    try:
        with open("/proc/meminfo") as file:
            kilobytes = next(line.split()[1] for line in file if line.startswith("MemAvailable"))
        found = 1024 * int(kilobytes)
    except (OSError, StopIteration):
        try:
            found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, ValueError, OSError):  # not on Windows
            found = 0
    return max(found, _LEAST_MEMORY)
