// Which pane is looked at, and which are taken out: by mouse, finger or keys.

import { settings } from "./settings.js";

export class Panes {
  pane = null;
  keyed = false; // the last move was by key: it is spoken
  #painting = null; // while the mouse is held: whether panes are taken out or put back
  #touched = false;

  constructor(frame, glass, picture, onMove) {
    Object.assign(this, { frame, glass, picture, onMove });
    this.coarse = matchMedia("(hover: none)").matches;
    frame.addEventListener("pointerdown", (event) => this.#down(event));
    frame.addEventListener("pointermove", (event) => this.#move(event));
    frame.addEventListener("pointerup", () => { this.#painting = null; });
    frame.addEventListener("pointercancel", () => { this.#painting = null; });
    frame.addEventListener("pointerleave", (event) => this.#leave(event));
    frame.addEventListener("click", (event) => this.#tap(event));
    frame.addEventListener("keydown", (event) => this.#key(event));
    frame.addEventListener("focus", () => { if (frame.matches(":focus-visible") && this.pane === null) this.look(this.#middle, true); });
    frame.addEventListener("blur", () => { if (settings.view !== "attention") this.look(null); });
  }

  look(pane, keyed = false) {
    this.keyed = keyed;
    if (pane === this.pane || !this.#ready) return;
    this.pane = pane;
    this.glass.look(pane);
    this.onMove();
  }

  /** The picture is read anew. */
  forget() {
    this.pane = null;
    this.glass.look(null);
  }

  get #ready() {
    return this.picture.status === "ready" && settings.facts.grid;
  }

  get #middle() {
    const { rows, columns } = this.glass.shape;
    return Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  }

  #at({ clientX, clientY }) {
    const box = this.frame.getBoundingClientRect();
    return this.glass.paneAt((clientX - box.left) / box.width, (clientY - box.top) / box.height);
  }

  #down(event) {
    this.#touched = event.pointerType === "touch";
    const pane = this.#at(event);
    if (this.#touched || event.button || pane === null || !this.#ready) return;
    this.frame.setPointerCapture(event.pointerId);
    this.#painting = !this.picture.out.has(pane);
    this.#set(pane, this.#painting);
  }

  #move(event) {
    if (event.pointerType === "touch") return;
    const pane = this.#at(event);
    if (this.#painting !== null && pane !== null && this.picture.out.has(pane) !== this.#painting) this.#set(pane, this.#painting);
    this.look(pane);
  }

  #leave(event) {
    if (event.pointerType !== "touch" && settings.view !== "attention") this.look(null);
  }

  /** A finger: the first tap looks, the second takes out. */
  #tap(event) {
    if (!this.#touched) return;
    const pane = this.#at(event);
    if (pane === this.pane && pane !== null) this.#set(pane, !this.picture.out.has(pane));
    else this.look(pane);
  }

  #set(pane, out) {
    const { rows, columns } = this.glass.shape;
    const panes = new Set(this.picture.out);
    if (out) panes.add(pane);
    else panes.delete(pane);
    if (settings.facts.can.blank && panes.size < rows * columns) this.picture.takeOut(panes); // one at least must stay
  }

  #key(event) {
    if (!this.#ready || event.ctrlKey || event.metaKey || event.altKey) return;
    const { rows, columns } = this.glass.shape;
    const pane = this.pane ?? this.#middle;
    const [row, column] = [Math.floor(pane / columns), pane % columns];
    const goal = {
      ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column], ArrowDown: [row + 1, column],
      Home: [row, 0], End: [row, columns - 1],
    }[event.key];
    if (goal) {
      const inside = (value, count) => Math.min(count - 1, Math.max(0, value));
      this.look(this.pane === null ? pane : inside(goal[0], rows) * columns + inside(goal[1], columns), true);
    } else if (event.key === " " || event.key === "Enter") {
      this.keyed = true;
      this.#set(pane, !this.picture.out.has(pane));
    } else if (event.key === "Escape") this.look(null);
    else return;
    event.preventDefault();
  }
}
