// Notices in the language of the front end: sentences by code, with holes for what they are about. The
// server sends {code, text, data}; `text` is English, shown where a translation lacks a value.
import { notice } from "./facts.js";
import { percent } from "./figures.js";
import { number, t } from "./words.js";

const TRANSLATED = ["group", "judges", "stage", "verdict"];

let sentences = new Map();

/** Takes {code: sentence}; what is missing stays English. */
export function setNotices(table) {
  sentences = new Map(Object.entries(table ?? {}));
}

/** The sentence of a notice as the server sends it; empty if there is none. */
export function sentence(given) {
  const facts = notice(given);
  return facts ? noticeText(facts) : "";
}

/** The sentence of a notice. `data` is a Map of texts, numbers and lists of texts. */
export function noticeText({ code, text, data }) {
  const holes = new Map(data);
  const concepts = data.get("concepts");
  if (Array.isArray(concepts)) holes.set("subject", subject(concepts, data.get("total")));
  let complete = true;
  const fill = (hole, name, isShare) => {
    const value = holes.get(name);
    if (value === undefined || value === null) complete = false;
    if (TRANSLATED.includes(name)) return t(value);
    return isShare ? percent(value, 0) : inWords(name === "owner" ? place(value) : value);
  };
  const words = sentences.get(code)?.replace(/\{(\w+)(%?)\}/g, fill);
  return words && complete ? subjectOf(text, data) + words : text;
}

/** "a.csv, line 3" */
const place = (where) =>
  where.replace(/\b(line|entry) (\d+)$/i, (_, word, index) =>
    /line/i.test(word) ? t("line {0}", index) : t("entry {0}", index),
  );

const subject = ({ length, 0: first }, total) =>
  length === 1
    ? t("“{0}”", first)
    : length === total
      ? t("all {0} concepts", total)
      : t("{0} of {1} concepts", length, total ?? length);

function inWords(value) {
  if (Array.isArray(value)) return value.join(t(", "));
  return typeof value === "number" ? number(value) : String(value);
}

/** What a notice is about comes first: a line of a list, or another text input of the model. */
function subjectOf(text, data) {
  if (data.has("where")) return t("{0}: ", place(data.get("where")));
  const end = data.has("input") ? text.indexOf(": ") : -1;
  return end < 0 ? "" : t("{0}: ", t(text.slice(0, end)));
}
