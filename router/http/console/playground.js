// Playground: talk to a model, or to two beside each other, and see what the answer cost.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { count, seconds, short } from "./format.js";
import { ask, events } from "./live.js";

const MAX_TOKENS = 256;
const inTime = { met: "in time", missed: "late" };

// A stream that waits for its model has comment lines in place of headers: how far it is, then how it is served.
const SERVED = /^(x-muxfleet-[a-z-]+): (.*)$/;
const KEEP_ALIVE = "keep-alive";

function servedBy(get) {
  const ms = (name) => (get(name) == null ? null : Number(get(name)) / 1000);
  return { unit: get("x-muxfleet-unit") ?? "", queue_s: ms("x-muxfleet-queue-ms"), cold_s: ms("x-muxfleet-cold-ms"), prefill_s: ms("x-muxfleet-prefill-ms"), slo: get("x-muxfleet-slo") ?? "" };
}

async function answerOf(model, talk, signal, show) {
  const began = performance.now();
  const told = { model, text: "", tokens: 0, first_s: null, took_s: null, unit: "", waits: "", error: "" };
  const now = () => (performance.now() - began) / 1000;
  try {
    const body = JSON.stringify({ model, messages: talk, stream: true, stream_options: { include_usage: true }, max_tokens: MAX_TOKENS });
    const response = await ask("v1/chat/completions", { method: "POST", body, signal, headers: { "content-type": "application/json" } });
    Object.assign(told, servedBy((name) => response.headers.get(name)));
    const late = new Map();
    const comment = (line) => {
      const [, name, value] = SERVED.exec(line) ?? [];
      if (name) {
        late.set(name, value);
        Object.assign(told, servedBy((asked) => late.get(asked)));
      } else if (line !== KEEP_ALIVE) told.waits = line;
      show({ ...told });
    };
    for await (const { data } of events(response.body, comment)) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      const delta = chunk.choices?.[0]?.delta;
      if (delta?.content || delta?.reasoning_content) told.first_s ??= now();
      told.text += (delta?.reasoning_content ?? "") + (delta?.content ?? "");
      if (chunk.usage) told.tokens = chunk.usage.completion_tokens;
      show({ ...told });
    }
  } catch (error) {
    told.error = signal.aborted ? "stopped" : error.message;
  }
  told.took_s = now();
  show({ ...told });
  return told;
}

function Receipt({ told }) {
  if (told.error) return html`<p class="late">${told.error}</p>`;
  if (told.took_s == null) return html`<p class="quiet small" data-field="waits">${told.unit ? `on ${short(told.unit)} …` : told.waits || "waiting …"}</p>`;
  const pace = told.tokens > 1 && told.first_s != null ? (told.tokens - 1) / Math.max(told.took_s - told.first_s, 1e-6) : null;
  return html`<p class="facts small"><b>${pace == null ? "–" : pace.toFixed(1)} tokens/s</b> · ${count(told.tokens)} tokens · first after ${seconds(told.first_s)} (${inTime[told.slo] ?? "–"}) · queue ${seconds(told.queue_s)}${told.cold_s > 0 ? `, cold ${seconds(told.cold_s)}` : ""} · prefill ${seconds(told.prefill_s)} · ${told.unit && html`<a href=${`#unit/${encodeURIComponent(told.unit)}`}>${short(told.unit)}</a>`}</p>`;
}

const Turn = ({ turn }) => html`<div class="turn"><p class="said">${turn.said}</p><div class="answer" data-model=${turn.told.model}><p>${turn.told.text || (turn.told.took_s == null ? "…" : "")}</p><${Receipt} told=${turn.told} /></div></div>`;

export function PlaygroundPage({ fleet }) {
  const models = fleet.models.map((m) => m.model);
  const [chosen, setChosen] = useState([models[0] ?? ""]);
  const [turns, setTurns] = useState([[], []]);
  const [said, setSaid] = useState("");
  const [stop, setStop] = useState(null);
  const kept = useRef(turns);
  const change = (side, make) => {
    kept.current = kept.current.map((list, i) => (i === side ? make(list) : list));
    setTurns(kept.current);
  };
  async function send(event) {
    event.preventDefault();
    if (!said.trim() || stop) return;
    const controller = new AbortController();
    const text = said;
    setStop(controller);
    setSaid("");
    await Promise.all(
      chosen.map((model, side) => {
        const before = kept.current[side].filter((t) => t.told.model === model && !t.told.error);
        const talk = [...before.flatMap((t) => [{ role: "user", content: t.said }, { role: "assistant", content: t.told.text }]), { role: "user", content: text }];
        change(side, (list) => [...list, { said: text, told: { model, text: "", took_s: null } }]);
        return answerOf(model, talk, controller.signal, (told) => change(side, (list) => [...list.slice(0, -1), { said: text, told }]));
      }),
    );
    setStop(null);
  }
  const pick = (side, model) => setChosen(chosen.map((m, i) => (i === side ? model : m)));
  return html`<div class="head"><h1>Playground</h1>
      <label><input type="checkbox" checked=${chosen.length === 2} onChange=${() => setChosen(chosen.length === 2 ? chosen.slice(0, 1) : [chosen[0], models[1] ?? models[0]])} /> two side by side</label>
      <button onClick=${() => ((kept.current = [[], []]), setTurns(kept.current))}>Clear</button></div>
    <div class=${`talks n${chosen.length}`}>
      ${chosen.map((model, side) => html`<section key=${side} class="talk"><label class="unseen" for=${`model-${side}`}>Model ${side + 1}</label>
        <select id=${`model-${side}`} value=${model} onChange=${(e) => pick(side, e.target.value)}>${fleet.models.map((m) => html`<option key=${m.model} value=${m.model}>${m.model}${m.state === "ready" ? "" : ` (${m.state})`}</option>`)}</select>
        ${turns[side].map((turn, i) => html`<${Turn} key=${i} turn=${turn} />`)}</section>`)}
    </div>
    <form class="say" onSubmit=${send}><label class="unseen" for="say">Message</label>
      <textarea id="say" rows="2" placeholder="Say something; Enter sends" value=${said} onInput=${(e) => setSaid(e.target.value)} onKeyDown=${(e) => e.key === "Enter" && !e.shiftKey && send(e)}></textarea>
      ${stop ? html`<button type="button" onClick=${() => stop.abort()}>Stop</button>` : html`<button class="primary">Send</button>`}</form>
    <p class="quiet small">Answers of up to ${MAX_TOKENS} tokens. They count as any other request of your key.</p>`;
}
