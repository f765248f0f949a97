"""Figures as texts of a table, where what was not measured is a dash; at which percents distributions are told."""


def as_number(value: object) -> str:
    if not isinstance(value, int | float):
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 or isinstance(value, int) else f"{value:.3g}"


def as_percent(share: object) -> str:
    return f"{share:.1%}" if isinstance(share, int | float) else "-"


def as_ms(value_s: object) -> str:
    return f"{1000 * value_s:.3g} ms" if isinstance(value_s, int | float) else "-"


# At which distributions are read off for reports: closer where targets are judged.
PERCENTS = (0, 1, 2, 5, *range(10, 91, 5), 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 100)
