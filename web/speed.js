// The screen of ComfyUI-SPEED. Every node works without it; nothing here changes what is sent to the server but for the
// text of a concept list, which the user can type as well.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { addStyle, h, own, safely } from "./dom.js";
import { Editor } from "./editor.js";
import { addAliases, commandLine } from "./lines.js";
import { drawLeaks, drawPairs, retainLook } from "./looks.js";
import { drawPanel } from "./panel.js";
import { speak, t } from "./words.js";

const SAVED = "speed"; // the property of a node that holds what its last run told
const TEXT = "$$node-text-preview"; // the front end's own widget for text under a node
const WIDE = 440; // a panel needs that much

async function ask(path, question) {
  try {
    const answer = await api.fetchApi(`/speed/${path}`, { method: "POST", body: JSON.stringify(question), headers: { "Content-Type": "application/json" } });
    return await answer.json();
  } catch (error) {
    console.warn("[SPEED]", error);
    return null;
  }
}

/** Our words in the front end's language, from where it takes the labels of nodes. */
async function learnWords() {
  const language = String(app.extensionManager?.setting?.get?.("Comfy.Locale") ?? "en");
  if (language.startsWith("en")) return;
  try {
    const all = await (await api.fetchApi("/i18n")).json();
    speak((all[language] ?? all[language.split("-")[0]])?.SPEED);
  } catch (error) {
    console.warn("[SPEED]", error);
  }
}

const widget = (node, name) => node.widgets?.find((one) => one.name === name);
const value = (node, name) => widget(node, name)?.value;
const linked = (node, name) => Boolean(node.inputs?.find((slot) => slot.name === name)?.link);

/** Runs `after` whenever a method of this one node has run. */
function follow(node, method, after) {
  const before = node[method];
  node[method] = function (...given) {
    const result = before?.apply(this, given);
    safely(after).apply(this, given);
    return result;
  };
}

function onChange(node, name, after) {
  const one = widget(node, name);
  if (one) follow(one, "callback", after);
}

// View of a node -> its element on the screen, and whose it is. After undo, some front ends keep showing the element of
// the node that was there before: what the new node has to show then moves into that one. A node that was there before
// must not move back: what is typed into its view would be lost.
const shells = new Map();
let views = 0;

function settle(node, name, born, shell, content) {
  const key = `${keyOf(node)} ${name}`;
  const known = shells.get(key);
  if (known?.born > born) return;
  const home = !shell.isConnected && known?.home.isConnected ? known.home : shell;
  shells.set(key, { home, born });
  if (content.parentElement === home) return;
  const held = content.contains(document.activeElement) ? document.activeElement : null;
  home.replaceChildren(content);
  held?.focus({ preventScroll: true });
}

/** One DOM widget at the end of a node, as high as what is in it; never saved. */
function place(node, name, content, wide = WIDE) {
  const shell = own(h("div", { class: "speed" }, content));
  let high = 40;
  const options = { serialize: false, hideOnZoom: false, getMinHeight: () => high, getMaxHeight: () => high };
  const one = node.addDOMWidget(name, "SPEED_VIEW", shell, options);
  one.serialize = false;
  const fit = () => {
    if (!content.isConnected && !content.offsetHeight) return;
    const wanted = content.offsetHeight + 22;
    if (Math.abs(wanted - high) < 2) return;
    high = wanted;
    content.parentElement.style.minHeight = `${high}px`;
    const [w, tall] = node.computeSize();
    node.setSize([Math.max(node.size[0], w, wide), tall]);
    node.setDirtyCanvas?.(true, true);
  };
  new ResizeObserver(safely(fit)).observe(content);
  const born = ++views;
  const look = () => [0, 300, 1200].forEach((wait) => setTimeout(safely(() => settle(node, name, born, shell, content)), wait));
  follow(node, "onConfigure", look);
  look();
  return one;
}

// What runs told, by graph and node: undo loads an older graph, and must not take the panel away.
const remembered = new Map();
const keyOf = (node) => `${node.graph?.rootGraph?.id ?? node.graph?.id ?? ""} ${node.id} ${node.type}`;

/** Has the front end notice that the graph changed, so that a reload brings the panel back. */
const noted = safely(() => {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
});

/** A view that is drawn from what a run told, and again after reload, undo and load. */
function resultView(node, draw) {
  let content = null;
  const show = () => {
    const facts = node.properties?.[SAVED] ?? remembered.get(keyOf(node));
    if (!facts) return;
    if (!content) {
      content = h("div");
      place(node, "speed_result", content);
    }
    content.replaceChildren(...draw(facts, show).filter((one) => one));
    const text = widget(node, TEXT);
    if (text) node.removeWidget?.(text); // the panel says it all; the next run brings its words back
  };
  follow(node, "onExecuted", (output) => {
    const facts = output?.speed?.[0];
    if (!facts || !Object.keys(facts).length) return;
    node.properties[SAVED] = facts;
    remembered.set(keyOf(node), facts);
    show();
    noted();
  });
  follow(node, "onConfigure", () => requestAnimationFrame(safely(show)));
  return show;
}

function erasePanel(node) {
  let all = false;
  const show = resultView(node, (facts, again) => {
    const widgets = { strength: value(node, "strength"), budget: String(value(node, "budget") ?? "").split(" ")[0] };
    return drawPanel(facts, node.type === "SpeedErase" ? widgets : {}, all, () => { all = true; again(); });
  });
  for (const name of ["strength", "budget"]) onChange(node, name, show);
  follow(node, "onExecuted", (output) => output?.recipe && recipes.set(keyOf(node), output.recipe[0]));
}

function conceptEditor(node) {
  const text = widget(node, "text");
  if (!text) return;
  const source = {
    text: () => String(text.value ?? ""),
    kind: () => value(node, "kind") ?? "style",
    file: () => value(node, "file"),
    kept: () => {
      const keeper = along(along(node, true, "SpeedErase"), false, "RetainSetLoader");
      return keeper && widgetsOf(keeper);
    },
    linked: () => linked(node, "text"),
    set: (fresh) => {
      text.value = fresh;
      text.callback?.(fresh);
      node.graph?.setDirtyCanvas?.(true, true);
      noted();
    },
  };
  const editor = new Editor(source, ask);
  node.speedEditor = editor;
  place(node, "speed_chips", editor.element, 360);
  for (const name of ["text", "kind", "file"]) onChange(node, name, () => editor.refresh());
  follow(node, "onConfigure", () => editor.refresh());
  follow(node, "onConnectionsChange", () => editor.refresh());
  const files = (event) => [...(event.dataTransfer?.files ?? [])].filter((file) => /\.(txt|csv|tsv)$/i.test(file.name));
  node.onDragOver = safely((event) => [...(event.dataTransfer?.types ?? [])].includes("Files"));
  node.onDragDrop = safely((event) => (files(event).length ? (editor.take(files(event)), true) : false));
}

/** The nodes on the other ends of an output's or an input's wires, through whatever stands between. */
function along(node, forward, type, depth = 6) {
  if (!node || depth < 0) return null;
  const graph = node.graph ?? app.graph;
  const link = (id) => graph.links?.get?.(id) ?? graph.links?.[id];
  const ids = forward ? (node.outputs ?? []).flatMap((slot) => slot.links ?? []) : (node.inputs ?? []).map((slot) => slot.link).filter((id) => id != null);
  for (const one of ids.map(link).filter(Boolean)) {
    const next = graph.getNodeById(forward ? one.target_id : one.origin_id);
    if (next?.type === type) return next;
    const found = next && along(next, forward, type, depth - 1);
    if (found) return found;
  }
  return null;
}

const RETAIN = ["builtin", "text", "file", "column", "kind", "limit"];
const widgetsOf = (node) => Object.fromEntries(RETAIN.map((name) => [name, value(node, name)]));

function retainView(node) {
  const question = () => {
    const asked = widgetsOf(node);
    const list = along(along(node, true, "SpeedErase"), false, "ConceptList");
    return list ? { ...asked, concepts: value(list, "text"), concepts_kind: value(list, "kind") } : asked;
  };
  const { element, refresh } = retainLook(question, ask);
  place(node, "speed_names", element, 320);
  for (const name of RETAIN) onChange(node, name, refresh);
  follow(node, "onConfigure", refresh);
  follow(node, "onConnectionsChange", refresh);
  refresh();
}

async function sure(message) {
  const dialog = app.extensionManager?.dialog;
  if (dialog?.confirm) return dialog.confirm({ title: "SPEED", message });
  return window.confirm(message);
}

function say(summary, detail = "", severity = "success") {
  app.extensionManager?.toast?.add?.({ severity, summary, detail, life: 4000 });
}

async function closeLeaks(node, facts) {
  const list = along(node, false, "ConceptList");
  if (!list || linked(list, "text")) return say(t("No Concept List"), t("The probed erasure has no Concept List before it in this graph."), "warn");
  const phrases = facts.tried.filter((one) => one.leaks && one.alias);
  const shown = phrases.map((one) => t("{0} (for {1})", one.phrase, one.concept)).join(", ");
  if (!(await sure(`${t("Add these phrases as aliases to the Concept List, so that the next run erases them, too?")} ${shown}`))) return;
  let text = String(value(list, "text") ?? "");
  for (const one of phrases) text = addAliases(text, one.concept, [one.phrase]) ?? text;
  list.speedEditor?.change(text);
  say(t("Aliases added"), t("Run again to erase them."));
}

const viewPath = (file) => `/view?${new URLSearchParams({ filename: file.filename, subfolder: file.subfolder ?? "", type: file.type ?? "temp" })}`;

const VIEWS = {
  ConceptList: conceptEditor,
  RetainSetLoader: retainView,
  SpeedErase: erasePanel,
  SpeedApplyRecipe: erasePanel,
  SpeedLeakProbe: (node) => resultView(node, (facts) => drawLeaks(facts, safely(() => closeLeaks(node, facts)))),
  SpeedCompare: (node) => resultView(node, (facts) => drawPairs(facts, (file) => api.apiURL(viewPath(file)))),
};

// What the last run sends along for the clipboard; too long to be saved with a workflow.
const recipes = new Map();

function asCommand(node) {
  const list = along(node, false, "ConceptList");
  const loader = along(node, false, "CheckpointLoaderSimple");
  const keeper = along(node, false, "RetainSetLoader");
  const builtin = String(value(keeper ?? {}, "builtin") ?? "none");
  const lists = (widget(keeper ?? {}, "builtin")?.options?.values ?? []).filter((name) => !/^(none|all)$|: /.test(name));
  // Sets for a kind are what the command line takes by itself.
  const sets = builtin === "all" ? lists : lists.filter((name) => name === builtin);
  return commandLine({
    checkpoint: loader ? `models/checkpoints/${value(loader, "ckpt_name")}` : "model.safetensors",
    text: String(value(list ?? {}, "text") ?? ""),
    kind: value(list ?? {}, "kind") ?? "style",
    ...Object.fromEntries(["preset", "strength", "seed", "effort"].map((name) => [name, value(node, name)])),
    budget: String(value(node, "budget") ?? "").split(" ")[0],
    kept: keeper && { builtin: sets, typed: Boolean(String(value(keeper, "text") ?? "").trim()) },
  });
}

async function copy(text, what) {
  if (!text) return say(t("Nothing to copy yet"), t("Run the graph once, then copy."), "warn");
  await navigator.clipboard.writeText(text);
  say(t("{0} copied", what));
}

/** The report of the last run in a tab of its own. `/view` gives pages as downloads, so the tab gets its text. */
async function openReport(node) {
  const file = node.properties?.[SAVED]?.page;
  const answer = file && (await api.fetchApi(viewPath(file)));
  if (!answer?.ok) return say(t("No report yet"), t("Run the graph, then open the report."), "warn");
  const page = URL.createObjectURL(new Blob([await answer.text()], { type: "text/html" }));
  window.open(page, "_blank");
  setTimeout(() => URL.revokeObjectURL(page), 60_000);
}

const erasers = (nodes) => nodes.filter((node) => node?.type === "SpeedErase");
const chosen = () => erasers(Object.values(app.canvas?.selected_nodes ?? {}))[0] ?? erasers(app.graph?._nodes ?? [])[0];
const ACTIONS = {
  CopyCommand: [() => t("Copy as command line"), "copy", (node) => copy(asCommand(node), t("Command line"))],
  CopyRecipe: [() => t("Copy recipe"), "copy", (node) => copy(recipes.get(keyOf(node)), t("Recipe"))],
  OpenReport: [() => t("Open report"), "external-link", openReport],
};

const DEMO = "speed_demo.safetensors"; // the model that comes with the package, as the first template asks for it
let offered = false;

/** A graph asks for that model, and it is not there: one click puts it among the checkpoints. */
async function offerModel() {
  const asking = (app.graph?._nodes ?? []).filter((node) => value(node, "ckpt_name") === DEMO);
  if (offered || !asking.length) return;
  const known = await (await api.fetchApi("/models/checkpoints")).json();
  if (offered || known.includes(DEMO)) return;
  offered = true;
  if (!(await sure(t("This workflow draws with the small model that comes with SPEED. Put it into your checkpoints? It takes 324 MB and no download.")))) return;
  const answer = await ask("demo/place", {});
  if (!answer || answer.error) return say(t("The model could not be put there"), answer?.error ?? "", "error");
  await app.refreshComboInNodes?.();
  for (const node of asking) node.onWidgetChanged?.("ckpt_name", DEMO, "", widget(node, "ckpt_name")); // newer front ends mark what is missing
  say(t("The model is there"), t("Press Run."));
}

app.registerExtension({
  name: "ComfyUI-SPEED",
  commands: Object.entries(ACTIONS).map(([id, [label, icon, work]]) => ({
    id: `SPEED.${id}`,
    label: `SPEED: ${label()}`,
    icon: `pi pi-${icon}`,
    function: safely(() => (chosen() ? work(chosen()) : say(t("No SPEED Erase in this graph"), "", "warn"))),
  })),
  menuCommands: [{ path: ["Extensions", "SPEED"], commands: Object.keys(ACTIONS).map((id) => `SPEED.${id}`) }],
  getNodeMenuItems: (node) => (node.type === "SpeedErase" ? Object.values(ACTIONS).map(([label, , work]) => ({ content: `SPEED: ${label()}`, callback: safely(() => work(node)) })) : []),
  init: learnWords,
  afterConfigureGraph: () => void offerModel().catch((error) => console.warn("[SPEED]", error)),
  setup: safely(addStyle),
  nodeCreated: safely((node) => VIEWS[node.comfyClass ?? node.type]?.(node)),
});
