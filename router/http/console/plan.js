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
    ${told.homes.map((h) => html`<p key=${h.unit.unit_id}>On <b>${short(h.unit.unit_id)}</b> ${h.neighbours.length ? `beside ${h.neighbours.join(", ")}` : "alone"}: headroom ${figure(h.unit.headroom)}, limited by ${h.unit.limit}; alone it would be ${figure(h.alone_headroom)}.</p>`)}
    ${told.rejected.length > 0 && html`<table><thead><tr><th scope="col">Not on</th><th scope="col" class="num">would lose</th><th scope="col">because</th></tr></thead>
      <tbody>${told.rejected.slice(0, 8).map((r) => html`<tr key=${r.unit_id}><th scope="row">${short(r.unit_id)}</th><td class="num">${r.lost_per_s == null ? "no room" : `${r.lost_per_s.toFixed(2)}/s`}</td><td>${r.reason}</td></tr>`)}</tbody></table>`}
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

function WhatIf({ plan }) {
  const [model, setModel] = useState(plan.models[0]?.model ?? "");
  const [power, setPower] = useState(1);
  const [found, setFound] = useState(null);
  const [trouble, setTrouble] = useState("");
  const [busy, setBusy] = useState(false);
  const known = plan.models.find((m) => m.model === model)?.rate_per_s ?? 0;
  const rate = Math.max(0.01, known) * 2 ** power;
  async function ask(event) {
    event.preventDefault();
    setBusy(true);
    setTrouble("");
    setFound(null);
    try {
      const body = JSON.stringify({ rates: { [model]: Number(rate.toFixed(4)) } });
      const answer = await askJson("fleet/what-if", { method: "POST", body, headers: { "content-type": "application/json" } });
      answer ? setFound(answer) : setTrouble(`${model} is not planned for now: nobody asks for it.`);
    } catch (error) {
      setTrouble(error.message);
    }
    setBusy(false);
  }
  return html`<section><h2>What if</h2><form class="whatif" onSubmit=${ask}>
      <label>Model <select value=${model} onChange=${(e) => setModel(e.target.value)}>${plan.models.map((m) => html`<option key=${m.model} value=${m.model}>${m.model}</option>`)}</select></label>
      <label>asked for ×${(2 ** power).toFixed(2)} <input type="range" min="-3" max="5" step="0.25" value=${power} onInput=${(e) => setPower(Number(e.target.value))} /></label>
      <output>${rate.toFixed(2)} requests/s instead of ${known.toFixed(2)}</output>
      <button class="primary" disabled=${busy || !model}>${busy ? "planning …" : "Ask the planner"}</button></form>
    <div aria-live="polite">${trouble && html`<p class="late">${trouble}</p>`}${found && html`<${Look} look=${found} />`}</div>
    <p class="quiet small">A planner in a process of its own answers. Nothing is changed.</p></section>`;
}

export function PlanPage({ plan }) {
  if (!plan) return html`<h1>Plan</h1><p class="quiet">Asking the control loop …</p>`;
  return html`<h1 class="unseen">Plan</h1>
    <${Models} plan=${plan} />
    <${Units} plan=${plan} />
    <section><h2>The planner's last look</h2>${plan.look ? html`<${Look} look=${plan.look} />` : html`<p class="quiet">It has not looked yet.</p>`}</section>
    <${WhatIf} plan=${plan} />
    <section><h2>History</h2>${plan.decisions.length ? html`<${Decisions} decisions=${plan.decisions} label="decisions, newest first" />` : html`<p class="quiet">Nothing was decided yet.</p>`}</section>`;
}
