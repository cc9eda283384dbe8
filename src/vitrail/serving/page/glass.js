// A picture as a leaded window: its panes, a colour on each, those that are taken out, the one that is looked at.

const still = matchMedia("(prefers-reduced-motion: reduce)");
const APPEAR = 700; // milliseconds for all panes
const TURN = 180; // for a colour, or a pane that goes

const ease = (t) => 1 - (1 - Math.min(1, Math.max(0, t))) ** 3;

export class Glass {
  #canvas;
  #glow;
  #shape = { rows: 1, columns: 1 };
  #picture = null; // {image, crop: [x, y, width, height], pixelated}
  #glaze = null; // a canvas for the overlay
  #scaled = null; // the picture at the canvas's size
  #shown = null; // shades as they are drawn now
  #wanted = null; // shades as they shall be
  #colour = null;
  #strength = 0; // of the overlay now
  #opacity = 0;
  #out = new Set();
  #holes = new Float32Array(1);
  #appeared = -1;
  #last = 0;
  #frame = 0;
  ring = null; // the pane that is looked at

  constructor(canvas, glow) {
    this.#canvas = canvas;
    this.#glow = glow;
  }

  get shape() {
    return this.#shape;
  }

  show(picture, rows, columns) {
    const first = !this.#picture;
    this.#picture = picture;
    this.#scaled = null;
    if (rows !== this.#shape.rows || columns !== this.#shape.columns) {
      this.#shape = { rows, columns };
      this.#holes = new Float32Array(rows * columns);
      this.#shown = this.#wanted = null;
    }
    if (first) this.#appeared = still.matches ? Infinity : 0;
    this.#ask();
  }

  /** shades: from 0 to 1 for each pane, or null for the bare picture; colour: from a shade to [r, g, b]. */
  overlay(shades, colour, opacity) {
    this.#wanted = shades;
    this.#opacity = shades ? opacity : 0;
    if (shades) this.#colour = colour;
    if (shades && !this.#shown) this.#shown = Float32Array.from(shades);
    this.#ask();
  }

  takeOut(panes) {
    this.#out = panes;
    this.#ask();
  }

  look(pane) {
    if (pane === this.ring) return;
    this.ring = pane;
    this.#ask();
  }

  resize(width, height) {
    if (this.#canvas.width === width && this.#canvas.height === height) return;
    Object.assign(this.#canvas, { width, height });
    this.#scaled = null;
    this.#draw();
  }

  paneAt(x, y) {
    const { rows, columns } = this.#shape;
    const inside = x >= 0 && y >= 0 && x < 1 && y < 1;
    return inside ? Math.floor(y * rows) * columns + Math.floor(x * columns) : null;
  }

  /** The window as it is, on a canvas of this width, all at rest. */
  drawn(width) {
    const page = document.createElement("canvas");
    page.width = width;
    page.height = Math.round((width * this.#canvas.height) / this.#canvas.width);
    this.#paint(page, scaledTo(this.#picture, page.width, page.height), { appeared: Infinity, ring: null });
    return page;
  }

  stop() {
    cancelAnimationFrame(this.#frame);
  }

  #ask() {
    if (this.#frame) return;
    this.#last = performance.now();
    this.#frame = requestAnimationFrame((now) => this.#step(now));
  }

  #step(now) {
    this.#frame = 0;
    const moved = this.#move(still.matches ? Infinity : Math.max(0, now - this.#last));
    this.#draw();
    if (moved) {
      this.#last = now;
      this.#frame = requestAnimationFrame((then) => this.#step(then));
    }
  }

  /** Everything on its way by so many milliseconds; whether something is not there yet. */
  #move(time) {
    const part = time === Infinity ? 1 : 1 - Math.exp((-4 * time) / TURN);
    let left = 0;
    const near = (value, goal) => {
      const next = Math.abs(goal - value) < 0.004 ? goal : value + (goal - value) * part;
      left = Math.max(left, Math.abs(goal - next));
      return next;
    };
    this.#strength = near(this.#strength, this.#opacity);
    for (let i = 0; i < this.#holes.length; i += 1) this.#holes[i] = near(this.#holes[i], this.#out.has(i) ? 1 : 0);
    if (this.#wanted) for (let i = 0; i < this.#wanted.length; i += 1) this.#shown[i] = near(this.#shown[i], this.#wanted[i]);
    else if (!this.#strength) this.#shown = null;
    if (this.#appeared >= 0 && this.#appeared < APPEAR) {
      this.#appeared += time;
      left = 1;
    }
    return left > 0;
  }

  #draw() {
    if (!this.#picture || !this.#canvas.width) return;
    const { width, height } = this.#canvas;
    this.#scaled ??= scaledTo(this.#picture, width, height);
    this.#paint(this.#canvas, this.#scaled, { appeared: this.#appeared, ring: this.ring });
    const light = this.#glow.getContext("2d");
    light.clearRect(0, 0, this.#glow.width, this.#glow.height);
    light.drawImage(this.#canvas, 0, 0, this.#glow.width, this.#glow.height);
  }

  #paint(page, scaled, { appeared, ring }) {
    const brush = page.getContext("2d");
    const { width, height } = page;
    const panes = edges(this.#shape, width, height);
    brush.globalCompositeOperation = "source-over";
    brush.globalAlpha = 1;
    brush.clearRect(0, 0, width, height);
    brush.drawImage(scaled, 0, 0);
    bevel(brush, panes, width);
    if (this.#shown && this.#strength > 0) this.#tint(brush, panes, width, height);
    this.#open(brush, panes, appeared);
    lead(brush, panes, width, height);
    if (ring !== null && panes[ring]) circle(brush, panes[ring], width);
  }

  /** Coloured glass: the picture as grey paint on it, the colour of each pane by its shade. */
  #tint(brush, panes, width, height) {
    const page = (this.#glaze ??= document.createElement("canvas"));
    if (page.width !== width || page.height !== height) Object.assign(page, { width, height });
    const glaze = page.getContext("2d");
    const layer = (how, colour) => {
      glaze.globalCompositeOperation = how;
      glaze.fillStyle = colour;
    };
    glaze.globalCompositeOperation = "copy";
    glaze.drawImage(brush.canvas, 0, 0);
    layer("saturation", "rgb(128 128 128)");
    glaze.fillRect(0, 0, width, height);
    layer("screen", "rgb(255 255 255 / 0.4)");
    glaze.fillRect(0, 0, width, height);
    panes.forEach(([x, y, w, h], i) => {
      const shade = this.#shown[i];
      const colour = this.#colour(shade).join(" ");
      layer("multiply", `rgb(${colour})`);
      glaze.fillRect(x, y, w, h);
      layer("screen", `rgb(${colour} / ${0.12 + 0.3 * shade})`);
      glaze.fillRect(x, y, w, h);
    });
    brush.globalAlpha = this.#strength;
    brush.drawImage(page, 0, 0);
    brush.globalAlpha = 1;
  }

  /** Panes that are not there (yet): one sees through. */
  #open(brush, panes, appeared) {
    const { rows, columns } = this.#shape;
    const far = Math.hypot(rows, columns) / 2;
    brush.globalCompositeOperation = "destination-out";
    panes.forEach(([x, y, w, h], i) => {
      let hole = this.#holes[i];
      if (appeared < APPEAR) {
        const away = Math.hypot(Math.floor(i / columns) - (rows - 1) / 2, (i % columns) - (columns - 1) / 2) / far;
        hole = Math.max(hole, 1 - ease((appeared - away * APPEAR * 0.6) / (APPEAR * 0.4)));
      }
      if (!hole) return;
      brush.fillStyle = `rgb(0 0 0 / ${hole})`;
      brush.fillRect(x, y, w, h);
    });
    brush.globalCompositeOperation = "source-over";
  }
}

/** The part of the picture that the model sees, at a size. */
function scaledTo({ image, crop, pixelated }, width, height) {
  const page = document.createElement("canvas");
  Object.assign(page, { width, height });
  const brush = page.getContext("2d");
  brush.imageSmoothingEnabled = !pixelated;
  brush.imageSmoothingQuality = "high";
  brush.drawImage(image, ...crop, 0, 0, width, height);
  return page;
}

/** [x, y, width, height] of each pane, on whole pixels. */
function edges({ rows, columns }, width, height) {
  const xs = Array.from({ length: columns + 1 }, (_, i) => Math.round((i * width) / columns));
  const ys = Array.from({ length: rows + 1 }, (_, i) => Math.round((i * height) / rows));
  return Array.from({ length: rows * columns }, (_, i) => {
    const [row, column] = [Math.floor(i / columns), i % columns];
    return [xs[column], ys[row], xs[column + 1] - xs[column], ys[row + 1] - ys[row]];
  });
}

const leadWidth = (panes, width) => Math.max(1, Math.round(Math.min(panes[0][2] * 0.045, panes[0][3] * 0.045, width / 170)));

/** Light on the upper and left edge of each pane, shade on the others. */
function bevel(brush, panes, width) {
  if (panes.length === 1) return;
  const line = leadWidth(panes, width);
  const at = Math.ceil(line / 2);
  brush.fillStyle = "rgb(255 255 255 / 0.2)";
  for (const [x, y, w, h] of panes) {
    brush.fillRect(x + at, y + at, w - 2 * at, line);
    brush.fillRect(x + at, y + at + line, line, h - 2 * at - line);
  }
  brush.fillStyle = "rgb(0 0 0 / 0.18)";
  for (const [x, y, w, h] of panes) {
    brush.fillRect(x + at, y + h - at - line, w - 2 * at, line);
    brush.fillRect(x + w - at - line, y + at, line, h - 2 * at - line);
  }
}

/** The came between the panes. */
function lead(brush, panes, width, height) {
  if (panes.length === 1) return;
  const line = leadWidth(panes, width);
  brush.fillStyle = "rgb(14 13 20 / 0.82)";
  for (const x of new Set(panes.map((pane) => pane[0]))) if (x) brush.fillRect(x - Math.floor(line / 2), 0, line, height);
  for (const y of new Set(panes.map((pane) => pane[1]))) if (y) brush.fillRect(0, y - Math.floor(line / 2), width, line);
}

function circle(brush, [x, y, w, h], width) {
  const line = Math.max(2, Math.round(width / 220));
  for (const [colour, grown, thick] of [["rgb(10 10 16 / 0.9)", line, line * 2.4], ["#fff", line, line]]) {
    brush.strokeStyle = colour;
    brush.lineWidth = thick;
    brush.beginPath();
    brush.roundRect(x - grown / 2, y - grown / 2, w + grown, h + grown, line * 1.5);
    brush.stroke();
  }
}
