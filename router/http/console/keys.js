// Keys: what each API key uses, by name.

import { html } from "./vendor/htm-preact-3.1.1.js";
import { Bar } from "./charts.js";
import { count, percent } from "./format.js";

const Rate = ({ left, limit, label }) =>
  limit == null ? html`<span class="quiet">no limit</span>` : html`<${Bar} label=${label} total=${limit} parts=${[{ size: Math.max(0, limit - left), className: "plain", title: `${Math.max(0, limit - left)} of ${limit} a minute used` }]} /><span class="quiet small">${count(Math.max(0, limit - left))} of ${count(limit)} a minute</span>`;

const evenly = (report) => html`<p><b class="big" data-field="jain_index">${report.jain_index.toFixed(2)}</b> is Jain's index of the keys' tokens in the last ${report.window_s / 60} minutes: 1 where all keys that ask get the same, 1/n where one of n gets all. An even share is ${percent(report.fair_share, 1)}. A key that asks for little lowers the index without being wronged; one that waits and gets less than an even share is.</p>`;

export function KeysPage({ report }) {
  if (!report) return html`<h1>Keys</h1><p class="quiet">Asking the gateways …</p>`;
  const keys = report.keys.map(({ figures, share }) => ({ ...figures, share }));
  if (!keys.length) return html`<h1>Keys</h1><div class="verdict warn"><strong>No API keys are in force:</strong> whoever reaches this fleet may use it, and see this console. <code>muxfleet keys</code> makes a file of keys.</div>`;
  const rows = [...keys].sort((a, b) => b.rate_limited + b.not_allowed - a.rate_limited - a.not_allowed || b.tokens - a.tokens || a.name.localeCompare(b.name));
  return html`<h1>Keys</h1>${report.left_out > 0 && html`<div class="verdict warn" data-field="left_out">${report.left_out === 1 ? "One gateway does not tell its part" : `${report.left_out} gateways do not tell their parts`}: it is silent, or of another release. The figures are the others'.</div>`}${report.jain_index != null && keys.length > 1 && evenly(report)}<div class="scroll" tabindex="0" role="region" aria-label="API keys"><table>
    <thead><tr><th scope="col">Key</th><th scope="col" class="num">Requests</th><th scope="col" class="num">Tokens</th><th scope="col">Share lately</th><th scope="col" class="num">Prompt tokens waiting</th><th scope="col" class="num">Refused: rate</th><th scope="col" class="num">Refused: model</th><th scope="col">Requests of its rate</th><th scope="col">Tokens of its rate</th><th scope="col">Models</th></tr></thead>
    <tbody>${rows.map((k) => html`<tr key=${k.key_id} data-key=${k.name}><th scope="row">${k.name}${k.is_admin && html` <span class="chip rest">admin</span>`}</th>
      <td class="num" data-field="requests">${count(k.requests)}</td><td class="num" data-field="tokens">${count(k.tokens)}</td>
      <td>${k.share == null ? html`<span class="quiet">asks for nothing</span>` : html`<${Bar} label="share of tokens" total=${1} parts=${[{ size: k.share, className: "plain", title: `${count(k.recent_tokens)} tokens` }]} /><span class="quiet small" data-field="share">${percent(k.share, 1)}</span>`}</td>
      <td class=${`num ${k.waiting_tokens && k.share < report.fair_share ? "late" : ""}`} data-field="waiting_tokens">${count(k.waiting_tokens)}</td>
      <td class=${`num ${k.rate_limited ? "late" : ""}`} data-field="rate_limited">${k.rate_limited}</td><td class=${`num ${k.not_allowed ? "late" : ""}`}>${k.not_allowed}</td>
      <td><${Rate} left=${k.remaining_requests} limit=${k.limit_requests} label="requests" /></td><td><${Rate} left=${k.remaining_tokens} limit=${k.limit_tokens} label="tokens" /></td>
      <td>${k.models ? k.models.join(", ") : "all"}</td></tr>`)}</tbody></table></div>
    <p class="quiet small">Since the gateways started. Only names are shown; a key itself is kept nowhere.</p>`;
}
