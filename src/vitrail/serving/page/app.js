// The page: its model, its pictures, its theme.

import { Trouble, listModels, modelFacts, onTokenWanted } from "./api.js";
import { buildLens, onKey } from "./controls.js";
import { find, icon, make } from "./dom.js";
import { drawRose } from "./hero.js";
import { listen, showExamples } from "./intake.js";
import { keep } from "./memory.js";
import { Picture } from "./picture.js";
import { settings } from "./settings.js";
import { Window } from "./window.js";

const MOST = 12; // windows side by side
const windows = [];
const early = []; // files that came before the server's first answer

function add(files) {
  if (!settings.facts) {
    early.push(...files);
    return;
  }
  const room = Math.max(0, MOST - windows.length);
  say(files.length > room ? `There is room for ${MOST} pictures: close some first.` : "");
  for (const file of files.slice(0, room)) {
    const picture = new Picture(file);
    const window = new Window(picture, () => remove(window));
    windows.push(window);
    find("windows").append(window.element);
    picture.ask();
  }
  arrange();
  const { top } = windows.at(-1)?.element.getBoundingClientRect() ?? { top: 0 };
  if (top < 0 || top > innerHeight * 0.7) windows.at(-1).element.scrollIntoView({ block: "start" });
}

function remove(window) {
  windows.splice(windows.indexOf(window), 1);
  window.close();
  arrange();
  (windows.at(-1)?.element.querySelector(".frame") ?? find("choose")).focus({ preventScroll: true });
}

function arrange() {
  const count = windows.length;
  document.body.classList.toggle("empty", !count);
  find("windows").dataset.count = Math.min(count, 3);
  find("lens").hidden = !count || settings.views.length < 2;
  windows.forEach((one) => { one.roomy = count === 1; });
}

function say(words) {
  find("note").hidden = !words;
  find("note").textContent = words;
}

let wanted; // the model that was chosen last: an answer about another comes too late

async function useModel(name) {
  wanted = name;
  find("state").dataset.state = "waiting";
  try {
    const facts = await modelFacts(name);
    if (wanted !== name) return facts;
    windows.forEach(({ picture }) => picture.forget());
    settings.useModel(facts);
    showFacts(facts);
    buildLens();
    arrange();
    find("state").dataset.state = "ready";
    find("missing").textContent = whatIsMissing(facts);
    say("");
    windows.forEach(({ picture }) => picture.ask());
    return facts;
  } catch (error) {
    if (!(error instanceof Trouble)) throw error;
    find("state").dataset.state = "away";
    find("model-name").textContent = "no model";
    say(`${error.message} Trying again in 3 s.`);
    await new Promise((go) => setTimeout(go, 3000));
    return useModel(wanted);
  }
}

function showFacts(facts) {
  const { kind, layers, heads, grid, parameters, classes, name, engine } = facts;
  find("model-name").textContent = name;
  document.title = `${name} · vitrail`;
  const said = [
    grid && `${grid[0]} × ${grid[1]} panes`,
    kind === "vit" && `${layers} layers`,
    kind === "vit" && `${heads} ${heads === 1 ? "head" : "heads"}`,
    parameters && `${(parameters / 1e6).toFixed(parameters < 1e7 ? 1 : 0)} M parameters`,
    `${classes.length.toLocaleString("en")} classes`,
    engine !== "torch" && engine,
  ];
  find("model-facts").textContent = said.filter(Boolean).join(" · ");
  find("about").textContent = `vitrail ${facts.vitrail}`;
  find("classes")?.remove();
  document.body.append(make("datalist", { id: "classes" }, classes.map((label) => make("option", { value: label }))));
}

/** Which views this model does not have, and why. */
function whatIsMissing({ kind, can, classes }) {
  if (kind === "exported") return "This is an exported file: it gives predictions, and nothing of how it comes to them.";
  if (!classes.length) return "This model has no classes: there is nothing to predict.";
  if (can.attention && !can.weights) return "The attention of this model is too large to be sent. Rollout and what speaks for a class are here.";
  if (!can.attention) return "A ResNet has no attention. What speaks for a class is here, and panes can be taken out.";
  return "";
}

async function chooseModel() {
  const models = await listModels().catch(() => []);
  const choice = find("model-choice");
  choice.replaceChildren(...models.map(({ name }) => make("option", { value: name }, name)));
  choice.hidden = models.length < 2;
  find("model-name").classList.toggle("unseen", models.length > 1);
  choice.value = settings.facts.name;
  choice.addEventListener("change", () => useModel(choice.value));
}

const THEMES = {
  auto: "M10 3a7 7 0 1 0 .01 0M10 3v14",
  light: "M10 6.5a3.5 3.5 0 1 0 .01 0M10 1.5v2m0 13v2M1.5 10h2m13 0h2M4 4l1.4 1.4m9.2 9.2L16 16M16 4l-1.4 1.4M5.4 14.6L4 16",
  dark: "M16 12.5A7 7 0 0 1 7.5 4a7 7 0 1 0 8.5 8.5z",
};

function showTheme() {
  const chosen = document.documentElement.dataset.theme ?? "auto"; // as theme.js has found it
  const button = find("theme");
  button.replaceChildren(icon(THEMES[chosen]));
  button.setAttribute("aria-label", `Colours: ${chosen}`);
  button.title = `Colours: ${chosen}`;
}

function turnTheme() {
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(document.documentElement.dataset.theme ?? "auto") + 1) % names.length];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  keep("localStorage", "vitrail-theme", next);
  showTheme();
}

onTokenWanted(() => new Promise((done) => {
  const dialog = find("token-dialog");
  dialog.onclose = () => {
    const token = find("token").value.trim();
    if (token) done(token);
    else dialog.showModal();
  };
  if (!dialog.open) dialog.showModal();
}));

document.addEventListener("keydown", (event) => {
  const typing = event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range], [type=radio]), select, dialog *");
  if (typing || !settings.facts) return;
  if (onKey(event)) event.preventDefault();
  else if (event.key === "r") windows.forEach(({ picture }) => picture.out.size && picture.takeOut(new Set()));
  else if (event.key === "o") find("file").click();
  else if (event.key === "Escape") windows.forEach(({ panes }) => panes.look(null));
});
find("help").addEventListener("click", () => find("help-dialog").showModal());

drawRose(find("rose-glass"));
showTheme();
find("theme").addEventListener("click", turnTheme);
listen(add, say);
const facts = await useModel();
add(early.splice(0));
await Promise.all([chooseModel(), showExamples(facts.examples, add)]);
