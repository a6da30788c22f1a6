// Notices in the language of the front end: sentences by code, with holes for what they are about. The
// server sends {code, text, data}; `text` is the English sentence, shown where a translation lacks a value.
import { t } from "./words.js";

let sentences = new Map();

/** Takes {code: sentence}; what is missing stays English. */
export function setNotices(table) {
  sentences = new Map(Object.entries(table ?? {}));
}

/** The sentence of a notice. `data` is a Map of texts, numbers and lists of texts. */
export function noticeText({ code, text, data }) {
  const holes = new Map(data);
  const concepts = data.get("concepts");
  if (Array.isArray(concepts)) holes.set("subject", subject(concepts, data.get("total")));
  let complete = true;
  const fill = (hole, name, percent) => {
    const value = holes.get(name);
    if (value === undefined || value === null) complete = false;
    return percent ? `${Math.round(value * 100)}%` : inWords(value);
  };
  const sentence = sentences.get(code)?.replace(/\{(\w+)(%?)\}/g, fill);
  return sentence && complete ? inputTitle(text, data) + sentence : text;
}

const subject = ({ length, 0: first }, total) =>
  length === 1
    ? t("“{0}”", first)
    : length === total
      ? t("all {0} concepts", total)
      : t("{0} of {1} concepts", length, total ?? length);

function inWords(value) {
  if (Array.isArray(value)) return value.join(t(", "));
  return typeof value === "number" ? String(Number(value.toFixed(2))) : String(value);
}

/** Notices about another text input of the model begin with its name. */
function inputTitle(text, data) {
  const end = data.has("input") ? text.indexOf(": ") : -1;
  return end < 0 ? "" : t("{0}: ", t(text.slice(0, end)));
}
