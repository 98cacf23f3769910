"""Makes the page of hvdlite-report: one HTML file that contains all pictures, without scripts."""

import html
import io
import statistics
from typing import Dict, List, Sequence

from hvdlite.monitor import live, steps, verdict
from hvdlite.monitor.traces import Tensor, Trace

# Colors that people with red-green blindness can distinguish (Okabe and Ito).
_COLORS = {
    "nothing in progress": "#dddddd",
    "waits for other ranks": "#e69f00",
    "waits for the links": "#56b4e9",
    "moves": "#009e73",
}
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; max-width: 62rem; padding: 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
figure { margin: 0; } svg { width: 100%; height: auto; min-width: 38rem; }
.wide, figure { overflow-x: auto; }
pre { white-space: pre-wrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .8rem .15rem 0; text-align: right; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
.zoom:nth-of-type(1):not(:checked) ~ figure:nth-of-type(1),
.zoom:nth-of-type(2):not(:checked) ~ figure:nth-of-type(2),
.zoom:nth-of-type(3):not(:checked) ~ figure:nth-of-type(3) { display: none; }
.zoom ~ figure:nth-of-type(2) svg { width: 400%; min-width: 152rem; }
.zoom ~ figure:nth-of-type(3) svg { width: 1600%; min-width: 608rem; }
@media (prefers-color-scheme: dark) {
  body { background: #131416; color: #ddd; } figure { background: #fff; border-radius: .3rem; }
}
@media print {
  body { max-width: none; } figure, tr { break-inside: avoid; }
  .zoom, .zoom + label { display: none; }
}
"""
_ZOOM = (
    '<input class="zoom" type="radio" name="zoom" id="zoom{0}"{1}><label for="zoom{0}">{0}x</label>'
)
_RANKS_DRAWN = 32  # the largest number of ranks in the picture of a step


def page(trace: Trace, title: str) -> str:
    """Return the page as HTML. ``title`` is plain text and is escaped here."""
    by_rank: Dict[int, List[Tensor]] = {}
    for tensor in trace.tensors:
        by_rank.setdefault(tensor.rank, []).append(tensor)
    ranks = sorted(by_rank)
    mark = steps.marks(by_rank[ranks[0]]) if ranks else None
    ranks_steps = verdict.rank_steps(trace.tensors, trace.notes, trace.hosts)
    found: Dict[int, List[steps.Step]] = {rank: [] for rank in ranks}
    found.update((each.rank, list(each.steps)) for each in ranks_steps)
    # `hvdlite why` prints the same text
    text = html.escape(verdict.text("this job", ranks_steps, verdict.findings(ranks_steps)))
    parts = [f"<h1>{html.escape(title)}</h1>", f"<pre>{text}</pre>", _summary(trace, found, mark)]
    if any(found.values()):
        parts += ["<h2>Where a step's time goes, by rank</h2>", _ABOUT_STEPS, _breakdown(found)]
        parts += ["<h2>Steps, by rank</h2>", _table(found)]
        parts += ["<h2>The batches of one step</h2>", _batches(by_rank, found)]
    late = steps.lateness(trace.tensors)
    if len(late) > 1:
        parts += ["<h2>Ranks that others waited for</h2>", _text_of_lateness(late)]
        of_ranks = {"late": [late[rank] for rank in sorted(late)]}
        labels = [f"rank {rank}" for rank in sorted(late)]
        parts.append(_bars(labels, of_ranks, "seconds", "lateness of ranks"))
    slow = steps.slowest(trace.tensors)
    if slow:
        parts += ["<h2>The slowest tensors</h2>", _slowest(slow)]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{body}\n</body></html>\n"
    )


# ---------------------------------------------------------------------------------------- words
def _summary(trace: Trace, found: Dict[int, List[steps.Step]], mark) -> str:
    every = [step for own in found.values() for step in own]
    texts = [f"{len(found)} ranks, {len(trace.tensors)} tensors."]
    if every:
        seconds = statistics.median(step.seconds for step in every)
        moving = sum(step.moving for step in every)
        hidden = sum(step.hidden for step in every) / moving if moving else 0
        waiting = sum(step.waiting for step in every) / sum(step.seconds for step in every)
        texts.append(
            f"{max(map(len, found.values()))} steps of {_ms(seconds)} (median), each from "
            f"<code>{html.escape(mark)}</code> to the next. {hidden:.0%} of the data movement "
            f"overlaps with computation. Ranks wait for others during {waiting:.0%} of the time."
        )
    else:
        texts.append("No tensor name occurs twice, so there are no steps.")
    texts.append(
        f"Times of different ranks may be wrong by {trace.error * 1e6:.0f} us."
        if trace.error
        else "All ranks use the same clock."
    )
    return f"<p>{' '.join(texts)}</p>"


_ABOUT_STEPS = (
    "<p>Medians. A moment counts as <em>moves</em> if data of any tensor moves; else as <em>waits "
    "for the links</em> if all ranks have submitted some tensor; else as <em>waits for other "
    "ranks</em> if this rank has submitted a tensor; else as <em>nothing in progress</em>.</p>"
)


def _text_of_lateness(late: Dict[int, float]) -> str:
    worst = max(late, key=late.__getitem__)
    total = sum(late.values())
    share = f" Rank {worst} caused {late[worst] / total:.0%} of this time." if total else ""
    return (
        "<p>For each rank, the seconds in which it was the only rank that had not submitted a "
        f"tensor, so all other ranks waited for this rank.{share}</p>"
    )


def _table(found: Dict[int, List[steps.Step]]) -> str:
    names = ("rank", "steps", "step", "longest", "moves", "overlap", "waits for ranks")
    head = "".join(f"<th>{name}</th>" for name in names)
    lines = []
    for rank, own in found.items():
        if not own:
            continue
        moving = sum(step.moving for step in own)
        cells = (
            f"rank {rank}",
            len(own),
            _ms(statistics.median(step.seconds for step in own)),
            _ms(max(step.seconds for step in own)),
            _ms(statistics.median(step.moving for step in own)),
            f"{sum(step.hidden for step in own) / moving if moving else 0:.0%}",
            _ms(statistics.median(step.waiting for step in own)),
        )
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


# ------------------------------------------------------------------------------------- pictures
def _figure(height: float, wide: int = 1):
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(9 * wide, height), layout="constrained")


def _svg(figure, label: str) -> str:
    """Return the picture as an SVG element. Text in the picture stays text, not outlines."""
    import matplotlib
    from matplotlib import pyplot

    out = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": label}):
        figure.savefig(out, format="svg", metadata={"Date": None})
    pyplot.close(figure)
    svg = out.getvalue()
    svg = svg[svg.index("<svg") :].replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return f"<figure>{svg}</figure>"


def _bars(labels: Sequence[str], parts: Dict[str, List[float]], unit: str, label: str) -> str:
    """Draw horizontal stacked bars, the first on top. ``parts``: each part's length in each bar."""
    figure, axes = _figure(1.2 + 0.3 * len(labels))
    left = [0.0] * len(labels)
    for name, values in parts.items():
        axes.barh(labels, values, left=left, color=_COLORS.get(name, "#0072b2"), label=name)
        left = [a + b for a, b in zip(left, values)]
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)
    if len(parts) > 1:
        figure.legend(loc="outside upper center", ncols=len(parts), frameon=False)
    return _svg(figure, label)


def _breakdown(found: Dict[int, List[steps.Step]]) -> str:
    ranks = [rank for rank, own in found.items() if own]

    def medians(name: str) -> List[float]:
        return [statistics.median(getattr(s, name) for s in found[r]) * 1e3 for r in ranks]

    names = ("alone", "waiting", "queued", "moving")
    parts = {label: medians(name) for label, name in zip(_COLORS, names)}
    return _bars([f"rank {rank}" for rank in ranks], parts, "ms a step", "where a step's time goes")


def _slowest(slow: Sequence[steps.Slow]) -> str:
    names = [row.name if len(row.name) <= 40 else f"...{row.name[-37:]}" for row in slow]
    labels = [f"{name} ({live.size_text(row.bytes)})" for name, row in zip(names, slow)]
    # matplotlib takes text between dollar signs for a formula
    labels = [label.replace("$", r"\$") for label in labels]
    _, waits, links, moves = _COLORS
    parts = {
        waits: [row.waits * 1e3 for row in slow],
        links: [row.queued * 1e3 for row in slow],
        moves: [row.moves * 1e3 for row in slow],
    }
    return _bars(labels, parts, "ms from submission to end, mean of all ranks", "slowest tensors")


def _batches(by_rank: Dict[int, List[Tensor]], found: Dict[int, List[steps.Step]]) -> str:
    """Draw one step (the middle step of the first rank with steps), in three magnifications."""
    zooms = (1, 4, 16)
    chosen = "".join(_ZOOM.format(zoom, " checked" * (zoom == 1)) for zoom in zooms)
    return f"<div>{chosen}{''.join(_lanes(by_rank, found, zoom) for zoom in zooms)}</div>"


def _lanes(by_rank: Dict[int, List[Tensor]], found: Dict[int, List[steps.Step]], zoom: int) -> str:
    own = next(own for own in found.values() if own)
    step = own[len(own) // 2]
    ranks = sorted(by_rank)[:_RANKS_DRAWN]
    figure, axes = _figure(1.2 + 0.45 * len(ranks), zoom)
    _, waits, links, moves = _COLORS
    for row, rank in enumerate(ranks):
        within = [t for t in by_rank[rank] if t.ended > step.begin and t.submitted < step.end]
        for name, spans, height in (
            (waits, [(t.submitted, t.agreed) for t in within], 0.25),
            (links, [(t.agreed, t.started) for t in within], 0.4),
            (moves, sorted({(t.started, t.ended) for t in within}), 0.7),
        ):
            bars = [((a - step.begin) * 1e3, (b - a) * 1e3) for a, b in spans if b > a]
            edge = "white" if name == moves else "none"
            axes.broken_barh(
                bars, (row - height / 2, height), color=_COLORS[name], edgecolor=edge, lw=0.4,
                label=name if row == 0 else None,
            )  # fmt: skip
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.invert_yaxis()
    axes.set_xlim(0, step.seconds * 1e3)
    axes.set_xlabel("ms since the step began; each green bar is a batch")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return _svg(figure, "batches of one step")
