// The commands in the menus: the command line, the recipe and the report of a SPEED Erase node.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { installDemoModel } from "./demo.js";
import { safely } from "./dom.js";
import { choices, defaultsOf, priorityKey, upstream, value, values } from "./graph.js";
import { ask, notify } from "./host.js";
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
export const commands = ACTIONS.map(({ id, label, icon, run }) =>
  command(id, label, icon, () => {
    const node = targetNode();
    return node ? run(node) : notify(t("No SPEED Erase in this workflow"), "", "warn");
  }),
);
commands.push(command("InstallDemo", () => t("Install the demo model"), "download", installDemoModel));
const REPORT_LABEL = () => t("Copy installation report");
commands.push(command("CopyInstallationReport", REPORT_LABEL, "heart", copyInstallation));

function command(id, label, icon, run) {
  return { id: `SPEED.${id}`, label: `SPEED: ${label()}`, icon: `pi pi-${icon}`, function: safely(run) };
}

async function copyInstallation() {
  return copy((await ask("doctor", {}))?.text, t("Installation report"));
}

/** For the menu of one node. */
export function nodeMenuItems(node) {
  const actions = node.type === "SpeedErase" ? [...ACTIONS] : [];
  const isOurs = node.constructor.nodeData?.category === "SPEED";
  if (isOurs) actions.push({ label: REPORT_LABEL, run: copyInstallation });
  return actions.map(({ label, run }) => ({
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
  const settings = values(node, ["preset", "strength", "seed", "priority", "effort"]);
  const defaults = defaultsOf(node);
  return commandLine({
    checkpoint: loader ? `models/checkpoints/${value(loader, "ckpt_name")}` : "model.safetensors",
    text: String(value(list, "text") ?? ""),
    kind: value(list, "kind"),
    retainSets: retainSets(retain),
    hasRetainText: Boolean(String(value(retain, "text") ?? "").trim()),
    settings: { ...settings, priority: priorityKey(settings.priority) },
    defaults: { ...defaults, priority: priorityKey(defaults.priority) },
  });
}

/** The built-in sets that the node names. Sets for a kind are what the command line takes by itself. */
function retainSets(retain) {
  const builtin = value(retain, "builtin");
  const sets = choices(retain, "builtin").filter((name) => !/^(none|all)$|: /.test(name));
  return builtin === "all" ? sets : sets.filter((name) => name === builtin);
}

async function copy(text, label) {
  if (!text) return notify(t("Nothing to copy yet"), t("Run the workflow once, then copy."), "warn");
  await navigator.clipboard.writeText(text);
  notify(t("{0} copied", label));
}

/** Opens the report of the last run. The server shows only its own reports, and lets no script run. */
async function openReport(node) {
  const page = lastResult(node)?.page; // an id, or nothing: facts.js checks it
  const url = page && api.apiURL(`/speed/report/${page}`);
  if (url && (await fetch(url, { method: "HEAD" })).ok) return window.open(url, "_blank", "noopener");
  return notify(t("No report yet"), t("Run the workflow, then open the report."), "warn");
}
