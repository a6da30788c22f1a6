// Offers the demo model to a workflow that needs it, and installs it.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { value, widget } from "./graph.js";
import { ask, confirm, notify } from "./host.js";
import { sentence } from "./notices.js";
import { t } from "./words.js";

const DEMO_MODEL = "speed_demo.safetensors"; // the name that the templates ask for
const asked = new WeakSet(); // workflows whose user has answered: undo must not ask again
let asking = false;

const loaders = () => (app.graph?._nodes ?? []).filter((node) => value(node, "ckpt_name") === DEMO_MODEL);

/** If a node loads the demo model and it is missing, one click copies it to the checkpoints. */
export async function offerDemoModel() {
  const workflow = app.extensionManager?.workflow?.activeWorkflow ?? app;
  if (asking || asked.has(workflow) || !loaders().length) return;
  asking = true;
  try {
    const installed = await (await api.fetchApi("/models/checkpoints")).json();
    if (installed.includes(DEMO_MODEL)) return;
    asked.add(workflow);
    const question = t(
      "This workflow uses the demo model. Copy it to your checkpoints folder? 324 MB, nothing to download.",
    );
    if (await confirm(question)) await installDemoModel();
    else notify(t("Demo model not installed"), t("Menu: SPEED, Install the demo model."), "info");
  } finally {
    asking = false;
  }
}

/** Copies the model that comes with the package to the checkpoints. */
export async function installDemoModel() {
  const answer = await ask("demo/place", {});
  if (!answer || answer.error) {
    return notify(t("Couldn’t copy the demo model"), sentence(answer?.notice), "error");
  }
  await app.refreshComboInNodes?.();
  for (const node of loaders()) {
    // Newer front ends clear their mark of a missing model on this call.
    node.onWidgetChanged?.("ckpt_name", DEMO_MODEL, "", widget(node, "ckpt_name"));
  }
  notify(t("Demo model ready"), t("Press Run."));
}
