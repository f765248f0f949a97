// Figures as people read them.

export const count = (n) =>
  n >= 1e9 ? `${(n / 1e9).toFixed(1)} G` : n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : n >= 1e4 ? `${(n / 1e3).toFixed(1)} k` : `${Math.round(n)}`;

export const bytes = (n) =>
  n >= 2 ** 30 ? `${(n / 2 ** 30).toFixed(1)} GiB` : n >= 2 ** 20 ? `${(n / 2 ** 20).toFixed(1)} MiB` : `${Math.round(n / 1024)} KiB`;

export const seconds = (s) =>
  s == null ? "–" : s >= 100 ? `${Math.round(s)} s` : s >= 1 ? `${s.toFixed(1)} s` : `${(s * 1000).toFixed(s < 0.01 ? 1 : 0)} ms`;

export const percent = (share, digits = 0) => (share == null ? "–" : `${(100 * share).toFixed(digits)} %`);

export const clock = (at_s) => new Date(at_s * 1000).toLocaleTimeString([], { hour12: false });

export const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

// A unit's id without the end that only machines read, as long as it tells units apart.
export const short = (unit) => unit.replace(/^(.*-)([0-9a-f]{4})[0-9a-f]{4,}$/, "$1$2");

const HUES = 10;

// A model has one colour on all pages: its place in the list of models.
export function colours(models) {
  const places = new Map(models.map((m, i) => [m.model, i % HUES]));
  return (model) => `c${places.get(model) ?? HUES - 1}`;
}
