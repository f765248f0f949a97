"""Sets how the libraries of an engine's process behave."""

from collections.abc import Mapping

_KEPT_PRODUCTS = "256"
ENGINE_ENVIRONMENT: Mapping[str, str] = {
    # Looks of an OpenMP thread for its next product before it sleeps: about half a millisecond, longer than between two
    # products of a step. libgomp's own 300,000 would keep a core from the other lane for milliseconds.
    "GOMP_SPINCOUNT": "20000",
    # Products of which oneDNN, and torch above it on each thread, keep the code: one for each number of rows and shape
    # of weights. With their own 1024 an engine grows by more than a gigabyte, which no plan counts.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": _KEPT_PRODUCTS,
    "LRU_CACHE_CAPACITY": _KEPT_PRODUCTS,
}
"""Read when libraries are loaded."""
