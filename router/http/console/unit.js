// Unit: both lanes as a timeline of the decision log, partition, predictions, neighbours.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { Bar, Split } from "./charts.js";
import { Legend, Replicas, Sms, kvParts, memoryParts, stateClass } from "./fleet.js";
import { bytes, colours, count, percent, seconds, short } from "./format.js";

const LANES = { prefill: 0, decode: 1, mixed: 1 };
const WIDTH = 1000;
const LANE = 46;
const MOST_S = 4;

const launchesOf = (log) => log.decisions.filter((d) => d.kind in LANES && d.started_s != null);

const words = (d) => {
  const tokens = (d.chunks ?? []).reduce((n, [, length]) => n + length, 0);
  const what = [d.kind, d.model, tokens ? `${tokens} tokens` : "", d.num_decoding ? `${d.num_decoding} sequences` : ""].filter(Boolean).join(" ");
  const took = d.finished_s == null ? "in flight" : `took ${seconds(d.finished_s - d.started_s)}`;
  return `${what}: predicted ${seconds(d.predicted_s ?? 0)}, ${took}`;
};

function Timeline({ log, colour }) {
  const launches = launchesOf(log);
  if (!launches.length) return html`<p class="quiet">Nothing was launched yet.</p>`;
  const end = Math.max(...launches.map((d) => d.finished_s ?? log.now_s));
  const start = Math.max(launches[0].started_s, end - MOST_S);
  const span = Math.max(end - start, 1e-6);
  const x = (at) => ((at - start) / span) * WIDTH;
  const shown = launches.filter((d) => (d.finished_s ?? end) >= start);
  const top = (d) => LANES[d.kind] * (LANE + 18) + 14;
  const bubbles = shown.filter((d) => d.ready_s != null && d.started_s - d.ready_s > span / 2000);
  return html`<svg class="timeline" viewBox=${`0 0 ${WIDTH} ${2 * LANE + 50}`} role="img" aria-label=${`${shown.length} launches in the last ${seconds(span)}, listed in the table below`}>
    ${["prefill", "decode"].map((name, i) => html`<g key=${name}><text x="0" y=${i * (LANE + 18) + 10}>${name}</text><rect class="lane" x="0" y=${i * (LANE + 18) + 14} width=${WIDTH} height=${LANE} /></g>`)}
    ${bubbles.map((d) => html`<rect key=${`b${d.index}`} class="bubble" x=${x(Math.max(start, d.ready_s))} y=${top(d)} width=${Math.max(0.5, x(d.started_s) - x(Math.max(start, d.ready_s)))} height=${LANE}><title>bubble of ${seconds(d.started_s - d.ready_s)}</title></rect>`)}
    ${shown.map((d) => {
      const from = x(Math.max(start, d.started_s));
      return html`<g key=${d.index}><title>${words(d)}</title>
        <rect class=${`launch ${colour(d.model ?? "")}`} x=${from} y=${top(d)} width=${Math.max(1, x(d.finished_s ?? end) - from)} height=${LANE} />
        <line class="predicted" x1=${from} x2=${Math.min(WIDTH, from + ((d.predicted_s ?? 0) / span) * WIDTH)} y1=${top(d) + LANE + 3} y2=${top(d) + LANE + 3} /></g>`;
    })}
    <text x="0" y=${2 * LANE + 47}>${seconds(span)} ago</text><text x=${WIDTH} y=${2 * LANE + 47} text-anchor="end">now</text>
  </svg>
  <p class="legend small"><span><i class="swatch plain"></i> a launch, in its model's colour</span><span><i class="swatch predicted"></i> line below: what was predicted</span><span><i class="swatch bubble"></i> bubble: it idled although it had work</span></p>`;
}

const quantile = (sorted, q) => sorted[Math.min(sorted.length - 1, Math.floor(q * sorted.length))];

function Predictions({ log }) {
  const rows = ["prefill", "decode", "mixed"].flatMap((kind) => {
    const done = launchesOf(log).filter((d) => d.kind === kind && d.finished_s != null && d.predicted_s > 0);
    if (!done.length) return [];
    const ratios = done.map((d) => (d.finished_s - d.started_s) / d.predicted_s).sort((a, b) => a - b);
    const bubble = done.reduce((n, d) => n + (d.ready_s == null ? 0 : Math.max(0, d.started_s - d.ready_s)), 0);
    return [{ kind, n: done.length, median: quantile(ratios, 0.5), late: quantile(ratios, 0.9), bubble }];
  });
  return html`<section><h2>Predicted against measured</h2>
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="predicted against measured"><table><thead><tr><th scope="col">Launches</th><th scope="col" class="num">Number</th><th scope="col" class="num">Median took</th><th scope="col" class="num">90 % took at most</th><th scope="col" class="num">Bubbles before them</th></tr></thead>
    <tbody>${rows.map((r) => html`<tr key=${r.kind}><th scope="row">${r.kind}</th><td class="num">${r.n}</td><td class="num">${percent(r.median)} of predicted</td><td class="num">${percent(r.late)}</td><td class="num">${seconds(r.bubble)}</td></tr>`)}</tbody></table></div>` : html`<p class="quiet">Nothing was measured yet.</p>`}
  </section>`;
}

function Neighbours({ unit }) {
  const rows = unit.models.flatMap((m) => m.lost_to.map((loss) => ({ model: m.model, ...loss }))).filter((l) => l.ttft_s + l.tbt_s > 0);
  rows.sort((a, b) => b.ttft_s + b.tbt_s - a.ttft_s - a.tbt_s);
  return html`<section><h2>Lost to neighbours</h2>
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="lost to neighbours"><table><thead><tr><th scope="col">Model</th><th scope="col">lost to</th><th scope="col" class="num">of first tokens</th><th scope="col" class="num">of gaps</th></tr></thead>
    <tbody>${rows.map((l, i) => html`<tr key=${i}><th scope="row">${l.model}</th><td>${l.neighbour}</td><td class="num">${seconds(l.ttft_s)}</td><td class="num">${seconds(l.tbt_s)}</td></tr>`)}</tbody></table></div>
    <p class="quiet small">Seconds summed over all requests since the models came here, by the predictor: shared against alone.</p>` : html`<p class="quiet">No model has lost anything to another.</p>`}
  </section>`;
}

function Newest({ log }) {
  const newest = launchesOf(log).slice(-12).reverse();
  return html`<section><h2>Newest launches</h2><div class="scroll" tabindex="0" role="region" aria-label="newest launches"><table>
    <thead><tr><th scope="col">Launch</th><th scope="col" class="num">SMs p | d</th><th scope="col" class="num">Predicted</th><th scope="col" class="num">Measured</th><th scope="col" class="num">Bubble</th><th scope="col" class="num">KV blocks</th></tr></thead>
    <tbody>${newest.map((d) => html`<tr key=${d.index}><th scope="row">${words(d).split(":")[0]}</th><td class="num">${d.prefill_sms} | ${d.decode_sms}</td><td class="num">${seconds(d.predicted_s ?? 0)}</td><td class="num">${d.finished_s == null ? "in flight" : seconds(d.finished_s - d.started_s)}</td><td class="num">${d.ready_s == null ? "" : seconds(Math.max(0, d.started_s - d.ready_s))}</td><td class="num">${d.used_blocks ?? 0}</td></tr>`)}</tbody></table></div></section>`;
}

export function UnitPage({ id, fleet, log }) {
  const colour = colours(fleet.models);
  const unit = fleet.units.find((u) => u.unit === id);
  if (!unit) return html`<h1>${short(id)}</h1><div class="verdict bad" role="status"><strong>This unit is not there any more.</strong> <a href="#fleet">Back to the fleet</a></div>`;
  const points = (log?.decisions ?? []).map((d) => ({ at: d.now_s, low: d.prefill_sms, high: d.decode_sms }));
  const span = points.length > 1 ? points.at(-1).at - points[0].at : 0;
  return html`<div class="head"><h1 title=${id}>${short(id)}</h1><span class=${`chip ${stateClass(unit.state)}`}>${unit.state}</span>
      <span class="quiet">${unit.pool} · node ${unit.node} · ${bytes(unit.memory_bytes)}</span></div>
    ${unit.note && html`<p class="why">${unit.note}</p>`}
    <section><h2>Lanes</h2>${log ? html`<${Timeline} log=${log} colour=${colour} />` : html`<p class="quiet">Asking the unit …</p>`}</section>
    <section><h2>Partition</h2>
      <p>${unit.prefill_sms} SMs to prefill, ${unit.decode_sms} to decode; bubbles ${percent(unit.prefill_bubble_share)} and ${percent(unit.decode_bubble_share)} of the last seconds; guard cells moved: ${unit.guard_cells_moved}.</p>
      <${Sms} prefill=${unit.prefill_sms} decode=${unit.decode_sms} />
      <${Split} points=${points} label=${`partition over the last ${seconds(span)} of decisions`} height=${60} /><p class="quiet small">the last ${seconds(span)} of its decision log</p></section>
    <section><h2>Memory</h2><${Legend} />
      <dl class="bars"><dt>Memory</dt><dd><${Bar} label="memory" ...${memoryParts(unit, colour)} /></dd>
      <dt>KV</dt><dd><${Bar} label="KV blocks" parts=${kvParts(unit, colour)} total=${unit.total_blocks} /><span class="quiet small">${count(unit.free_blocks)} of ${count(unit.total_blocks)} blocks free</span></dd></dl>
      <${Replicas} unit=${unit} colour=${colour} /></section>
    <${Neighbours} unit=${unit} />
    ${log && html`<${Predictions} log=${log} /><${Newest} log=${log} />`}`;
}
