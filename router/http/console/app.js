// The console: which page is shown, what it follows, and whose key asks.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { FleetPage } from "./fleet.js";
import { KeysPage } from "./keys.js";
import { follow, key } from "./live.js";
import { PlanPage } from "./plan.js";
import { PlaygroundPage } from "./playground.js";
import { RequestsPage } from "./requests.js";
import { UnitPage } from "./unit.js";

const PAGES = [["fleet", "Fleet"], ["requests", "Requests"], ["plan", "Plan"], ["playground", "Playground"], ["keys", "Keys"]];
const TOPICS = { fleet: ["fleet", "history"], unit: ["fleet", "unit"], requests: ["fleet", "requests"], plan: ["fleet", "plan"], playground: ["fleet"], keys: ["fleet", "keys"] };
const SAMPLES = 300;

const place = () => {
  const [page, id] = location.hash.slice(1).split("/");
  return { page: page in TOPICS ? page : "fleet", id: decodeURIComponent(id ?? "") };
};

function sampleOf(fleet) {
  const parts = fleet.matching === fleet.units.length ? fleet.units.map((u) => [u.unit, u]) : fleet.pools.map((p) => [p.pool, p]);
  return {
    at_s: Date.now() / 1000,
    models: Object.fromEntries(fleet.models.map((m) => [m.model, [m.in_time, m.waiting, m.tokens_per_s]])),
    sms: Object.fromEntries(parts.map(([name, p]) => [name, [p.prefill_sms, p.decode_sms]])),
  };
}

function KeyForm({ refused, enter }) {
  const [secret, setSecret] = useState("");
  return html`<main class="page"><form class="keyform" onSubmit=${(e) => (e.preventDefault(), enter(secret.trim()))}>
    <h1>muxfleet console</h1>
    <p role="alert">${refused.message}</p>
    <label>Admin key <input type="password" autocomplete="off" required value=${secret} onInput=${(e) => setSecret(e.target.value)} /></label>
    <button class="primary">Open</button>
    <p class="quiet small">It stays in this tab and is sent to this gateway only. <code>muxfleet keys new NAME --admin</code> makes one.</p>
  </form></main>`;
}

function Header({ at, status, leave }) {
  return html`<header class="top"><a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), document.getElementById("main").focus())}>Skip to the page</a>
    <a class="brand" href="#fleet"><img src="console/icon.svg" alt="" width="22" height="22" />muxfleet</a>
    <nav aria-label="pages">${PAGES.map(([page, title], i) => html`<a key=${page} href=${`#${page}`} aria-current=${at.page === page || (page === "fleet" && at.page === "unit") ? "page" : null} title=${`key ${i + 1}`}>${title}</a>`)}</nav>
    <span class=${`status ${status.name}`} role="status">${status.name === "live" ? "live" : status.text || "connecting"}</span>
    ${key.get() && html`<button class="link" onClick=${leave}>forget key</button>`}
  </header>`;
}

function App() {
  const [at, setAt] = useState(place);
  const [told, setTold] = useState({});
  const [samples, setSamples] = useState([]);
  const [status, setStatus] = useState({ name: "connecting", text: "" });
  const [refused, setRefused] = useState(null);
  const [selection, setSelection] = useState({ pool: "", model: "", find: "" });
  const [asked, setAsked] = useState(0);
  const newest = useRef(null);

  useEffect(() => {
    const move = () => (setAt(place()), setTold((old) => ({ ...old, unit: undefined })));
    const press = (e) => {
      if (e.target.matches("input, textarea, select") || e.ctrlKey || e.metaKey || e.altKey) return;
      const page = PAGES[Number(e.key) - 1];
      if (page) location.hash = page[0];
    };
    addEventListener("hashchange", move);
    addEventListener("keydown", press);
    return () => (removeEventListener("hashchange", move), removeEventListener("keydown", press));
  }, []);

  useEffect(() => {
    document.title = `${at.page === "unit" ? at.id : PAGES.find(([p]) => p === at.page)[1]} · muxfleet`;
    const controller = new AbortController();
    const about = at.page === "unit" ? { unit: at.id, find: at.id } : at.page === "fleet" ? selection : {};
    const on = {
      status: (name, text) => setStatus({ name, text: text ?? "" }),
      refused: (error) => {
        if (error.status !== 404) return setRefused(error);
        setTold((old) => ({ ...old, unit: undefined })); // the unit has gone: the fleet without it says so
        follow(["fleet"], { find: at.id }, on, controller.signal);
      },
      event: (name, value) => {
        if (name === "silent") return setStatus({ name: "lost", text: `no answer for ${value}` });
        if (name === "history") return setSamples((own) => (own.length > value.length ? own : value));
        setStatus({ name: "live", text: "" });
        if (name === "fleet") newest.current = value;
        setTold((old) => ({ ...old, [name]: value }));
      },
    };
    const timer = setTimeout(() => follow(TOPICS[at.page], about, on, controller.signal), selection.find && at.page === "fleet" ? 250 : 0);
    return () => (clearTimeout(timer), controller.abort());
  }, [at.page, at.id, selection, asked]);

  useEffect(() => {
    const timer = setInterval(() => {
      if (newest.current && !document.hidden) setSamples((old) => [...old, sampleOf(newest.current)].slice(-SAMPLES));
    }, 1000);
    return () => clearInterval(timer);
  }, []);

  const enter = (secret) => (key.set(secret), setRefused(null), setAsked(asked + 1));
  if (refused) return html`<${KeyForm} refused=${refused} enter=${enter} />`;
  const fleet = told.fleet;
  const go = (change) => setSelection((old) => ({ ...old, ...change }));
  const page = !fleet
    ? html`<p class="quiet">${status.name === "lost" ? status.text : "Asking the fleet …"}</p>`
    : {
        fleet: () => html`<${FleetPage} fleet=${fleet} samples=${samples} selection=${selection} go=${go} />`,
        unit: () => html`<${UnitPage} id=${at.id} fleet=${fleet} log=${told.unit} />`,
        requests: () => html`<${RequestsPage} requests=${told.requests} />`,
        plan: () => html`<${PlanPage} plan=${told.plan} fleet=${fleet} />`,
        playground: () => html`<${PlaygroundPage} fleet=${fleet} />`,
        keys: () => html`<${KeysPage} report=${told.keys} />`,
      }[at.page]();
  return html`<${Header} at=${at} status=${status} leave=${() => (key.set(""), location.reload())} />
    <main id="main" class="page" tabindex="-1">${page}</main>`;
}

const root = document.getElementById("root");
root.replaceChildren();
render(html`<${App} />`, root);
