// Follows topics of the fleet: server-sent events over fetch, since an EventSource cannot send a key.

const KEY = "muxfleet-key";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (secret) => (secret ? sessionStorage.setItem(KEY, secret) : sessionStorage.removeItem(KEY)),
};

export const headers = () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {});

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not an answer of a gateway: its status is all there is
  }
  return new Refused(response.status, message);
}

export async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
  if (!response.ok) throw await refusal(response);
  return response;
}

export const askJson = async (path, options) => (await ask(path, options)).json();

// Yields {name, data} of a body of server-sent events; its comment lines go to `comment`.
export async function* events(body, comment = () => {}) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n");
      const name = lines.find((l) => l.startsWith("event: "))?.slice(7) ?? "message";
      for (const line of lines) if (line.startsWith(": ")) comment(line.slice(2));
      const data = lines.filter((l) => l.startsWith("data: ")).map((l) => l.slice(6)).join("\n");
      if (data) yield { name, data };
    }
  }
}

const pause = (ms, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

// Calls on.event(name, value) until the signal aborts; streams end by themselves after a while and are asked for again.
export async function follow(topics, about, on, signal) {
  const query = new URLSearchParams(topics.map((topic) => ["topic", topic]));
  for (const [name, value] of Object.entries(about)) if (value) query.set(name, value);
  while (!signal.aborted) {
    try {
      const response = await ask(`fleet/live?${query}`, { signal });
      on.status("live");
      for await (const { name, data } of events(response.body)) on.event(name, JSON.parse(data));
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status < 500) return on.refused(error);
      on.status("lost", error.message);
      await pause(1000, signal);
    }
  }
}
