"""Names the percents at which distributions are read off for reports: closer where targets are judged."""

PERCENTS = (0, 1, 2, 5, *range(10, 91, 5), 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 100)
