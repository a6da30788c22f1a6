// Our views on nodes: one DOM widget per node, drawn from its widgets or from the result of its last run.
import { api } from "../../scripts/api.js";
import { h, safely, shield } from "./dom.js";
import { drawLeaks, drawPairs, retainNames } from "./drawings.js";
import { Editor, hasFiles, listFiles } from "./editor.js";
import {
  budgetWord,
  choices,
  downstream,
  isLinked,
  nodeKey,
  onChange,
  runAfter,
  upstream,
  value,
  values,
  widget,
} from "./graph.js";
import { ask, captureChange, confirm, notify, viewPath } from "./host.js";
import { addAliases, replace, split } from "./lines.js";
import { drawPanel } from "./panel.js";
import { t } from "./words.js";

const RESULT = "speed"; // node.properties[RESULT]: the result of the last run, saved with the workflow
const TEXT_PREVIEW = "$$node-text-preview"; // the front end's own widget for text under a node
const PANEL_WIDTH = 440;
const RETAIN_WIDGETS = ["builtin", "text", "file", "column", "kind", "limit"];

const VIEWS = {
  ConceptList: addEditor,
  RetainSetLoader: addRetainNames,
  SpeedErase: addPanel,
  SpeedApplyRecipe: addPanel,
  SpeedLeakProbe: (node) =>
    addResultView(node, (result) =>
      drawLeaks(
        result,
        safely(() => closeLeaks(node, result)),
      ),
    ),
  SpeedCompare: (node) =>
    addResultView(node, (result) => drawPairs(result, (file) => api.apiURL(viewPath(file)))),
};

export const addView = (node) => VIEWS[node.comfyClass ?? node.type]?.(node);

const editors = new WeakMap(); // node -> Editor
const results = new Map(); // nodeKey -> result: undo loads an older graph, and must not take the panel away
const recipes = new Map(); // nodeKey -> recipe of the last run; too long to be saved with a workflow

export const lastResult = (node) => node.properties?.[RESULT];
export const lastRecipe = (node) => recipes.get(nodeKey(node));

// nodeKey and widget -> the element on the screen, and the serial number of the view in it. After undo, some
// front ends keep showing the element of the replaced node: the new node's content then moves into that
// element. The replaced node must not move its content back: what is typed into it would be lost.
const shells = new Map();
let lastSerial = 0;

function moveToScreen(key, serial, shell, content) {
  const current = shells.get(key);
  if (current?.serial > serial) return;
  const home = !shell.isConnected && current?.home.isConnected ? current.home : shell;
  shells.set(key, { home, serial });
  if (content.parentElement === home) return;
  const focused = content.contains(document.activeElement) ? document.activeElement : null;
  home.replaceChildren(content);
  focused?.focus({ preventScroll: true });
}

/** Adds a DOM widget at the end of a node, as high as its content; it is never saved. */
function addContent(node, name, content, minWidth) {
  const shell = shield(h("div", { class: "speed" }, content));
  let height = 40;
  const options = {
    serialize: false,
    hideOnZoom: false,
    getMinHeight: () => height,
    getMaxHeight: () => height,
  };
  node.addDOMWidget(name, "SPEED_VIEW", shell, options).serialize = false;
  const fit = () => {
    if (!content.isConnected && !content.offsetHeight) return;
    const needed = content.offsetHeight + 22;
    if (Math.abs(needed - height) < 2) return;
    height = needed;
    content.parentElement.style.minHeight = `${height}px`;
    const [width, nodeHeight] = node.computeSize();
    node.setSize([Math.max(node.size[0], width, minWidth), nodeHeight]);
    node.setDirtyCanvas?.(true, true);
  };
  new ResizeObserver(safely(fit)).observe(content);
  const serial = ++lastSerial;
  const settle = safely(() => moveToScreen(`${nodeKey(node)} ${name}`, serial, shell, content));
  const settleSoon = () => [0, 300, 1200].forEach((delay) => setTimeout(settle, delay));
  runAfter(node, "onConfigure", settleSoon);
  settleSoon();
}

/** Adds a view that is drawn from the result of a run, and again after reload, undo and load. */
function addResultView(node, draw) {
  let content = null;
  const show = () => {
    const result = lastResult(node) ?? results.get(nodeKey(node));
    if (!result) return;
    if (!content) {
      content = h("div");
      addContent(node, "speed_result", content, PANEL_WIDTH);
    }
    content.replaceChildren(...draw(result, show).filter(Boolean));
    const preview = widget(node, TEXT_PREVIEW);
    if (preview) node.removeWidget?.(preview); // the panel shows it all; the next run brings the text back
  };
  runAfter(node, "onExecuted", (output) => {
    const result = output?.speed?.[0];
    if (!result || !Object.keys(result).length) return;
    node.properties[RESULT] = result;
    results.set(nodeKey(node), result);
    show();
    captureChange();
  });
  runAfter(node, "onConfigure", () => requestAnimationFrame(safely(show)));
  return show;
}

function addPanel(node) {
  let folded = true;
  const show = addResultView(node, (result, redraw) => {
    const { strength, budget } = values(node, ["strength", "budget"]);
    const settings = node.type === "SpeedErase" ? { strength, budget: budgetWord(budget) } : {};
    const showAll = () => {
      folded = false;
      redraw();
    };
    return drawPanel(result, settings, folded ? showAll : null);
  });
  for (const name of ["strength", "budget"]) onChange(node, name, show);
  runAfter(node, "onExecuted", (output) => output?.recipe && recipes.set(nodeKey(node), output.recipe[0]));
}

function addEditor(node) {
  const text = widget(node, "text");
  if (!text) return;
  const source = {
    text: () => String(text.value ?? ""),
    kind: () => value(node, "kind"),
    kinds: () => choices(node, "kind"),
    file: () => value(node, "file"),
    retain: () => {
      const retain = upstream(downstream(node, "SpeedErase"), "RetainSetLoader");
      return retain && values(retain, RETAIN_WIDGETS);
    },
    isLinked: () => isLinked(node, "text"),
    set: (newText) => {
      text.value = newText;
      text.callback?.(newText);
      node.graph?.setDirtyCanvas?.(true, true);
      captureChange();
    },
  };
  const editor = new Editor(source, ask);
  editors.set(node, editor);
  addContent(node, "speed_chips", editor.element, 360);
  for (const name of ["text", "kind", "file"]) onChange(node, name, () => editor.refresh());
  runAfter(node, "onConfigure", () => editor.refresh());
  runAfter(node, "onConnectionsChange", () => editor.refresh());
  node.onDragOver = safely(hasFiles);
  node.onDragDrop = safely((event) => {
    const files = listFiles(event);
    if (files.length) editor.addFiles(files);
    return files.length > 0;
  });
}

function addRetainNames(node) {
  const question = () => {
    const list = upstream(downstream(node, "SpeedErase"), "ConceptList");
    const concepts = list ? { concepts: value(list, "text"), concepts_kind: value(list, "kind") } : {};
    return { ...values(node, RETAIN_WIDGETS), ...concepts };
  };
  const { element, refresh } = retainNames(question, ask);
  addContent(node, "speed_names", element, 320);
  for (const name of RETAIN_WIDGETS) onChange(node, name, refresh);
  runAfter(node, "onConfigure", refresh);
  runAfter(node, "onConnectionsChange", refresh);
  refresh();
}

/** Adds the leaking phrases to the concept list as aliases, after a question. The server reads the lines. */
async function closeLeaks(node, { tried }) {
  const list = upstream(node, "ConceptList");
  if (!list || isLinked(list, "text")) {
    const detail = t("The probed erasure has no Concept List before it in this graph.");
    return notify(t("No Concept List"), detail, "warn");
  }
  const leaks = tried.filter((phrase) => phrase.leaks && phrase.alias);
  const phrases = leaks.map(({ phrase, concept }) => t("{0} (for {1})", phrase, concept)).join(", ");
  const question = t(
    "Add these phrases as aliases to the Concept List, so that the next run erases them, too?",
  );
  if (!(await confirm(`${question} ${phrases}`))) return;
  let text = String(value(list, "text") ?? "");
  const answer = await ask("concepts/check", { text, kind: value(list, "kind") });
  for (const { line, target, aliases } of answer?.lines ?? []) {
    const present = [target, ...(aliases ?? [])];
    const missing = leaks
      .filter(({ concept, phrase }) => concept === target && !present.includes(phrase))
      .map(({ phrase }) => phrase);
    if (missing.length) text = replace(text, line - 1, addAliases(split(text)[line - 1].raw, missing));
  }
  editors.get(list)?.change(text);
  notify(t("Aliases added"), t("Run again to erase them."));
}
