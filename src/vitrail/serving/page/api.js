// Requests to the server, and its refusals in words for people.

import { keep, recall } from "./memory.js";

const ROOT = new URL("../", import.meta.url);
const MOST_AT_ONCE = 4;

/** An answer that is not what was asked for. kind: busy, slow, picture, token, away or other. */
export class Trouble extends Error {
  constructor(kind, words, { status = 0, wait = 0 } = {}) {
    super(words);
    Object.assign(this, { kind, status, wait });
  }
}

let token = recall("sessionStorage", "vitrail-token") ?? "";
let askToken = async () => "";
let asking = null; // several requests may be refused at a time; the user is asked once

/** What is called when the server wants a token; it resolves to one. */
export function onTokenWanted(ask) {
  askToken = ask;
}

export const modelFacts = async (model) => (await send(`v1/model${model ? `?model=${encodeURIComponent(model)}` : ""}`)).json();
export const listModels = async () => (await (await send("v1/models")).json()).models;
export const exampleBlob = async (url) => (await send(url.replace(/^\//, ""))).blob();

/** The answer about one picture: its prediction, and milliseconds with the whole way there and back. */
export async function predict(file, model, options, signal) {
  const form = new FormData();
  form.append("pictures", file, file.name || "picture.png");
  for (const [name, value] of Object.entries(options)) form.append(name, String(value));
  return inTurn(async () => {
    const began = performance.now();
    const answer = await (await send(`v1/predict?model=${encodeURIComponent(model)}`, { method: "POST", body: form, signal })).json();
    const milliseconds = { ...answer.milliseconds, trip: performance.now() - began };
    return { ...answer.predictions[0], milliseconds };
  });
}

let running = 0;
const waiting = [];

async function inTurn(work) {
  if (running >= MOST_AT_ONCE) await new Promise((go) => waiting.push(go));
  running += 1;
  try {
    return await work();
  } finally {
    running -= 1;
    waiting.shift()?.();
  }
}

async function send(path, options = {}) {
  for (;;) {
    const used = token;
    const headers = token ? { authorization: `Bearer ${token}` } : {};
    let answer;
    try {
      answer = await fetch(new URL(path, ROOT), { ...options, headers });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Trouble("away", "The server does not answer. Is vitrail serve still running?");
    }
    if (answer.ok) return answer;
    if (answer.status !== 401) throw await refusal(answer);
    if (token !== used) continue;
    token = await (asking ??= askToken().finally(() => { asking = null; }));
    keep("sessionStorage", "vitrail-token", token);
  }
}

async function refusal(answer) {
  const said = await answer.json().then((body) => body.error, () => answer.statusText);
  const more = { status: answer.status, wait: Number(answer.headers.get("retry-after")) || 2 };
  switch (answer.status) {
    case 429: return new Trouble("busy", "The server is busy: too many pictures are waiting.", more);
    case 503: return new Trouble("busy", "The server is not ready: it is starting a model, or has too many visitors.", more);
    case 504: return new Trouble("slow", "The server did not answer in the time it allows.", more);
    case 400: case 413: case 415: return new Trouble("picture", said, more);
    default: return new Trouble("other", said, more);
  }
}
