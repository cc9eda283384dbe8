// Elements, briefly.

/** An element; children are elements or text. */
export function make(name, attributes = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(key, value);
  element.append(...[children].flat());
  return element;
}

export const find = (id) => document.getElementById(id);

/** A drawing of one line, from a path in a field of 20 by 20. */
export function icon(path) {
  const holder = make("span", { class: "drawing", "aria-hidden": "true" });
  holder.innerHTML = `<svg viewBox="0 0 20 20"><path d="${path}"/></svg>`;
  return holder;
}
