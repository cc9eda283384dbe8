// From the server's numbers to one number for each pane.

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Attention weights of a picture, by layers; they come in one answer or, of large models, in several. */
export class Attention {
  #layers = new Map();
  #cache = new Map();

  constructor({ prefix, pool, grid: [rows, columns] }) {
    Object.assign(this, { prefix, panes: rows * columns, reader: prefix && pool === "token" ? "token" : "panes" });
  }

  add({ layers, shape: [, heads, tokens], data, scale }) {
    const weights = bytes(data);
    const scales = new Float32Array(bytes(scale).buffer);
    const each = heads * tokens * tokens;
    layers.forEach((layer, i) => {
      const one = { weights: weights.subarray(i * each, (i + 1) * each), scales: scales.subarray(i * heads * tokens, (i + 1) * heads * tokens) };
      this.#layers.set(layer, { ...one, heads, tokens });
    });
    this.#cache.clear();
  }

  has(layer) {
    return this.#layers.has(layer);
  }

  /** What a pane attends to (null: what the head reads, or all panes in the mean): a share for each pane, and the rest. */
  of(layer, head, pane) {
    const key = `${layer}/${head}/${pane}`;
    if (!this.#cache.has(key)) {
      if (this.#cache.size > 4000) this.#cache.clear();
      this.#cache.set(key, this.#compute(layer, head, pane));
    }
    return this.#cache.get(key);
  }

  #compute(layer, head, pane) {
    const { weights, scales, heads, tokens } = this.#layers.get(layer);
    const values = new Float32Array(this.panes);
    const rows = pane !== null ? [this.prefix + pane] : this.reader === "token" ? [0] : Array.from(values, (_, i) => this.prefix + i);
    const chosen = head < 0 ? Array.from({ length: heads }, (_, i) => i) : [head];
    const share = 1 / (rows.length * chosen.length);
    for (const h of chosen) {
      for (const row of rows) {
        const at = h * tokens + row;
        const factor = (scales[at] / 255) * share;
        const start = at * tokens + this.prefix;
        for (let i = 0; i < this.panes; i += 1) values[i] += weights[start + i] * factor;
      }
    }
    return values;
  }
}

/** Values from 0 to 1 for colours, with the two values that 0 and 1 stand for. */
export function stretched(values, { fromZero }) {
  let low = fromZero ? 0 : Infinity;
  let high = fromZero ? 0 : -Infinity;
  for (const value of values) {
    if (value > high) high = value;
    if (value < low && !fromZero) low = value;
  }
  const span = high - low || 1;
  return { low, high, shades: Float32Array.from(values, (value) => Math.min(1, Math.max(0, (value - low) / span))) };
}

export const flat = (rows) => Float32Array.from(rows.flat());

/** The panes with the largest values, so many of them. */
export const brightest = (values, count) => Array.from(values.keys()).sort((a, b) => values[b] - values[a]).slice(0, count);
