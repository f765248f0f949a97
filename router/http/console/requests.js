// Requests: the last and the slowest, each with what its time went to.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { Bar } from "./charts.js";
import { clock, count, percent, seconds, short } from "./format.js";

export function partsOf(r) {
  const cold = Math.min(r.cold_s, r.queue_s);
  const ahead = Math.min(r.ahead_s, r.prefill_s);
  const decode = r.ttft_s == null ? 0 : Math.max(0, r.elapsed_s - r.ttft_s);
  const known = r.queue_s + r.prefill_s + decode;
  return [
    { size: cold, className: "w-cold", title: `cold start ${seconds(cold)}` },
    { size: r.queue_s - cold, className: "w-queue", title: `queue ${seconds(r.queue_s - cold)}` },
    { size: ahead, className: "w-ahead", title: `others on the unit ${seconds(ahead)} (expected)` },
    { size: r.prefill_s - ahead, className: "w-prefill", title: `prefill ${seconds(r.prefill_s - ahead)}` },
    { size: decode, className: "w-decode", title: `decode ${seconds(decode)}` },
    { size: Math.max(0, r.elapsed_s - known), className: "w-other", title: `rest ${seconds(Math.max(0, r.elapsed_s - known))}` },
  ];
}

function Detail({ r }) {
  const parts = partsOf(r).filter((p) => p.size > 0);
  return html`<div class="detail">
    <p>${parts.map((p) => p.title).join(" → ") || "It was not admitted."}</p>
    ${r.waited_for && html`<p><b>It waited for</b> ${r.waited_for}.</p>`}
    ${r.error && html`<p class="late">${r.status}: ${r.error}</p>`}
    ${r.ttft_s != null && html`<p>First token after ${seconds(r.ttft_s)}, target ${seconds(r.target_ttft_s)}${r.predicted_ttft_s != null ? `, predicted ${seconds(r.predicted_ttft_s)} from its turn on` : ""}. Worst gap ${seconds(r.worst_gap_s)}, target ${seconds(r.target_tbt_s)}.</p>`}
    <p>${count(r.prompt_tokens)} prompt tokens, ${percent(r.prefix_tokens / Math.max(1, r.prompt_tokens))} of them expected in the cache; ${count(r.output_tokens)} answered.
      ${r.unit && html` On <a href=${`#unit/${encodeURIComponent(r.unit)}`}>${short(r.unit)}</a>.`}</p>
    ${r.moves.map((m, i) => html`<p key=${i}><b>Moved</b> after ${seconds(m.at_s)}: ${short(m.unit)} was lost (${m.reason}).</p>`)}
    <p class="quiet small">${r.endpoint} · ${r.key ? `key ${r.key} · ` : ""}request ${r.request_id}</p>
  </div>`;
}

function Row({ r, longest, open, toggle }) {
  const late = r.ttft_s != null && !r.in_time;
  return html`<li class=${r.status >= 400 ? "failed" : ""} data-request=${r.request_id}>
    <button class="receipt" aria-expanded=${open} onClick=${toggle}>
      <time>${clock(r.ended_s)}</time>
      <span class="name">${r.model || r.endpoint}</span>
      <span class=${`chip ${r.status >= 400 ? "bad" : late ? "warn" : "good"}`}>${r.status >= 400 ? r.status : late ? "late" : "in time"}</span>
      <span class="num" data-field="elapsed">${seconds(r.elapsed_s)}</span>
      <${Bar} className="waterfall" label="its time" parts=${partsOf(r)} total=${longest} />
    </button>
    ${open && html`<${Detail} r=${r} />`}
  </li>`;
}

const KEYS = [
  ["w-cold", "cold start"], ["w-queue", "queue at the gateway"], ["w-ahead", "behind others on the unit"],
  ["w-prefill", "prefill"], ["w-decode", "decode"], ["w-other", "rest"],
];

export function RequestsPage({ requests }) {
  const [which, setWhich] = useState("slowest");
  const [open, setOpen] = useState("");
  if (!requests) return html`<h1>Requests</h1><p class="quiet">Asking the gateways …</p>`;
  const shown = requests[which];
  const longest = Math.max(...shown.map((r) => r.elapsed_s), 1e-9);
  return html`<div class="head"><h1>Requests</h1>
      <div class="tabs" role="group" aria-label="which requests">
        ${["slowest", "last"].map((name) => html`<button key=${name} aria-pressed=${which === name} onClick=${() => setWhich(name)}>${name === "slowest" ? "Slowest" : "Last"}</button>`)}
      </div></div>
    <p class="legend small">${KEYS.map(([name, text]) => html`<span key=${name}><i class=${`swatch ${name}`}></i> ${text}</span>`)}</p>
    ${shown.length ? html`<ol class="receipts">${shown.map((r) => html`<${Row} key=${r.request_id} r=${r} longest=${longest} open=${open === r.request_id} toggle=${() => setOpen(open === r.request_id ? "" : r.request_id)} />`)}</ol>` : html`<p class="quiet">No request has ended yet.</p>`}
    <p class="quiet small">Of each gateway the last 64, and the slowest 32 of the last minutes. Prompts and answers are not kept.</p>`;
}
