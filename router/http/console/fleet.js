// Fleet: which model suffers and why, and what each unit holds and does.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { Bar, Spark, Split } from "./charts.js";
import { bytes, clock, colours, count, percent, plural, seconds, short } from "./format.js";

const TARGET = 0.95;

const rank = (m) => (m.suffers ? 0 : m.state === "ready" ? 1 : 2);
const byNeed = (a, b) => rank(a) - rank(b) || (a.in_time ?? 1) - (b.in_time ?? 1) || b.waiting - a.waiting || a.model.localeCompare(b.model);

export const stateClass = (state) =>
  state === "ready" || state === "ok" ? "good" : state === "asleep" ? "rest" : state.includes("loading") || state === "draining" || state === "leaving" || state === "cordoned" ? "warn" : "bad";

const Verdict = ({ fleet, go }) => {
  const sick = fleet.models.filter((m) => m.suffers).sort(byNeed);
  const mute = fleet.pools.reduce((n, p) => n + p.silent, 0);
  const what = `${plural(fleet.models.length, "model")} on ${plural(fleet.num_units, "unit")}`;
  if (!fleet.num_units) return html`<div class="verdict bad" role="status"><strong>No unit has reported.</strong> Requests wait until one does.</div>`;
  if (!sick.length && !mute) return html`<div class="verdict good" role="status"><strong>All is well.</strong> ${what}, none suffers.</div>`;
  return html`<div class="verdict bad" role="status">
    ${mute > 0 && html`<p><strong>${plural(mute, "unit")} silent.</strong></p>`}
    ${sick.slice(0, 4).map(
      (m) => html`<p key=${m.model}><a href="#fleet" onClick=${(e) => (e.preventDefault(), go({ model: m.model }))}><strong>${m.model}</strong></a> suffers: ${m.why}</p>`,
    )}
    ${sick.length > 4 && html`<p>and ${sick.length - 4} more, first in the table</p>`}
  </div>`;
};

const State = ({ model }) =>
  html`<span class=${`chip ${stateClass(model.state)}`}>${model.state}${model.share_loaded != null ? ` ${percent(model.share_loaded)}` : ""}</span>`;

function Models({ fleet, samples, colour, selection, go }) {
  const models = [...fleet.models].sort(byNeed);
  return html`<section aria-labelledby="models-head">
    <div class="head"><h2 id="models-head">Models</h2>
      ${fleet.jain_index != null && models.length > 1 && html`<span class="quiet small" title="Jain's index of the models' shares of requests in time: 1 where all are served equally well, 1/n where one of n is">Jain's index <b data-field="jain_index">${fleet.jain_index.toFixed(2)}</b></span>`}</div>
    <div class="scroll" tabindex="0" role="region" aria-labelledby="models-head">
    <table class="models">
      <thead><tr>
        <th scope="col">Model</th><th scope="col">State</th>
        <th scope="col" class="num">In time</th><th scope="col">last minutes</th>
        <th scope="col" class="num">Waiting</th><th scope="col" class="num">Running</th>
        <th scope="col" class="num">Requests/s</th><th scope="col" class="num">Tokens/s</th>
        <th scope="col">KV of quota</th><th scope="col" class="num">Units</th>
      </tr></thead>
      <tbody>
        ${models.map((m) => {
          const line = samples.map((s) => s.models[m.model]?.[0] ?? null);
          const late = m.in_time != null && m.in_time < TARGET;
          return html`<tr key=${m.model} data-model=${m.model} class=${m.suffers ? "suffers" : ""}>
            <th scope="row"><button class="link" aria-pressed=${selection.model === m.model} onClick=${() => go({ model: selection.model === m.model ? "" : m.model })}>
              <i class=${`swatch ${colour(m.model)}`}></i>${m.model}</button>
              ${m.why && html`<span class="why">${m.why}</span>`}</th>
            <td><${State} model=${m} /></td>
            <td class=${`num big ${late ? "late" : ""}`} data-field="in_time">${percent(m.in_time)}<span class="quiet small">TTFT ${seconds(m.ttft_s)}, TBT ${seconds(m.tbt_s)}</span></td>
            <td><${Spark} values=${line} max=${1} limit=${TARGET} label=${`share in time over the last minutes, now ${percent(m.in_time)}`} /></td>
            <td class="num" data-field="waiting">${m.waiting}${m.oldest_wait_s > 0.5 && html`<span class="quiet small">oldest ${seconds(m.oldest_wait_s)}</span>`}</td>
            <td class="num" data-field="running">${m.running}</td>
            <td class="num" data-field="rate_per_s">${m.rate_per_s.toFixed(2)}</td>
            <td class="num" data-field="tokens_per_s">${count(m.tokens_per_s)}${m.token_share > 0 && html`<span class="quiet small" data-field="token_share">${percent(m.token_share)} of all</span>`}</td>
            <td>${m.quota_blocks > 0 && html`<${Bar} label="KV blocks" total=${Math.max(m.quota_blocks, m.used_blocks)} parts=${[{ size: m.used_blocks, className: colour(m.model), title: `${m.used_blocks} of ${m.quota_blocks} in use` }]} /><span class="quiet small" data-field="blocks">${count(m.used_blocks)} / ${count(m.quota_blocks)}</span>`}</td>
            <td class="num" data-field="units">${m.units}${m.asleep_on > 0 && html`<span class="quiet small">asleep on ${m.asleep_on}</span>`}</td>
          </tr>`;
        })}
      </tbody>
    </table></div>
  </section>`;
}

function Pools({ fleet, selection, go }) {
  if (fleet.pools.length < 2 && fleet.matching <= fleet.units.length) return null;
  return html`<section aria-labelledby="pools-head">
    <h2 id="pools-head">Pools</h2>
    <div class="scroll" tabindex="0" role="region" aria-labelledby="pools-head"><table>
      <thead><tr><th scope="col">Pool</th><th scope="col" class="num">Units</th><th scope="col" class="num">Silent</th><th scope="col" class="num">With a queue</th><th scope="col" class="num">Running</th><th scope="col" class="num">Waiting</th><th scope="col" class="num">Tokens/s</th><th scope="col">KV in use</th><th scope="col">SMs: prefill | decode</th></tr></thead>
      <tbody>${fleet.pools.map(
        (p) => html`<tr key=${p.pool} data-pool=${p.pool}>
          <th scope="row"><button class="link" aria-pressed=${selection.pool === p.pool} onClick=${() => go({ pool: selection.pool === p.pool ? "" : p.pool })}>${p.pool}</button></th>
          <td class="num" data-field="units">${p.units}</td><td class=${`num ${p.silent ? "late" : ""}`} data-field="silent">${p.silent}</td><td class="num">${p.strained}</td>
          <td class="num" data-field="running">${p.running}</td><td class="num" data-field="waiting">${p.waiting}</td><td class="num">${count(p.tokens_per_s)}</td>
          <td><${Bar} label="KV blocks" total=${p.total_blocks} parts=${[{ size: p.used_blocks, className: "plain", title: `${percent(p.used_blocks / Math.max(1, p.total_blocks))} in use` }]} /></td>
          <td><${Sms} prefill=${p.prefill_sms} decode=${p.decode_sms} /></td>
        </tr>`,
      )}</tbody>
    </table></div>
  </section>`;
}

export const Sms = ({ prefill, decode }) =>
  html`<${Bar} label="SMs" total=${prefill + decode} parts=${[
    { size: prefill, className: "prefill", title: `${prefill} to prefill` },
    { size: decode, className: "decode", title: `${decode} to decode` },
  ]} />`;

export function memoryParts(unit, colour) {
  const weights = unit.models.map((m) => ({ size: m.weight_bytes, className: colour(m.model), title: `weights of ${m.model} ${bytes(m.weight_bytes)}` }));
  const pool = unit.total_blocks * unit.block_bytes;
  return { parts: [...weights, { size: pool, className: "pool", title: `KV pool ${bytes(pool)}` }], total: Math.max(unit.memory_bytes, pool + weights.reduce((n, w) => n + w.size, 0)) };
}

export function kvParts(unit, colour) {
  const parts = unit.models.flatMap((m) => [
    { size: m.own_blocks, className: colour(m.model), title: `${m.model} ${m.own_blocks} own` },
    { size: m.borrowed_blocks, className: `${colour(m.model)} borrowed`, title: `${m.model} ${m.borrowed_blocks} borrowed` },
  ]);
  return [...parts, { size: unit.cached_blocks, className: "cached", title: `${unit.cached_blocks} cached prefixes` }];
}

const Replica = ({ replica: m, colour }) => html`<tbody data-model=${m.model}>
  <tr><th scope="rowgroup" colspan="4"><i class=${`swatch ${colour(m.model)}`}></i>${m.model}
    ${m.phase !== "ready" && html` <span class=${`chip ${stateClass(m.phase)}`}>${m.phase}${m.share_loaded != null ? `, ${m.stage} ${percent(m.share_loaded)}` : ""}</span>`}</th></tr>
  <tr><td class="num" title="running + waiting">${m.running}${m.waiting > 0 && html`<b class="late"> +${m.waiting}</b>`}</td>
    <td class="num" title="KV blocks in use of its quota">${count(m.own_blocks + m.borrowed_blocks)}/${count(m.quota_blocks)}</td>
    <td class="num quiet" title="borrowed from others, lent to others">${m.borrowed_blocks > 0 && html`+${count(m.borrowed_blocks)}`}${m.lent_blocks > 0 && html` −${count(m.lent_blocks)}`}</td>
    <td class=${`num ${m.in_time != null && m.in_time < TARGET ? "late" : ""}`} title="in time">${percent(m.in_time)}</td></tr>
</tbody>`;

export const Replicas = ({ unit, colour }) =>
  unit.models.length
    ? html`<table class="replicas"><thead><tr><th scope="col" class="num" title="running, and waiting">Running</th><th scope="col" class="num">KV blocks</th><th scope="col" class="num" title="borrowed from others, lent to others">+/−</th><th scope="col" class="num">In time</th></tr></thead>
      ${unit.models.map((m) => html`<${Replica} key=${m.model} replica=${m} colour=${colour} />`)}</table>`
    : html`<p class="quiet small">It holds no model.</p>`;

function Unit({ unit, samples, colour }) {
  const memory = memoryParts(unit, colour);
  const points = samples.filter((s) => s.sms[unit.unit]).map((s) => ({ at: s.at_s, low: s.sms[unit.unit][0], high: s.sms[unit.unit][1] }));
  return html`<article class=${`unit ${unit.state === "ok" ? "" : stateClass(unit.state)}`} data-unit=${unit.unit}>
    <header>
      <h3><a href=${`#unit/${encodeURIComponent(unit.unit)}`} title=${unit.unit}>${short(unit.unit)}</a></h3>
      <span class="quiet small">${unit.pool} · ${short(unit.node).slice(0, 12)}</span>
      <span class=${`chip ${stateClass(unit.state)}`} data-field="state">${unit.state}${unit.state === "silent" ? ` ${seconds(unit.silent_s)}` : ""}</span>
    </header>
    ${unit.note && html`<p class="why">${unit.note}</p>`}
    <dl class="bars">
      <dt>Memory</dt><dd><${Bar} label="memory" ...${memory} /></dd>
      <dt>KV</dt><dd><${Bar} label="KV blocks" parts=${kvParts(unit, colour)} total=${unit.total_blocks} /></dd>
      <dt>SMs</dt><dd><${Sms} prefill=${unit.prefill_sms} decode=${unit.decode_sms} /><${Split} points=${points} label="SM split over the last minutes" /></dd>
    </dl>
    <${Replicas} unit=${unit} colour=${colour} />
  </article>`;
}

export const Legend = () => html`<p class="legend small">
  <span><i class="swatch plain"></i> a model's own KV or weights</span>
  <span><i class="swatch plain borrowed"></i> borrowed beyond its quota</span>
  <span><i class="swatch cached"></i> cached prefixes</span>
  <span><i class="swatch pool"></i> KV pool</span>
  <span><i class="swatch prefill"></i> SMs of prefill</span>
  <span><i class="swatch decode"></i> SMs of decode</span>
</p>`;

function Units({ fleet, samples, colour, selection, go }) {
  const asked = [selection.model && `with ${selection.model}`, selection.pool && `of ${selection.pool}`].filter(Boolean).join(" ");
  return html`<section aria-labelledby="units-head">
    <div class="head"><h2 id="units-head">Units ${asked}</h2>
      <label class="find">Find <input type="search" maxlength="200" value=${selection.find} placeholder="unit or node" onInput=${(e) => go({ find: e.target.value })} /></label>
      ${asked && html`<button onClick=${() => go({ pool: "", model: "" })}>all units</button>`}
      <span class="quiet small">${fleet.matching > fleet.units.length ? `${fleet.units.length} of ${fleet.matching}, those in trouble first` : plural(fleet.matching, "unit")}</span></div>
    <${Legend} />
    <div class="units">${fleet.units.map((u) => html`<${Unit} key=${u.unit} unit=${u} samples=${samples} colour=${colour} />`)}</div>
    ${!fleet.units.length && html`<p class="quiet">No unit matches.</p>`}
  </section>`;
}

export const Decisions = ({ decisions, label }) => html`<ol class="decisions" aria-label=${label}>
  ${decisions.map(
    (d, i) => html`<li key=${i}><time>${clock(d.at_s)}</time> <b>${d.kind}</b> <span>${[d.reason, ...d.moves].join("; ")}</span></li>`,
  )}
</ol>`;

export function FleetPage({ fleet, samples, selection, go }) {
  const colour = colours(fleet.models);
  const shared = { fleet, samples, colour, selection, go };
  return html`<h1 class="unseen">Fleet</h1>
    <${Verdict} ...${shared} />
    <${Models} ...${shared} />
    <${Pools} ...${shared} />
    <${Units} ...${shared} />
    ${fleet.decisions.length > 0 && html`<section><h2>What the control loop did</h2><${Decisions} decisions=${fleet.decisions} label="newest decisions" /></section>`}`;
}
