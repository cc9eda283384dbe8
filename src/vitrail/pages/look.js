// Maps over pictures: which one, of which layer and head, and of which patch. Data stands beside each as JSON.
const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const rgb = (table, value) => [0, 1, 2].map((k) => table[3 * value + k]);

for (const box of document.querySelectorAll(".looking")) {
  const data = JSON.parse(box.querySelector("script").textContent);
  const [rows, columns] = data.grid;
  const size = rows * columns;
  for (const map of Object.values(data.maps)) map.values = bytes(map.values);
  const colours = { heat: bytes(data.heat), likeness: bytes(data.likeness) };
  const find = (name) => box.querySelector(name);
  const view = find(".view"), canvas = find("canvas"), mark = find(".patch"), says = find(".says");
  const layer = find(".layer"), head = find(".head"), buttons = [...box.querySelectorAll("button")];
  const low = find(".low"), high = find(".high"), line = find(".scale i");
  const state = { map: data.first, layer: data.layers - 1, head: 0, patch: data.patch };
  canvas.width = columns;
  canvas.height = rows;

  // which of the maps' planes is shown, and how high its highest value is
  function plane() {
    const map = data.maps[state.map];
    const heads = map.heads ? map.heads + 1 : 1; // the first is the mean of all
    const at = map.patches ? state.patch[0] * columns + state.patch[1] : map.layers ? state.layer * heads + state.head * (heads > 1) : 0;
    return { map, at, values: map.values.subarray(at * size, (at + 1) * size), span: map.spans[map.spans.length > 1 ? at : 0] };
  }

  function draw() {
    const { map, values, span } = plane();
    const table = map.patches ? colours.likeness : colours.heat;
    const context = canvas.getContext("2d");
    const picture = context.createImageData(columns, rows);
    for (let i = 0; i < size; i += 1) {
      const value = values[i];
      picture.data.set([...rgb(table, value), map.patches ? 190 : 70 + value * 0.6], 4 * i);
    }
    context.putImageData(picture, 0, 0);
    view.classList.toggle("smooth", !map.patches);
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.value === state.map));
    layer.closest("label").hidden = !map.layers;
    head.closest("label").hidden = !map.heads;
    layer.nextElementSibling.value = `${state.layer + 1} of ${data.layers}`;
    head.nextElementSibling.value = state.head ? `${state.head} of ${map.heads || 0}` : "mean";
    low.textContent = span[0].toFixed(2);
    high.textContent = `${span[1].toFixed(2)} ${map.unit}`;
    const stops = [0, 32, 64, 96, 128, 160, 192, 224, 255].map((value) => `rgb(${rgb(table, value)})`);
    line.style.background = `linear-gradient(90deg, ${stops})`;
    mark.style.display = map.patches ? "block" : "none";
    mark.style.left = `${(100 * state.patch[1]) / columns}%`;
    mark.style.top = `${(100 * state.patch[0]) / rows}%`;
    mark.style.width = `${100 / columns}%`;
    mark.style.height = `${100 / rows}%`;
    says.textContent = map.says;
  }

  const place = (event) => {
    const frame = view.getBoundingClientRect();
    const cell = (x, length, count) => Math.min(count - 1, Math.max(0, Math.floor((x / length) * count)));
    return [cell(event.clientY - frame.top, frame.height, rows), cell(event.clientX - frame.left, frame.width, columns)];
  };
  const tell = (event) => {
    const [row, column] = place(event), { map, values, span } = plane();
    const value = span[0] + ((span[1] - span[0]) * values[row * columns + column]) / 255;
    says.textContent = `row ${row + 1}, column ${column + 1}: ${value.toFixed(2)} ${map.unit}`;
  };
  view.addEventListener("mousemove", tell);
  view.addEventListener("mouseleave", draw);
  view.addEventListener("click", (event) => {
    if (!data.maps[state.map].patches) return;
    state.patch = place(event);
    draw();
    tell(event);
  });
  for (const button of buttons) {
    button.addEventListener("click", () => {
      state.map = button.value;
      draw();
    });
  }
  layer.addEventListener("input", () => {
    state.layer = Number(layer.value) - 1;
    draw();
  });
  head.addEventListener("input", () => {
    state.head = Number(head.value);
    draw();
  });
  draw();
}
