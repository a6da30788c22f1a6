// The user's own lists: saved in ComfyUI's user folder, so that they are there in every browser.
import { api } from "../../scripts/api.js";
import { h, showDialog } from "./dom.js";
import { notify } from "./host.js";
import { t } from "./words.js";

const FILE = "speed_lists.json";
const MAX_NAME = 80;
const MAX_LISTS = 500;

async function readLists() {
  const response = await api.getUserData(FILE);
  if (!response.ok) return new Map();
  const content = await response.json().catch(() => null); // not one of ours: saving replaces it
  const entries = Object.entries(content ?? {}).filter(([, text]) => typeof text === "string");
  return new Map(entries.slice(0, MAX_LISTS));
}

const writeLists = (lists) =>
  api.storeUserData(FILE, JSON.stringify(Object.fromEntries(lists)), {
    overwrite: true,
    stringify: false,
    throwOnError: true,
  });

/** A dialog over the view of `origin` that saves `text` under a name, and gives saved texts to `load`. */
export async function openLists(origin, text, load) {
  const lists = await readLists();
  const name = h("input", { placeholder: t("Name of the list"), maxLength: MAX_NAME });
  const save = async () => {
    const title = name.value.trim();
    if (!title) return;
    lists.set(title, text);
    try {
      await writeLists(lists);
      notify(t("List saved"), title);
      dialog.close();
    } catch (error) {
      notify(t("Couldn’t save the list"), String(error?.message ?? ""), "error");
    }
  };
  const row = (title) => {
    const remove = async (event) => {
      lists.delete(title);
      event.target.closest(".add").remove();
      await writeLists(lists);
    };
    const open = () => {
      load(lists.get(title));
      dialog.close();
    };
    return h(
      "div",
      { class: "add" },
      h("button", { class: "wide", onclick: open, title: lists.get(title).slice(0, 400) }, title),
      h("button", { onclick: remove, title: t("Delete") }, "×"),
    );
  };
  const elements = [
    h("div", { class: "add" }, name, h("button", { onclick: save }, t("Save this list"))),
    h("h4", {}, lists.size ? t("Load a list") : t("No saved lists yet")),
    ...[...lists.keys()].sort().map(row),
  ];
  const dialog = showDialog(origin, t("My lists"), elements);
}
