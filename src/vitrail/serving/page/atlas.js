// Every layer and head at once, small: what the same pane attends to everywhere.

import { night } from "./colours.js";
import { make } from "./dom.js";
import { stretched } from "./maps.js";
import { settings } from "./settings.js";

const GAP = 5; // between the small ones, with room for a mark

export class Atlas {
  #canvas = make("canvas", { role: "img", "aria-label": "Attention of every layer and head, small" });
  #tip = make("span", { class: "soft" });
  element = make("details", { class: "atlas" });
  #drawing = null; // {attention, pane}
  #frame = 0;

  constructor() {
    const title = make("summary", {}, ["All layers and heads", this.#tip]);
    const axis = make("p", { class: "axis", "aria-hidden": "true" }, [make("span", {}, "first layer"), make("span", {}, "last layer")]);
    this.element.append(title, this.#canvas, axis);
    this.element.addEventListener("toggle", () => this.#ask());
    this.#canvas.addEventListener("click", (event) => this.#choose(event));
    this.#canvas.addEventListener("pointermove", (event) => {
      const { layer, head } = this.#at(event);
      this.#tip.textContent = ` layer ${layer + 1}, head ${head + 1}`;
    });
    this.#canvas.addEventListener("pointerleave", () => { this.#tip.textContent = ""; });
    this.resizing = new ResizeObserver(() => this.#ask());
    this.resizing.observe(this.#canvas);
  }

  show(attention, pane) {
    this.#drawing = attention ? { attention, pane } : null;
    this.element.hidden = !attention;
    this.#ask();
  }

  #ask() {
    if (!this.#frame && this.#drawing && this.element.open) this.#frame = requestAnimationFrame(() => this.#draw());
  }

  #at(event) {
    const box = this.#canvas.getBoundingClientRect();
    const { layers, heads } = settings.facts;
    const cell = (place, size, count) => Math.min(count - 1, Math.max(0, Math.floor((place / size) * count)));
    return { layer: cell(event.clientX - box.left, box.width, layers), head: cell(event.clientY - box.top, box.height, heads) };
  }

  #choose(event) {
    const view = settings.view === "attention" || settings.view === "picture" ? settings.view : "attention";
    settings.set({ ...this.#at(event), view: this.#drawing.pane === null ? "attention" : view });
  }

  #draw() {
    this.#frame = 0;
    const { layers, heads, grid: [rows, columns] } = settings.facts;
    const { attention, pane } = this.#drawing ?? {};
    this.element.style.setProperty("--layers", layers);
    const width = this.#canvas.clientWidth;
    if (!attention || !width) return;
    const dots = devicePixelRatio;
    const cell = width / layers;
    const height = Math.round((cell - GAP) * (rows / columns)) + GAP;
    this.#canvas.style.aspectRatio = `${width} / ${height * heads}`;
    this.#canvas.width = Math.round(width * dots);
    this.#canvas.height = Math.round(height * heads * dots);
    const brush = this.#canvas.getContext("2d");
    brush.scale(dots, dots);
    brush.imageSmoothingEnabled = false;
    brush.strokeStyle = getComputedStyle(this.#canvas).color;
    const small = new OffscreenCanvas(columns, rows);
    for (let layer = 0; layer < layers; layer += 1) {
      for (let head = 0; head < heads; head += 1) {
        const place = [layer * cell + GAP / 2, head * height + GAP / 2, cell - GAP, height - GAP];
        if (attention.has(layer)) brush.drawImage(painted(small, attention.of(layer, head, pane)), ...place);
        else empty(brush, place);
        if (layer === settings.layer && (head === settings.head || settings.head < 0)) marked(brush, place);
      }
    }
  }
}

function painted(page, values) {
  const { shades } = stretched(values, { fromZero: true });
  const data = new Uint8ClampedArray(shades.length * 4);
  shades.forEach((shade, i) => data.set([...night(shade), 255], i * 4));
  page.getContext("2d").putImageData(new ImageData(data, page.width), 0, 0);
  return page;
}

function empty(brush, [x, y, w, h]) {
  brush.fillStyle = "rgb(128 128 128 / 0.2)";
  brush.fillRect(x, y, w, h);
}

function marked(brush, [x, y, w, h]) {
  brush.lineWidth = 2;
  brush.strokeRect(x - 1, y - 1, w + 2, h + 2);
}
