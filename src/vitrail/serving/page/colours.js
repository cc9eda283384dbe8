// Colours of glass, and scales of them.

/** For classes, in the order in which they come. */
export const GLASS = ["#e58a00", "#2f55d4", "#d0243f", "#1f9d63", "#7b3fc4", "#1797a6", "#d9548f", "#5f8f1c", "#0f7ac0", "#c4552d", "#8a6d3b", "#b04ad8"];

const rgb = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
const mix = (a, b, t) => a.map((value, i) => Math.round(value + (b[i] - value) * t));

function scale(stops) {
  const table = Array.from({ length: 256 }, (_, i) => {
    const t = i / 255;
    const next = Math.max(1, stops.findIndex(([at]) => at >= t));
    const [[from, low], [to, high]] = [stops[next - 1], stops[next]];
    return mix(low, high, (t - from) / (to - from));
  });
  return (t) => table[Math.round(Math.min(1, Math.max(0, t)) * 255)];
}

const bent = (t) => t ** 0.65; // weights are mostly small: without it, one pane shines and all others are night

const cathedral = scale([[0, "#1a1f63"], [0.25, "#343cc4"], [0.48, "#8b2fb0"], [0.7, "#e02c4e"], [0.88, "#fba61e"], [1, "#fff6d2"]].map(([t, hex]) => [t, rgb(hex)]));
const NIGHT = [40, 37, 82];
const hues = new Map();

function hue(hex) {
  if (!hues.has(hex)) {
    const colour = rgb(hex);
    hues.set(hex, scale([[0, NIGHT], [0.66, colour], [1, mix(colour, [255, 255, 255], 0.74)]]));
  }
  return hues.get(hex);
}

/** A colour [r, g, b] for a shade from 0 to 1: from night to light through all glass, or through the glass of one class. */
export const night = (t) => cathedral(bent(t));
export const through = (hex) => (t) => hue(hex)(t ** 0.82);

/** The scale as a CSS gradient. */
export function gradient(colour) {
  const stops = Array.from({ length: 17 }, (_, i) => `rgb(${colour(i / 16).join(" ")}) ${(i / 16) * 100}%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}
