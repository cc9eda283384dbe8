// The best classes of a picture as bars that find their new places when the prediction moves.

import { GLASS } from "./colours.js";
import { make } from "./dom.js";

const SHOWN = 5;

export class Bars {
  #rows = new Map();
  #colours = new Map();
  #list = make("ol", { class: "bars", "aria-label": "The best classes" });

  constructor(onChoose) {
    this.onChoose = onChoose;
  }

  get element() {
    return this.#list;
  }

  /** Another model: its classes are others. */
  forget() {
    this.#list.replaceChildren();
    this.#rows.clear();
    this.#colours.clear();
  }

  /** The glass of a class, for as long as its picture is there. */
  colour(index) {
    if (!this.#colours.has(index)) this.#colours.set(index, GLASS[this.#colours.size % GLASS.length]);
    return this.#colours.get(index);
  }

  /** top: classes with scores, best first; whole: scores of the picture with all its panes; chosen: shown in any case. */
  show(top, whole, chosen, { pressable, moved }) {
    const kept = [chosen, moved ? best(whole) : null];
    const shown = top.filter(({ index }, place) => place < SHOWN || kept.includes(index));
    const gone = new Set(this.#rows.keys());
    shown.forEach((one, place) => {
      gone.delete(one.index);
      const row = this.#rows.get(one.index) ?? this.#add(one, place);
      this.#fill(row, one, { place, whole: whole.get(one.index) ?? 0, chosen: one.index === chosen, pressable, moved });
    });
    for (const index of gone) {
      this.#rows.get(index).item.remove();
      this.#rows.delete(index);
    }
    this.#list.style.setProperty("--rows", shown.length);
    this.#list.append(...shown.map(({ index }) => this.#rows.get(index).item).filter((item) => !item.isConnected));
  }

  #add({ index, label }, place) {
    const parts = { ghost: make("i", { class: "ghost" }), fill: make("i", { class: "fill" }), score: make("b"), delta: make("small") };
    const button = make("button", { type: "button" }, [
      make("span", { class: "label", title: label }, label),
      make("span", { class: "figures" }, [parts.delta, parts.score]),
      make("span", { class: "track", "aria-hidden": "true" }, [parts.fill, parts.ghost]),
    ]);
    button.addEventListener("click", () => this.onChoose(index));
    const item = make("li", {}, button);
    item.style.setProperty("--glass", this.colour(index));
    item.style.setProperty("--place", place);
    const row = { item, button, ...parts };
    this.#rows.set(index, row);
    this.#list.append(item);
    return row;
  }

  #fill({ item, button, ghost, fill, score, delta }, { score: value }, { place, whole, chosen, pressable, moved }) {
    item.style.setProperty("--place", place);
    requestAnimationFrame(() => fill.style.setProperty("--value", value)); // after it is there, so that it grows
    ghost.hidden = !moved;
    ghost.style.setProperty("--value", whole);
    score.textContent = percent(value);
    const change = Math.round((value - whole) * 1000) / 10;
    delta.textContent = moved && change ? `${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(1)}` : "";
    delta.className = change > 0 ? "up" : "down";
    button.setAttribute("aria-pressed", String(chosen && pressable));
    button.disabled = !pressable;
  }
}

const best = (scores) => [...scores].reduce((a, b) => (b[1] > a[1] ? b : a), [null, -1])[0];

/** With more digits where it is small. */
export const share = (value) => (value > 0 && value < 0.00995 ? `${(value * 100).toFixed(2)} %` : percent(value));

export function percent(value) {
  const number = value * 100;
  return `${number >= 99.95 ? "100" : number >= 0.05 ? number.toFixed(1) : "0.0"} %`;
}
