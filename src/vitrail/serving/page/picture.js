// One picture and what the server said of it. It asks, asks again when the server is busy, and tells its window.

import { Trouble, predict } from "./api.js";
import { Attention, flat } from "./maps.js";
import { settings } from "./settings.js";

const MOST_CLASSES = 1000; // whose scores are asked for, so that a bar can be followed wherever it goes
const TRIES = 8;
const SETTLED = 250; // milliseconds after the last pane that was taken out

export class Picture extends EventTarget {
  status = "asking"; // or: ready, failed
  trouble = null; // what the server refused, and when it is asked again: {words, kind, until}
  whole = null; // of all panes: {top, scores, width, height}
  now = null; // of the panes that are there
  seen = null; // the model's own pixels
  fine = null; // the same part of the file, finer
  attention = null;
  rollout = null;
  attribution = null; // {index, values}
  out = new Set();
  chosen = null; // the class whose attribution is shown
  milliseconds = null;
  pending = 0; // questions that have no answer yet
  #turn = null; // ends when the picture is asked about anew
  #awaited = new Set(); // layers whose weights are under way
  #moving = null; // a prediction without some panes is under way; the next waits for it
  #timer = 0;

  constructor(file) {
    super();
    this.file = file;
    this.name = file.name || "picture";
  }

  /** From the beginning, for the model of now. */
  async ask() {
    this.forget();
    const turn = (this.#turn = new AbortController());
    try {
      await this.#read();
      const answer = await this.#request({ top: this.#most, seen: true }, turn.signal);
      this.seen = await loaded(answer.seen);
      this.fine = await finer(this.file, settings.facts.preprocessing);
      if (turn.signal.aborted) return;
      this.whole = this.now = prediction(answer);
      Object.assign(this, { status: "ready", milliseconds: answer.milliseconds, chosen: answer.index });
      this.#tell();
      await this.#lookAt(turn.signal);
    } catch (error) {
      this.#fail(error);
    }
  }

  /** Everything that was said of it. */
  forget() {
    this.close();
    this.out = new Set();
    this.#awaited = new Set();
    this.#tell({ status: "asking", trouble: null, attention: null, rollout: null, attribution: null, chosen: null });
  }

  /** The file's bytes, once: it may change or go while its window is open. */
  async #read() {
    const { bytes } = settings.facts.limits;
    if (this.file.size > bytes) throw new Trouble("picture", `${this.name}: is ${mib(this.file.size)}, and the server takes ${mib(bytes)} at most`);
    const data = await this.file.arrayBuffer().catch(() => null);
    if (!data) throw new Trouble("picture", `${this.name}: cannot be read; is it a folder, or was it moved?`);
    if (!data.byteLength) throw new Trouble("picture", `${this.name}: is empty`);
    this.file = new File([data], this.name, { type: this.file.type });
  }

  close() {
    this.#turn?.abort();
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#moving = null;
  }

  /** The panes that are not there, all of them; the prediction follows. */
  takeOut(panes) {
    this.out = panes;
    this.#tell();
    this.#follow(this.#turn.signal);
  }

  /** The class whose attribution is shown. */
  async choose(index) {
    this.chosen = index;
    this.#tell();
    await this.#kept(async (signal) => {
      const answer = await this.#request({ ...this.#whatIsThere, attention: true, parts: "attribution", class: index }, signal);
      if (this.chosen === index) this.#take(answer);
    });
  }

  /** The weights of a layer, if they have not come yet. */
  async need(layer) {
    const { attention } = this;
    if (!attention || attention.has(layer) || this.#awaited.has(layer)) return;
    const layers = around(layer);
    layers.forEach((one) => this.#awaited.add(one));
    await this.#kept(async (signal) => {
      const answer = await this.#request({ ...this.#whatIsThere, attention: true, parts: "weights", layers: layers.join(",") }, signal);
      if (this.attention === attention) this.#take(answer);
    });
    layers.forEach((one) => this.#awaited.delete(one));
  }

  /** Whether something about it will still change by itself. */
  get busy() {
    return this.pending > 0 || this.#timer > 0;
  }

  get #most() {
    return Math.min(MOST_CLASSES, settings.facts.classes.length);
  }

  /** What a look is asked about: attention is of pictures that have all their panes, clear or blank. */
  get #whatIsThere() {
    return this.out.size && settings.dropping === "blank" ? { drop: [...this.out].join(",") } : {};
  }

  async #follow(signal) {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (this.#moving) {
      this.#moving = "again";
      return;
    }
    try {
      do {
        this.#moving = "once";
        const drop = this.out.size ? { drop: [...this.out].join(","), dropping: settings.dropping } : {};
        const answer = await this.#request({ top: this.#most, ...drop }, signal);
        this.now = prediction(answer);
        this.milliseconds = answer.milliseconds;
        this.#tell();
      } while (this.#moving === "again");
      this.#timer = setTimeout(() => this.#lookAgain(), SETTLED);
    } catch (error) {
      this.#fail(error);
    } finally {
      if (!signal.aborted) this.#moving = null;
    }
  }

  async #lookAgain() {
    this.#timer = 0;
    await this.#kept((signal) => this.#lookAt(signal));
    this.#tell();
  }

  async #lookAt(signal) {
    const { can, layers, layers_at_once: most } = settings.facts;
    const parts = [can.weights && "weights", can.attention && "rollout", can.attribution && "attribution"].filter(Boolean);
    if (!parts.length) return;
    const options = { attention: true, parts: parts.join(","), class: this.chosen ?? 0, ...this.#whatIsThere };
    if (can.weights && most < layers) options.layers = around(settings.layer).join(",");
    const answer = await this.#request(options, signal);
    this.attention = null;
    this.#take(answer);
  }

  #take({ attention: { weights, rollout, attribution } }) {
    if (weights) (this.attention ??= new Attention(settings.facts)).add(weights);
    if (rollout) this.rollout = flat(rollout);
    if (attribution) this.attribution = { index: attribution.index, values: flat(attribution.values) };
    this.#tell();
  }

  /** The answer to a question; when the server says that it is busy, it is asked again. */
  async #request(options, signal) {
    this.#tell({ pending: this.pending + 1 });
    try {
      return await this.#insist(options, signal);
    } finally {
      this.pending -= 1;
      queueMicrotask(() => this.#tell()); // after what the answer changes
    }
  }

  async #insist(options, signal) {
    for (let turn = 1; ; turn += 1) {
      try {
        const answer = await predict(this.file, settings.facts.name, options, signal);
        if (this.trouble) this.#tell({ trouble: null });
        return answer;
      } catch (error) {
        if (error.kind !== "busy" || turn === TRIES) throw error;
        const wait = error.wait * 1000 + Math.random() * 500; // not all at the same moment
        this.#tell({ trouble: { words: error.message, kind: "busy", until: Date.now() + wait } });
        await pause(wait, signal);
      }
    }
  }

  /** Work whose failing leaves the picture as it is. */
  async #kept(work) {
    try {
      await work(this.#turn.signal);
    } catch (error) {
      this.#fail(error);
    }
  }

  #fail(error) {
    if (error.name === "AbortError") return;
    const words = error instanceof Trouble ? error.message : "Something went wrong in this page.";
    if (!(error instanceof Trouble)) console.error(error);
    this.#tell({ status: this.status === "ready" ? "ready" : "failed", trouble: { words, kind: error.kind ?? "other", until: 0 } });
  }

  #tell(changes = {}) {
    Object.assign(this, changes);
    this.dispatchEvent(new Event("change"));
  }
}

const mib = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

const prediction = ({ top, width, height }) => ({ top, width, height, scores: new Map(top.map(({ index, score }) => [index, score])) });

/** As many layers as one answer can hold, the wanted one among them. */
function around(layer) {
  const { layers, layers_at_once: most } = settings.facts;
  const first = Math.min(Math.floor(layer / most) * most, layers - most);
  return Array.from({ length: most }, (_, i) => first + i);
}

function pause(time, signal) {
  return new Promise((go, stop) => {
    const timer = setTimeout(go, time);
    signal.addEventListener("abort", () => { clearTimeout(timer); stop(new DOMException("stopped", "AbortError")); }, { once: true });
  });
}

async function loaded(address) {
  const image = new Image();
  image.src = address;
  await image.decode();
  return { image, crop: [0, 0, image.naturalWidth, image.naturalHeight], pixelated: image.naturalWidth <= 96 };
}

/** What the model sees, out of the file's own pixels; null where the file has no finer ones, or the browser cannot read it. */
async function finer(file, { fit, size: [height, width], crop_pct: part }) {
  if (fit === "pad") return null;
  const full = await createImageBitmap(file).catch(() => null);
  if (!full) return null;
  const [tall, wide] = [height, width].map((side) => Math.floor(side / part + 1e-9));
  const scale = fit === "crop" ? [1, 1].fill(Math.max(wide / full.width, tall / full.height)) : [wide / full.width, tall / full.height];
  const [w, h] = [width / scale[0], height / scale[1]];
  const crop = [(full.width - w) / 2, (full.height - h) / 2, w, h];
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(Math.min(w, 1400));
  canvas.height = Math.round((canvas.width * height) / width);
  if (canvas.width < width * 1.3) return null;
  const brush = canvas.getContext("2d");
  brush.imageSmoothingQuality = "high";
  brush.drawImage(full, ...crop, 0, 0, canvas.width, canvas.height);
  full.close();
  return { image: canvas, crop: [0, 0, canvas.width, canvas.height], pixelated: false };
}
