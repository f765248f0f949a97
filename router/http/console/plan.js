// Plan: what the fleet goes for, what the planner would do, why a model sits where it sits, and what if.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { Bar } from "./charts.js";
import { Decisions } from "./fleet.js";
import { bytes, percent, plural, seconds, short } from "./format.js";
import { askJson } from "./live.js";

const figure = (x) => (x == null ? "–" : x > 1e3 ? "hardly loaded" : `×${x.toFixed(2)}`);

function Moves({ look }) {
  if (!look.num_moves) return html`<p>It would move nothing.</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="moves"><table><thead><tr><th scope="col">Move</th><th scope="col">Unit</th><th scope="col" class="num">Reads</th><th scope="col" class="num">Served of the model's demand</th></tr></thead>
    <tbody>${look.moves.map((m, i) => html`<tr key=${i}><th scope="row">${m.kind} ${m.model}</th><td title=${m.unit}>${short(m.unit)}</td><td class="num">${m.load_bytes ? bytes(m.load_bytes) : "nothing"}</td>
      <td class="num">${percent(look.served_now[m.model])} → ${percent(look.served_then[m.model])}</td></tr>`)}</tbody></table></div>
    ${look.num_moves > look.moves.length && html`<p class="quiet small">and ${look.num_moves - look.moves.length} more moves</p>`}`;
}

const Look = ({ look }) => html`<p><b class="big">${percent(look.share_now, 1)} → ${percent(look.share_then, 1)}</b> of the demand in time, as the fleet is and with this plan (${look.why}).</p>
  ${look.put_to_sleep.length > 0 && html`<p>It gives up ${look.put_to_sleep.join(", ")}.</p>`}
  <${Moves} look=${look} />`;

function Explained({ told }) {
  const m = told.model;
  return html`<div class="detail"><p><b>${m.model}</b>: ${m.rate_per_s.toFixed(2)} requests/s on ${plural(m.replicas, "replica")}, ${percent(m.served_share, 1)} within SLO by the estimate.</p>
    ${told.unplaced && html`<p class="late">Not placed: ${told.unplaced}</p>`}
    ${told.homes.map((h) => html`<p key=${h.unit.unit_id}>On <b>${short(h.unit.unit_id)}</b> ${h.neighbours.length ? `beside ${h.neighbours.join(", ")}` : "alone"}: headroom ${figure(h.unit.headroom)}, limited by ${h.unit.limit}; alone it would be ${figure(h.alone_headroom)}.${Object.entries(h.loses ?? {}).map(([other, part]) => ` It was seen to lose ${percent(part)} of a target more to ${other} than is estimated.`)}</p>`)}
    ${told.rejected.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="units that it is not on"><table><thead><tr><th scope="col">Not on</th><th scope="col" class="num">would lose</th><th scope="col">because</th></tr></thead>
      <tbody>${told.rejected.slice(0, 8).map((r) => html`<tr key=${r.unit_id}><th scope="row">${short(r.unit_id)}</th><td class="num">${r.lost_per_s == null ? "no room" : `${r.lost_per_s.toFixed(2)}/s`}</td><td>${r.reason}</td></tr>`)}</tbody></table></div>`}
  </div>`;
}

function Models({ plan }) {
  const [asked, setAsked] = useState("");
  const [told, setTold] = useState(null);
  const [trouble, setTrouble] = useState("");
  async function explain(model) {
    setTold(null);
    setTrouble("");
    if (asked === model) return setAsked("");
    setAsked(model);
    try {
      const answer = await askJson(`fleet?explain=${encodeURIComponent(model)}`);
      answer ? setTold(answer) : setTrouble("It is not planned for now.");
    } catch (error) {
      setTrouble(error.message);
    }
  }
  return html`<section><h2>What the fleet goes for</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="models of the plan"><table><thead><tr><th scope="col">Model</th><th scope="col" class="num">Requests/s</th><th scope="col" class="num">Can be served</th><th scope="col">On</th><th scope="col"><span class="unseen">explain</span></th></tr></thead>
    <tbody>${plan.models.flatMap((m) => [
      html`<tr key=${m.model} data-model=${m.model}><th scope="row">${m.model}</th><td class="num" data-field="rate_per_s">${m.rate_per_s.toFixed(2)}</td><td class=${`num ${m.served_share != null && m.served_share < 0.995 ? "late" : ""}`}>${percent(m.served_share)}</td>
        <td>${m.unplaced ? html`<span class="late">${m.unplaced}</span>` : m.units.slice(0, 4).map(short).join(", ") || "nowhere"}${m.num_units > 4 ? ` and ${m.num_units - 4} more` : ""}</td>
        <td><button aria-expanded=${asked === m.model} aria-label=${`why there? ${m.model}`} onClick=${() => explain(m.model)}>why there?</button></td></tr>`,
      asked === m.model && html`<tr key=${`${m.model}-why`}><td colspan="5">${told ? html`<${Explained} told=${told} />` : html`<p class="quiet">${trouble || "Asking …"}</p>`}</td></tr>`,
    ])}</tbody></table></div></section>`;
}

function Units({ plan }) {
  const names = [...new Set(plan.units.flatMap((u) => Object.keys({ ...u.in_force, ...u.goal, ...u.look })))].sort();
  const same = (one, other) => names.every((m) => one[m] === other[m]);
  const next = (quotas, before) => (same(quotas, before) ? html`<span class="quiet">the same</span>` : cell(quotas));
  const cell = (quotas) => !Object.keys(quotas).length ? html`<span class="quiet">nothing</span>` : names.filter((m) => quotas[m] != null).map((m) => html`<span key=${m} class="chip rest">${m} <b>${quotas[m]}</b></span>`);
  return html`<section><h2>Units</h2><div class="scroll" tabindex="0" role="region" aria-label="units of the plan"><table>
    <thead><tr><th scope="col">Unit</th><th scope="col">In force</th><th scope="col">Goal</th><th scope="col">The planner, now</th></tr></thead>
    <tbody>${plan.units.map((u) => html`<tr key=${u.unit}><th scope="row" title=${u.unit}>${short(u.unit)}</th><td>${cell(u.in_force)}</td><td>${next(u.goal, u.in_force)}</td><td>${plan.look ? next(u.look, u.goal) : "–"}</td></tr>`)}</tbody></table></div>
    <p class="quiet small">Token blocks that each model may hold${plan.num_units > plan.units.length ? `; the first ${plan.units.length} of ${plan.num_units} units` : ""}.</p></section>`;
}

const times = (power) => `×${(2 ** power).toFixed(2)}`;

const Slider = ({ name, power, set, told }) => html`<label>${name} ${times(power)} <input type="range" name=${name} min="-3" max="5" step="0.25" value=${power} onInput=${(e) => set(Number(e.target.value))} /><output>${told}</output></label>`;

// What is not at ×1, or as many, is other than it is.
function changesOf({ model, rate, slo, powers, pool, nodes }) {
  const targets = {};
  if (powers.ttft) targets.ttft_s = Number((slo.ttft_s * 2 ** powers.ttft).toPrecision(4));
  if (powers.tbt) targets.tbt_s = Number((slo.tbt_s * 2 ** powers.tbt).toPrecision(4));
  return {
    ...(powers.rate && { rates: { [model]: Number((rate * 2 ** powers.rate).toPrecision(4)) } }),
    ...(Object.keys(targets).length && { targets: { [model]: targets } }),
    ...(pool && nodes !== pool.nodes && { nodes: { [pool.pool]: nodes } }),
  };
}

function Served({ look }) {
  const moved = Object.keys(look.served_then).filter((m) => Math.abs(look.served_then[m] - (look.served_now[m] ?? 0)) > 0.0005).sort();
  if (!moved.length) return null;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="models that would be served otherwise"><table><thead><tr><th scope="col">Model</th><th scope="col" class="num">Served, as the fleet goes on</th><th scope="col" class="num">with the plan</th></tr></thead>
    <tbody>${moved.map((m) => html`<tr key=${m}><th scope="row">${m}</th><td class="num">${percent(look.served_now[m])}</td><td class="num">${percent(look.served_then[m])}</td></tr>`)}</tbody></table></div>`;
}

function WhatIf({ plan, fleet }) {
  const [model, setModel] = useState(plan.models[0]?.model ?? "");
  const [powers, setPowers] = useState({ rate: 1, ttft: 0, tbt: 0 });
  const [pool, setPool] = useState(fleet.pools[0]?.pool ?? "");
  const [wanted, setWanted] = useState(null);
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const known = plan.models.find((m) => m.model === model)?.rate_per_s ?? 0;
  const slo = fleet.models.find((m) => m.model === model) ?? {};
  const chosen = fleet.pools.find((p) => p.pool === pool);
  const rate = Math.max(0.01, known);
  const nodes = wanted ?? chosen?.nodes ?? 0;
  const changes = changesOf({ model, rate, slo, powers, pool: chosen, nodes });
  const move = (name) => (power) => setPowers((old) => ({ ...old, [name]: power }));
  async function ask(event) {
    event.preventDefault();
    setBusy(true);
    setTrouble("");
    setFound(null);
    try {
      const answer = await askJson("fleet/what-if", { method: "POST", body: JSON.stringify(changes), headers: { "content-type": "application/json" } });
      answer ? setFound(answer) : setTrouble(`${model} is not planned for now: nobody asks for it.`);
    } catch (error) {
      setTrouble(error.message);
    }
    setBusy(false);
  }
  return html`<section><h2>What if</h2><form class="whatif" onSubmit=${ask}>
      <label>Model <select name="model" value=${model} onChange=${(e) => setModel(e.target.value)}>${plan.models.map((m) => html`<option key=${m.model} value=${m.model}>${m.model}</option>`)}</select></label>
      <${Slider} name="asked for" power=${powers.rate} set=${move("rate")} told=${`${(rate * 2 ** powers.rate).toFixed(2)} requests/s instead of ${known.toFixed(2)}`} />
      ${slo.ttft_s != null && html`<${Slider} name="TTFT target" power=${powers.ttft} set=${move("ttft")} told=${seconds(slo.ttft_s * 2 ** powers.ttft)} />
      <${Slider} name="TBT target" power=${powers.tbt} set=${move("tbt")} told=${seconds(slo.tbt_s * 2 ** powers.tbt)} />`}
      ${chosen && html`<label>Pool <select name="pool" value=${pool} onChange=${(e) => (setPool(e.target.value), setWanted(null))}>${fleet.pools.map((p) => html`<option key=${p.pool} value=${p.pool}>${p.pool}</option>`)}</select></label>
      <label>with nodes <input type="number" name="nodes" min="1" max="1024" required value=${nodes} onInput=${(e) => setWanted(Math.max(1, Number(e.target.value) || 1))} /><output>instead of ${chosen.nodes} with ${plural(chosen.units, "unit")}</output></label>`}
      <button class="primary" disabled=${busy || !Object.keys(changes).length}>${busy ? "planning …" : "Ask the planner"}</button></form>
    <div aria-live="polite">${trouble && html`<p class="late">${trouble}</p>`}${found && html`<${Look} look=${found} /><${Served} look=${found} />`}</div>
    <p class="quiet small">A planner in a process of its own answers. Nothing is changed. A new node is as the pool's largest; of fewer, those with the least on them go.</p></section>`;
}

export function PlanPage({ plan, fleet }) {
  if (!plan) return html`<h1>Plan</h1><p class="quiet">Asking the control loop …</p>`;
  return html`<h1 class="unseen">Plan</h1>
    <${Models} plan=${plan} />
    <${Units} plan=${plan} />
    <section><h2>The planner's last look</h2>${plan.look ? html`<${Look} look=${plan.look} />` : html`<p class="quiet">It has not looked yet.</p>`}</section>
    <${WhatIf} plan=${plan} fleet=${fleet} />
    <section><h2>History</h2>${plan.decisions.length ? html`<${Decisions} decisions=${plan.decisions} label="decisions, newest first" />` : html`<p class="quiet">Nothing was decided yet.</p>`}</section>`;
}
