"""Units and rates that the figures of devices are written in."""

GIB = 1024**3
GIGA = 1e9
TERA = 1e12
# From pinned memory over 16 lanes: NOT measured, 80 % of what the link carries.
PCIE_4_BYTES_PER_S = 25 * GIGA
PCIE_5_BYTES_PER_S = 50 * GIGA
