// The lens: which view, which layer and head, how strong.

import { find, make } from "./dom.js";
import { settings } from "./settings.js";

/** Builds the controls for the model of now, and keeps them true. */
export function buildLens() {
  const lens = find("lens");
  const { facts, views } = settings;
  const parts = [viewChoice(views)];
  if (facts.can.weights) {
    parts.push(slider("layer", "Layer", 0, facts.layers - 1, 1, (value) => `${value + 1} of ${facts.layers}`));
    if (facts.heads > 1) parts.push(slider("head", "Head", -1, facts.heads - 1, 1, (value) => (value < 0 ? "mean" : `${value + 1} of ${facts.heads}`)));
  }
  if (views.length > 1) parts.push(slider("opacity", "Strength", 0, 1, 0.05, (value) => `${Math.round(value * 100)} %`));
  lens.replaceChildren(...parts);
  show();
}

function viewChoice(views) {
  const choices = views.map(({ name, title }) => {
    const input = make("input", { type: "radio", name: "view", value: name, id: `view-${name}` });
    input.addEventListener("change", () => settings.set({ view: name }));
    return [input, make("label", { for: `view-${name}` }, title)];
  });
  return make("fieldset", { class: "views" }, [make("legend", { class: "unseen" }, "View"), ...choices.flat()]);
}

function slider(key, title, low, high, step, words) {
  const input = make("input", { type: "range", id: key, min: low, max: high, step });
  input.addEventListener("input", () => settings.set({ [key]: Number(input.value) }));
  input.words = words;
  return make("label", { class: "slider", "data-for": key }, [make("span", {}, title), input, make("output", { for: key })]);
}

function show() {
  const lens = find("lens");
  for (const input of lens.querySelectorAll("input[type=radio]")) input.checked = input.value === settings.view;
  for (const input of lens.querySelectorAll("input[type=range]")) {
    const value = settings[input.id];
    input.value = value;
    input.style.setProperty("--part", (value - input.min) / (input.max - input.min || 1));
    input.setAttribute("aria-valuetext", input.words(value));
    input.nextElementSibling.textContent = input.words(value);
    const idle = input.id !== "opacity" && !["picture", "attention"].includes(settings.view);
    input.parentElement.classList.toggle("idle", idle);
    input.disabled = idle;
  }
}

settings.addEventListener("change", () => { if (settings.facts) show(); });

/** Keys that work wherever nobody types; whether it was one. */
export function onKey(event) {
  const { facts, views } = settings;
  const number = Number(event.key);
  if (number >= 1 && number <= views.length) settings.set({ view: views[number - 1].name });
  else if (event.key === "[" || event.key === "]") turn("layer", event.key === "]" ? 1 : -1, 0, facts.layers - 1);
  else if (event.key === "," || event.key === ".") turn("head", event.key === "." ? 1 : -1, -1, facts.heads - 1);
  else return false;
  return true;
}

function turn(key, by, low, high) {
  settings.set({ [key]: Math.max(low, Math.min(high, settings[key] + by)) });
}
