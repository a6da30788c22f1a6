// Offers the small model that comes with the package to a graph that needs it.
import { app } from "../../scripts/app.js";
import { api } from "../../scripts/api.js";
import { value, widget } from "./graph.js";
import { ask, confirm, notify } from "./host.js";
import { t } from "./words.js";

const DEMO_MODEL = "speed_demo.safetensors"; // the name that the first template asks for
let offered = false;

/** If a node loads the demo model and it is missing, one click puts it among the checkpoints. */
export async function offerDemoModel() {
  const loaders = (app.graph?._nodes ?? []).filter((node) => value(node, "ckpt_name") === DEMO_MODEL);
  if (offered || !loaders.length) return;
  const installed = await (await api.fetchApi("/models/checkpoints")).json();
  if (offered || installed.includes(DEMO_MODEL)) return;
  offered = true;
  const question = t(
    "This workflow draws with the small model that comes with SPEED. Put it into your checkpoints? It takes 324 MB and no download.",
  );
  if (!(await confirm(question))) return;
  const answer = await ask("demo/place", {});
  if (!answer || answer.error) {
    return notify(t("The model could not be put there"), answer?.error ?? "", "error");
  }
  await app.refreshComboInNodes?.();
  for (const node of loaders) {
    // Newer front ends clear their mark of a missing model on this call.
    node.onWidgetChanged?.("ckpt_name", DEMO_MODEL, "", widget(node, "ckpt_name"));
  }
  notify(t("The model is there"), t("Press Run."));
}
