// The window of one picture: its glass, its bars, what can be done with it.

import { Atlas } from "./atlas.js";
import { Bars, percent, share } from "./bars.js";
import { gradient, night, through } from "./colours.js";
import { icon, make } from "./dom.js";
import { Glass } from "./glass.js";
import { brightest, stretched } from "./maps.js";
import { Panes } from "./panes.js";
import { save } from "./saving.js";
import { settings } from "./settings.js";

const SHARE = 0.1; // of the panes, taken out at a time

export class Window {
  #bars = new Bars((index) => this.#choose(index));
  #atlas = new Atlas();
  #glow = make("canvas", { class: "glow", width: 48, height: 48, "aria-hidden": "true" });
  #canvas = make("canvas", { class: "glass" });
  #frame = make("div", { class: "frame", tabindex: "0", role: "application", "aria-roledescription": "panes" }, [this.#glow, this.#canvas]);
  #parts = {};
  #map = null; // what lies on the picture: {values, low, high, shades, colour, words, unit}
  #clock = 0;

  constructor(picture, onClose) {
    this.picture = picture;
    this.glass = new Glass(this.#canvas, this.#glow);
    this.panes = new Panes(this.#frame, this.glass, picture, () => this.#look());
    this.element = this.#build(onClose);
    this.sizing = new ResizeObserver(() => this.#size());
    this.sizing.observe(this.#frame);
    this.heard = ({ detail }) => {
      if (detail?.includes("dropping") && picture.out.size) picture.takeOut(picture.out);
      else this.#show();
    };
    picture.addEventListener("change", this.heard);
    settings.addEventListener("change", this.heard);
    this.#show();
  }

  close() {
    this.picture.close();
    this.glass.stop();
    this.sizing.disconnect();
    this.#atlas.resizing.disconnect();
    clearInterval(this.#clock);
    settings.removeEventListener("change", this.heard);
    this.element.remove();
  }

  /** Whether all layers and heads are shown without being asked for. */
  set roomy(yes) {
    this.#atlas.element.open = yes;
  }

  #build(onClose) {
    const p = this.#parts;
    const { name } = this.picture;
    p.size = make("span", { class: "soft" });
    p.save = iconButton("Save as PNG", "M10 3v9m0 0l-3.5-3.5M10 12l3.5-3.5M4 13v3h12v-3", () => this.#save());
    p.pixels = iconButton("The model’s own pixels", "M4 4h5v5H4zM11 11h5v5h-5zM11 4h5v5h-5zM4 11h5v5H4z", () => settings.set({ sharp: !settings.sharp }));
    const shut = iconButton(`Close ${name}`, "M5 5l10 10M15 5L5 15", onClose);
    p.scale = make("span", { class: "scale", "aria-hidden": "true" }, [(p.low = make("i")), (p.ramp = make("b")), (p.high = make("i"))]);
    p.words = make("p", { class: "words" });
    p.letGo = textButton("Let go", () => this.panes.look(null));
    p.spoken = make("p", { class: "unseen", "aria-live": "polite" });
    p.verdict = make("p", { class: "verdict" });
    p.trouble = make("div", { class: "trouble", role: "alert" });
    p.out = this.#buildOut();
    p.other = this.#otherClass();
    p.time = make("p", { class: "time" });
    p.side = make("div", { class: "side" }, [p.verdict, this.#bars.element, p.other, p.out, this.#atlas.element]);
    return make("article", { class: "window", "aria-label": name }, [
      make("header", {}, [make("h2", { title: name }, name), p.size, make("span", { class: "does" }, [p.pixels, p.save, shut])]),
      p.trouble,
      make("div", { class: "view" }, [this.#frame, make("div", { class: "legend" }, [p.words, p.letGo, p.scale]), p.time, p.spoken]),
      p.side,
    ]);
  }

  #buildOut() {
    const p = this.#parts;
    p.count = make("span", { class: "count" });
    p.back = textButton("Put back", () => this.picture.takeOut(new Set()));
    p.more = textButton("", () => this.#takeBrightest());
    p.how = textButton("", () => this.#turnHow());
    p.how.classList.add("how");
    p.how.title = "Blank: in the colour of the mean. Out of the sequence: the model reads fewer panes.";
    return make("div", { class: "out" }, [p.count, p.back, p.more, p.how]);
  }

  #otherClass() {
    const input = make("input", { list: "classes", placeholder: "another class …", "aria-label": "Another class", autocomplete: "off" });
    input.addEventListener("change", () => {
      const index = settings.facts.classes.indexOf(input.value);
      if (index >= 0) this.#choose(index);
      input.value = "";
    });
    return make("div", { class: "other" }, input);
  }

  #choose(index) {
    if (settings.facts.can.attribution) settings.set({ view: "class" });
    this.picture.choose(index);
  }

  #size() {
    const { width, height } = this.#frame.getBoundingClientRect();
    this.glass.resize(Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio));
  }

  #show() {
    const { picture } = this;
    const { facts } = settings;
    const [tall, wide] = facts.img_size;
    this.element.style.setProperty("--shape", `${wide} / ${tall}`);
    this.element.style.setProperty("--wide", wide / tall);
    this.element.dataset.status = picture.status;
    this.element.setAttribute("aria-busy", String(picture.busy));
    this.#showTrouble();
    if (picture.status !== "ready") {
      this.panes.forget();
      this.#bars.forget();
      return;
    }
    this.#showPicture();
    this.#showPrediction();
    this.#look();
    if (["picture", "attention"].includes(settings.view)) picture.need(settings.layer);
  }

  /** What depends on the pane that is looked at. */
  #look() {
    this.#showMap();
    this.#showOut();
    this.#atlas.show(this.picture.attention, this.panes.pane);
    const [{ label, score }] = this.picture.now.top;
    if (this.panes.keyed) this.#parts.spoken.textContent = `${this.#parts.words.textContent}. ${label}, ${percent(score)}.`;
  }

  #showPicture() {
    const { picture } = this;
    const [rows, columns] = settings.facts.grid ?? [1, 1];
    const shown = settings.sharp && picture.fine ? picture.fine : picture.seen;
    const key = `${rows} ${columns}`;
    if (this.shown !== shown || this.shape !== key) this.glass.show(shown, rows, columns);
    Object.assign(this, { shown, shape: key });
    this.glass.takeOut(picture.out);
    this.#parts.pixels.hidden = !picture.fine;
    this.#parts.pixels.setAttribute("aria-pressed", String(!settings.sharp));
    this.#parts.size.textContent = `${picture.whole.width} × ${picture.whole.height}`;
    this.#frame.setAttribute("aria-label", `${picture.name}, ${rows} by ${columns} panes. Arrows look at a pane, Space takes it out.`);
  }

  #showMap() {
    const p = this.#parts;
    const map = (this.#map = this.#found());
    this.glass.overlay(map?.shades ?? null, map?.colour, settings.opacity);
    p.words.textContent = map?.words ?? this.#hint();
    p.scale.hidden = !map;
    p.letGo.hidden = settings.view !== "attention" || this.panes.pane === null;
    if (!map) return;
    p.ramp.style.background = gradient(map.colour);
    p.low.textContent = map.unit(map.low);
    p.high.textContent = map.unit(map.high);
  }

  #hint() {
    const { can } = settings.facts;
    const { coarse } = this.panes;
    if (settings.view !== "picture" || (can.weights && this.panes.pane !== null)) return "Asking …";
    if (can.weights) return coarse ? "Tap a pane: what it attends to. Tap it again: it is gone." : "Hover a pane: what it attends to. Click it: it is gone.";
    return can.blank ? "Click a pane: it is gone." : "";
  }

  #found() {
    const { picture, panes: { pane } } = this;
    const { view, layer, head, facts } = settings;
    const at = pane === null ? "" : ` · this pane `;
    if (view === "attention" || (view === "picture" && pane !== null)) {
      if (!picture.attention?.has(layer)) return null;
      const values = picture.attention.of(layer, head, pane);
      const who = pane !== null ? `Pane ${this.#place(pane)} attends to` : picture.attention.reader === "token" ? "The class token attends to" : "All panes attend, on average, to";
      const where = `layer ${layer + 1}, ${head < 0 ? "mean of heads" : `head ${head + 1}`}`;
      return { values, ...stretched(values, { fromZero: true }), colour: night, words: `${who} · ${where}`, unit: share };
    }
    if (view === "rollout" && picture.rollout) {
      const values = picture.rollout;
      const words = `What arrives at the head through all ${facts.layers} layers${at && at + share(values[pane])}`;
      return { values, ...stretched(values, { fromZero: false }), colour: night, words, unit: share };
    }
    if (view === "class" && picture.attribution) {
      const { index, values } = picture.attribution;
      const found = stretched(values, { fromZero: false });
      const words = `What speaks for ${facts.classes[index]}${at && `${at}${Math.round(found.shades[pane] * 100)} of 100`}`;
      return { values, ...found, colour: through(this.#bars.colour(index)), words, unit: (value) => (value === found.low ? "little" : "most") };
    }
    return null;
  }

  #place(pane) {
    const { columns } = this.glass.shape;
    return `${Math.floor(pane / columns) + 1}, ${(pane % columns) + 1}`;
  }

  #showPrediction() {
    const { now, whole, chosen, out, milliseconds } = this.picture;
    const p = this.#parts;
    const [{ label, score, index }] = now.top;
    const moved = out.size > 0;
    p.verdict.replaceChildren(make("span", {}, label), make("small", {}, percent(score)));
    p.verdict.classList.toggle("turned", index !== whole.top[0].index);
    const pressable = settings.facts.can.attribution;
    this.#bars.show(now.top, whole.scores, settings.view === "class" ? chosen : null, { pressable, moved });
    p.other.hidden = !pressable || settings.view !== "class" || settings.facts.classes.length <= 5;
    const ms = (value) => (value < 10 ? value.toFixed(1) : Math.round(value));
    p.time.textContent = `${ms(milliseconds.model)} ms in the model · ${ms(milliseconds.total)} in the server · ${ms(milliseconds.trip)} in all`;
  }

  #showOut() {
    const p = this.#parts;
    const { can, grid } = settings.facts;
    p.out.hidden = !can.blank;
    if (!can.blank) return;
    const all = grid[0] * grid[1];
    const count = this.picture.out.size;
    p.count.textContent = count ? `${count} of ${all} panes out` : "All panes are in";
    p.count.classList.toggle("some", count > 0);
    p.back.disabled = !count;
    p.more.textContent = `Take out the ${this.#share} brightest`;
    p.more.disabled = !this.#map || count + this.#share >= all;
    p.more.title = this.#map ? "of what is shown now" : "choose a view with colours first";
    p.how.hidden = !can.remove;
    p.how.textContent = settings.dropping === "blank" ? "panes go blank" : "panes leave the sequence";
  }

  get #share() {
    const [rows, columns] = settings.facts.grid;
    return Math.max(1, Math.round(rows * columns * SHARE));
  }

  #takeBrightest() {
    const values = this.#map.values.map((value, i) => (this.picture.out.has(i) ? -Infinity : value));
    this.picture.takeOut(new Set([...this.picture.out, ...brightest(values, this.#share)]));
  }

  /** All windows take panes out in the same way. */
  #turnHow() {
    settings.set({ dropping: settings.dropping === "blank" ? "remove" : "blank" });
  }

  #showTrouble() {
    const { trouble, status } = this.picture;
    const { trouble: place } = this.#parts;
    clearInterval(this.#clock);
    place.hidden = !trouble;
    if (!trouble) return;
    place.dataset.kind = trouble.kind;
    const when = make("span", { class: "soft" });
    const again = trouble.until || trouble.kind === "picture" ? [] : [textButton("Try again", () => this.picture.ask())];
    const tell = () => {
      const left = Math.max(0, Math.ceil((trouble.until - Date.now()) / 1000));
      when.textContent = trouble.until ? (left ? `Trying again in ${left} s` : "Trying again …") : "";
    };
    tell();
    if (trouble.until) this.#clock = setInterval(tell, 250);
    const drawing = icon(trouble.kind === "busy" ? "M10 4v6l4 2M10 2.5a7.5 7.5 0 1 0 .01 0" : "M10 6v5m0 3v.01M10 2.5a7.5 7.5 0 1 0 .01 0");
    const head = { busy: "Busy", picture: "Not a picture it can read", away: "No answer", slow: "Too slow" }[trouble.kind] ?? "Refused";
    place.replaceChildren(drawing, make("div", {}, [make("b", {}, head), make("p", {}, trouble.words), when, ...again]));
    place.classList.toggle("alone", status !== "ready");
  }

  #save() {
    const { now, name } = this.picture;
    const { view, facts, layer, head } = settings;
    const detail = view === "attention" ? `-layer${layer + 1}-${head < 0 ? "heads" : `head${head + 1}`}` : "";
    const title = `${now.top[0].label} ${percent(now.top[0].score)}`;
    const words = this.#map?.words ?? this.#parts.out.querySelector(".count")?.textContent ?? "";
    save(this.glass, { title, words, model: facts.name, stem: `${name.replace(/\.[^.]+$/, "")}-${view}${detail}` });
  }
}

function iconButton(label, path, act) {
  const button = make("button", { class: "icon", type: "button", "aria-label": label, title: label }, icon(path));
  button.addEventListener("click", act);
  return button;
}

function textButton(label, act) {
  const button = make("button", { class: "text", type: "button" }, label);
  button.addEventListener("click", act);
  return button;
}
