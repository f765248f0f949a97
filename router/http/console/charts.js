// Bars and lines. Each says in words what it shows, for those who do not see it.

import { html } from "./vendor/htm-preact-3.1.1.js";

// parts: {size, className, title}. Sizes are shares of `total`.
export function Bar({ parts, total, label, className = "" }) {
  const shown = parts.filter((p) => p.size > 0);
  const words = `${label}: ${shown.map((p) => p.title).join(", ") || "nothing"}`;
  return html`<div class=${`bar ${className}`} role="img" aria-label=${words} title=${words}>
    ${shown.map(
      (p, i) => html`<span key=${i} class=${p.className} style=${{ width: `${(100 * p.size) / Math.max(total, 1e-9)}%` }}></span>`,
    )}
  </div>`;
}

// values: numbers or null, evenly spaced; `limit` is drawn across.
export function Spark({ values, max, limit, label, width = 120, height = 26 }) {
  const top = Math.max(max ?? 0, ...values.filter((v) => v != null), 1e-9);
  const x = (i) => (values.length < 2 ? width : (i * width) / (values.length - 1));
  const y = (v) => height - 1 - (v / top) * (height - 2);
  let path = "";
  let pen = false;
  values.forEach((v, i) => {
    if (v == null) return void (pen = false);
    path += `${pen ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = true;
  });
  return html`<svg class="spark" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    ${limit != null && html`<line class="limit" x1="0" x2=${width} y1=${y(limit)} y2=${y(limit)} />`}
    <path d=${path} />
  </svg>`;
}

// Two shares of one whole over time: points are {at, low, high}; low from below, high from above.
export function Split({ points, label, height = 34 }) {
  if (points.length < 2) return html`<p class="quiet small">${label}: from now on</p>`;
  const [from, to] = [points[0].at, points.at(-1).at];
  const width = 300;
  const x = (at) => ((at - from) / Math.max(to - from, 1e-9)) * width;
  const y = (p) => height * (1 - p.low / Math.max(p.low + p.high, 1e-9));
  let edge = `M0 ${y(points[0]).toFixed(1)}`;
  for (const p of points.slice(1)) edge += `H${x(p.at).toFixed(1)}V${y(p).toFixed(1)}`;
  return html`<svg class="split" viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="none" role="img" aria-label=${label}>
    <rect class="high" width=${width} height=${height} />
    <path class="low" d=${`${edge}H${width}V${height}H0Z`} />
  </svg>`;
}
