// The screen of ComfyUI-SPEED. Every node works without it. The only value it changes is the text of a
// concept list, which the user can type as well.
import { app } from "../../scripts/app.js";
import { commands, nodeMenuItems } from "./commands.js";
import { offerDemoModel } from "./demo.js";
import { addStyle, safely } from "./dom.js";
import { rememberDefaults } from "./graph.js";
import { loadWords } from "./host.js";
import { addView } from "./views.js";

app.registerExtension({
  name: "speedconcepterasure.nodes",
  commands,
  menuCommands: [{ path: ["Extensions", "SPEED"], commands: commands.map(({ id }) => id) }],
  getNodeMenuItems: nodeMenuItems,
  init: loadWords,
  setup: safely(addStyle),
  beforeRegisterNodeDef: safely((nodeType, nodeData) => {
    if (nodeData.name === "SpeedErase") rememberDefaults(nodeData);
  }),
  afterConfigureGraph: () => void offerDemoModel().catch((error) => console.warn("[SPEED]", error)),
  nodeCreated: safely(addView),
});
