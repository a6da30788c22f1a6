// What we ask of the server and of the front end around the graph.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { safely } from "./dom.js";
import { sentence, setNotices } from "./notices.js";
import { setWords } from "./words.js";

/** Posts a question to one of our routes; null if there is no answer. */
export async function ask(path, question) {
  try {
    const body = JSON.stringify(question);
    const headers = { "Content-Type": "application/json" };
    const response = await api.fetchApi(`/speed/${path}`, { method: "POST", body, headers });
    return await response.json();
  } catch (error) {
    console.warn("[SPEED]", error);
    return null;
  }
}

/** Loads our words in the front end's language, from where it takes the labels of nodes. */
export async function loadWords() {
  // also in English: the front end warns of unknown messages
  api.addEventListener("speed_text", ({ detail }) => (last = detail));
  const language = String(app.extensionManager?.setting?.get?.("Comfy.Locale") ?? "en");
  if (language.startsWith("en")) return;
  try {
    const tables = await (await api.fetchApi("/i18n")).json();
    const table = tables[language] ?? tables[language.split("-")[0]];
    if (!table?.SPEED) return;
    setWords(table.SPEED, language);
    setNotices(table.SPEED_NOTICES);
    translateProgress();
  } catch (error) {
    console.warn("[SPEED]", error);
  }
}

let last = {}; // what the next progress text is about

function translateProgress() {
  const translate = ({ detail }) => {
    if (detail.text === last.text) detail.text = last.notices.map(sentence).join("  \n");
  };
  api.addEventListener("progress_text", translate, true); // before the front end's own listener
}

export async function confirm(message) {
  const dialog = app.extensionManager?.dialog;
  if (dialog?.confirm) return dialog.confirm({ title: "SPEED", message });
  return window.confirm(message);
}

export function notify(summary, detail = "", severity = "success") {
  const life = severity === "error" ? 15_000 : 4000;
  app.extensionManager?.toast?.add?.({ severity, summary, detail, life });
}

/** Has the front end notice that the graph changed, so that a reload restores our views. */
export const captureChange = safely(() => {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
});

/** The path at which ComfyUI serves a file that a run wrote. */
export function viewPath({ filename, subfolder = "", type = "temp" }) {
  return `/view?${new URLSearchParams({ filename, subfolder, type })}`;
}
