// The commands in the menus: the command line, the recipe and the report of a SPEED Erase node.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { safely } from "./dom.js";
import { budgetWord, choices, defaultsOf, upstream, value, values } from "./graph.js";
import { ask, notify, viewPath } from "./host.js";
import { commandLine } from "./lines.js";
import { lastRecipe, lastResult } from "./views.js";
import { t } from "./words.js";

const ACTIONS = [
  {
    id: "CopyCommand",
    label: () => t("Copy as command line"),
    icon: "copy",
    run: (node) => copy(asCommandLine(node), t("Command line")),
  },
  {
    id: "CopyRecipe",
    label: () => t("Copy recipe"),
    icon: "copy",
    run: (node) => copy(lastRecipe(node), t("Recipe")),
  },
  {
    id: "OpenReport",
    label: () => t("Open report"),
    icon: "external-link",
    run: openReport,
  },
];

/** For the menus of the front end: they act on the selected SPEED Erase node, else on the first. */
export const commands = ACTIONS.map(({ id, label, icon, run }) => ({
  id: `SPEED.${id}`,
  label: `SPEED: ${label()}`,
  icon: `pi pi-${icon}`,
  function: safely(() => {
    const node = targetNode();
    return node ? run(node) : notify(t("No SPEED Erase in this graph"), "", "warn");
  }),
}));

/** For the menu of one node. */
export function nodeMenuItems(node) {
  if (node.type !== "SpeedErase") return [];
  return ACTIONS.map(({ label, run }) => ({
    content: `SPEED: ${label()}`,
    callback: safely(() => run(node)),
  }));
}

function targetNode() {
  const candidates = [...Object.values(app.canvas?.selected_nodes ?? {}), ...(app.graph?._nodes ?? [])];
  return candidates.find((node) => node?.type === "SpeedErase");
}

function asCommandLine(node) {
  const list = upstream(node, "ConceptList");
  const loader = upstream(node, "CheckpointLoaderSimple");
  const retain = upstream(node, "RetainSetLoader");
  const settings = values(node, ["preset", "strength", "seed", "budget", "effort"]);
  const defaults = defaultsOf(node);
  return commandLine({
    checkpoint: loader ? `models/checkpoints/${value(loader, "ckpt_name")}` : "model.safetensors",
    text: String(value(list, "text") ?? ""),
    kind: value(list, "kind"),
    retainSets: retainSets(retain),
    hasRetainText: Boolean(String(value(retain, "text") ?? "").trim()),
    settings: { ...settings, budget: budgetWord(settings.budget) },
    defaults: { ...defaults, budget: budgetWord(defaults.budget) },
  });
}

/** The built-in sets that the node names. Sets for a kind are what the command line takes by itself. */
function retainSets(retain) {
  const builtin = value(retain, "builtin");
  const sets = choices(retain, "builtin").filter((name) => !/^(none|all)$|: /.test(name));
  return builtin === "all" ? sets : sets.filter((name) => name === builtin);
}

async function copy(text, label) {
  if (!text) return notify(t("Nothing to copy yet"), t("Run the graph once, then copy."), "warn");
  await navigator.clipboard.writeText(text);
  notify(t("{0} copied", label));
}

/** Shows the report of the last run in a tab. `/view` serves pages as downloads, so the tab gets the text. */
async function openReport(node) {
  const page = lastResult(node)?.page;
  const file = page && (await ask("report/write", page)); // the server renders it now
  const response = file?.filename && (await api.fetchApi(viewPath(file)));
  if (!response?.ok) return notify(t("No report yet"), t("Run the graph, then open the report."), "warn");
  const url = URL.createObjectURL(new Blob([await response.text()], { type: "text/html" }));
  window.open(url, "_blank");
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}
