// The ways by which pictures come: dropped, pasted, chosen, taken by the camera, or one of the examples.

import { exampleBlob } from "./api.js";
import { find, make } from "./dom.js";

/** add: takes a list of files; say: takes a line for the user. */
export function listen(add, say) {
  const file = find("file");
  const choose = () => file.click();
  find("choose").addEventListener("click", choose);
  find("rose").addEventListener("click", choose);
  file.addEventListener("change", () => {
    add([...file.files]);
    file.value = "";
  });
  listenToDrops(add, say);
  document.addEventListener("paste", (event) => {
    if (event.target.matches?.("input")) return;
    const files = [...event.clipboardData.files];
    if (files.length) add(files);
    else say("There is no picture in the clipboard.");
  });
  find("camera").addEventListener("click", () => openCamera(add));
}

function listenToDrops(add, say) {
  const veil = find("veil");
  let depth = 0; // a child that is entered also leaves its parent
  const shown = (yes) => veil.classList.toggle("shown", yes);
  document.addEventListener("dragenter", (event) => {
    event.preventDefault();
    depth += 1;
    shown(event.dataTransfer.types.includes("Files"));
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) shown(false);
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    depth = 0;
    shown(false);
    const files = [...event.dataTransfer.files];
    if (files.length) add(files);
    else say("That was not a file: save the picture first, then drop it.");
  });
}

async function openCamera(add) {
  const [dialog, video, words, shoot] = ["camera-dialog", "video", "camera-words", "shoot"].map(find);
  let stream = null;
  const stop = () => stream?.getTracks().forEach((track) => track.stop());
  words.hidden = true;
  video.hidden = false;
  shoot.disabled = true;
  dialog.showModal();
  dialog.onclose = stop;
  find("camera-close").onclick = () => dialog.close();
  try {
    if (!navigator.mediaDevices) throw new Error("insecure");
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    if (!dialog.open) return stop();
    video.srcObject = stream;
    video.onplaying = () => { shoot.disabled = false; };
  } catch (error) {
    video.hidden = true;
    words.hidden = false;
    words.textContent = {
      insecure: "A browser gives its camera to https and to this machine’s own pages alone.",
    }[error.message] ?? (error.name === "NotAllowedError" ? "The browser does not allow the camera here." : "There is no camera.");
  }
  shoot.onclick = async () => {
    const page = document.createElement("canvas");
    [page.width, page.height] = [video.videoWidth, video.videoHeight];
    page.getContext("2d").drawImage(video, 0, 0);
    const blob = await new Promise((done) => page.toBlob(done, "image/png"));
    dialog.close();
    add([new File([blob], "camera.png", { type: "image/png" })]);
  };
  return undefined;
}

/** The pictures that the server offers. */
export async function showExamples(examples, add) {
  const place = find("examples");
  place.hidden = !examples.length;
  const found = examples.map(({ name, title, url }) => {
    const image = make("img", { alt: "", loading: "lazy", draggable: "false" });
    const button = make("button", { type: "button", class: "example", title, "aria-label": `Example: ${title}` }, image);
    const blob = exampleBlob(url);
    blob.then((data) => { image.src = URL.createObjectURL(data); }, () => button.remove());
    image.addEventListener("load", () => { image.classList.toggle("coarse", image.naturalWidth <= 64); URL.revokeObjectURL(image.src); });
    button.addEventListener("click", async () => {
      const data = await blob;
      add([new File([data], name, { type: data.type })]);
    });
    return button;
  });
  place.replaceChildren(...found);
}
