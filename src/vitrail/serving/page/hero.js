// The window of the empty page: an arch of coloured panes with a sun, that lights up where the pointer is.

const COLUMNS = 8;
const ROWS = 10;
const ARCH = "M6 396V176C6 96 74 34 160 6c86 28 154 90 154 170v220z";
const NAMESPACE = "http://www.w3.org/2000/svg";

const shape = (name, attributes, parent) => {
  const element = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent.append(element);
  return element;
};

/** Sky, sun, hills, water: the hue, lightness and strength of a pane. */
function glassAt(column, row) {
  const [x, y] = [(column + 0.5) / COLUMNS, (row + 0.5) / ROWS];
  const grain = Math.abs(Math.sin(column * 12.9898 + row * 78.233) * 43758.5453) % 1;
  const sun = Math.hypot((x - 0.62) * 1.1, y - 0.36);
  const hill = 0.66 - 0.1 * Math.sin(x * 3.1 + 0.4);
  if (sun < 0.13) return [44, 62 + grain * 8, 92];
  if (sun < 0.25) return [26 + grain * 10, 54 + grain * 8, 86];
  if (y > 0.84) return [190 + grain * 14, 34 + grain * 12, 62];
  if (y > hill) return [140 + grain * 26, 26 + grain * 16, 52];
  if (sun < 0.38) return [346 + grain * 14, 46 + grain * 10, 66];
  return [226 + grain * 40 - y * 6, 34 + grain * 18, 66];
}

export function drawRose(svg) {
  const clip = shape("clipPath", { id: "arch" }, shape("defs", {}, svg));
  shape("path", { d: ARCH }, clip);
  const glass = shape("g", { "clip-path": "url(#arch)" }, svg);
  shape("rect", { width: 320, height: 400, fill: "#12111c" }, glass);
  const [w, h] = [320 / COLUMNS, 400 / ROWS];
  const panes = [];
  for (let row = 0; row < ROWS; row += 1) {
    for (let column = 0; column < COLUMNS; column += 1) {
      const [hue, light, strength] = glassAt(column, row);
      const place = { x: column * w + 1.2, y: row * h + 1.2, width: w - 2.4, height: h - 2.4, rx: 1 };
      const pane = shape("rect", { ...place, fill: `hsl(${hue} ${strength}% ${light}%)` }, glass);
      pane.style.setProperty("--delay", `${((column * 7 + row * 5) % 17) * -0.9}s`);
      shape("path", { d: `M${place.x} ${place.y + place.height}V${place.y}H${place.x + place.width}`, class: "edge" }, glass);
      panes.push({ pane, x: (column + 0.5) * w, y: (row + 0.5) * h });
    }
  }
  shape("path", { d: ARCH, class: "came" }, svg);
  const button = svg.parentElement;
  button.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * 320, ((event.clientY - box.top) / box.height) * 400];
    for (const one of panes) one.pane.style.setProperty("--lit", Math.max(0, 1 - Math.hypot(one.x - x, one.y - y) / 110).toFixed(2));
  });
  button.addEventListener("pointerleave", () => panes.forEach(({ pane }) => pane.style.setProperty("--lit", 0)));
}
