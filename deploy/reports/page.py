"""Writes one HTML page that needs nothing but itself: no script, no font and no picture from elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h2 { border-top: 1px solid #8886; margin-top: 2.5rem; padding-top: 1rem; }
pre { background: #8882; border-radius: 4px; overflow-x: auto; padding: .6rem .8rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #8884; padding: .2rem .7rem; text-align: right; white-space: nowrap; }
th.word, td.word { text-align: left; }
.plots { display: flex; flex-wrap: wrap; gap: 1rem; }
.plots img { background: #fff; border-radius: 4px; max-width: 100%; }
.warning { color: #c33; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """Columns that begin with words are `words` many; the others hold figures."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPlot:
    """`data_uri` holds the picture, `about` says what it shows to who does not see it."""

    data_uri: str
    about: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """Shows one run. `texts` come before its plots and table, `warnings` in red; `sources` are files, by name."""

    title: str
    command: str | None = None
    texts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    plots: tuple[ReportPlot, ...] = ()
    tables: tuple[ReportTable, ...] = ()
    notes: tuple[str, ...] = ()
    sources: tuple[tuple[str, str], ...] = ()


def page_html(title: str, sections: Sequence[ReportSection]) -> str:
    """Returns the whole page."""
    links = "".join(f'<li><a href="#run-{i}">{escape(s.title)}</a></li>' for i, s in enumerate(sections))
    contents = f"<ul>{links}</ul>" if len(sections) > 1 else ""
    body = "\n".join(_section(place, section) for place, section in enumerate(sections))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n{contents}\n{body}\n</body>\n</html>\n"
    )


def _section(place: int, section: ReportSection) -> str:
    parts = [f'<section id="run-{place}">\n<h2>{escape(section.title)}</h2>']
    if section.command is not None:
        parts.append(f"<pre><code>{escape(section.command)}</code></pre>")
    parts += [f"<p>{escape(text)}</p>" for text in section.texts]
    parts += [f'<p class="warning">{escape(text)}</p>' for text in section.warnings]
    if section.plots:
        pictures = "".join(f'<img src="{p.data_uri}" alt="{escape(p.about)}">' for p in section.plots)
        parts.append(f'<div class="plots">{pictures}</div>')
    parts += [_table(table) for table in section.tables]
    parts += [f"<p><small>{escape(note)}</small></p>" for note in section.notes]
    parts += [
        f"<details><summary>{escape(name)}</summary><pre><code>{escape(text)}</code></pre></details>"
        for name, text in section.sources
    ]
    return "\n".join([*parts, "</section>"])


def _table(table: ReportTable) -> str:
    def cells(kind: str, values: Sequence[str]) -> str:
        tagged = (
            f'<{kind} class="word">{escape(v)}</{kind}>' if i < table.words else f"<{kind}>{escape(v)}</{kind}>"
            for i, v in enumerate(values)
        )
        return f"<tr>{''.join(tagged)}</tr>"

    rows = "\n".join(cells("td", row) for row in table.rows)
    return f'<div class="wide"><table><thead>{cells("th", table.titles)}</thead><tbody>\n{rows}\n</tbody></table></div>'
