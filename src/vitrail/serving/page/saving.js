// A window as a PNG file, with a line below that says what one sees.

const SIDE = 1200;
const LINE = 84;

export async function save(glass, { title, words, model, stem }) {
  const window = glass.drawn(SIDE);
  const page = document.createElement("canvas");
  page.width = window.width;
  page.height = window.height + LINE;
  const brush = page.getContext("2d");
  brush.fillStyle = "#0f0f16";
  brush.fillRect(0, 0, page.width, page.height);
  brush.drawImage(window, 0, 0);
  brush.textBaseline = "middle";
  const middle = window.height + LINE / 2;
  brush.font = "30px 'Iowan Old Style', Palatino, 'Palatino Linotype', 'Liberation Serif', Georgia, serif";
  brush.fillStyle = "#f4f0e8";
  brush.fillText(title, 28, middle, SIDE * 0.42);
  const begin = 28 + Math.min(brush.measureText(title).width, SIDE * 0.42) + 26;
  brush.font = "19px system-ui, 'Liberation Sans', sans-serif";
  brush.fillStyle = "#a8a3b3";
  const right = `${model} · vitrail`;
  const end = page.width - 28 - brush.measureText(right).width;
  brush.fillText(right, end, middle + 1);
  brush.fillText(words, begin, middle + 1, end - begin - 24);
  const blob = await new Promise((done) => page.toBlob(done, "image/png"));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = `${stem.replace(/[^\p{L}\p{N}._-]+/gu, "-").slice(0, 80)}.png`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
