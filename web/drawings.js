// Smaller drawings: protected names, phrases that leak, images before and after, text.
import { h, showDialog } from "./dom.js";
import { clamp } from "./figures.js";
import { notify } from "./host.js";
import { sentence } from "./notices.js";
import { counted, number, t } from "./words.js";

const DELAY = 250; // ms without a change before the server is asked
const SHOWN_PHRASES = 12;
const COLUMNS = ["one", "two", "three", "four"];

/** How many names, and from where. */
function sources({ counts, total, notes }) {
  const head = counted(total, "1 name", "{0} names");
  const listed = counts.map(([label, count]) => `${t(label)} ${number(count)}`).join(t(", "));
  return [listed ? t("{0}: ", head) + listed : head, ...notes.map(sentence)];
}

/** A retain set: how many names, which, and which drop out. `question()` reads the widgets. */
export function retainNames(question, ask) {
  let latest = 0;
  let timer;
  let last = "";
  const counts = h("div", { "data-speed": "names" });
  const names = h("div", { class: "speed-scroll dim fill" });
  const search = h("input", { placeholder: t("Search the names"), class: "wide", oninput: () => refresh() });
  const update = async () => {
    const asked = { ...question(), search: search.value };
    const key = JSON.stringify(asked);
    if (key === last) return;
    const request = ++latest;
    const answer = await ask("retain/look", asked);
    if (request !== latest || !answer) return;
    last = key;
    const { names: shown = [], found: matches = 0 } = answer;
    const lines = answer.notice ? [sentence(answer.notice)] : sources(answer);
    counts.replaceChildren(...lines.map((line) => h("div", {}, line)));
    names.replaceChildren(...shown.map((name) => h("div", {}, name)));
    if (matches > shown.length) names.append(h("div", {}, t("and {0} more", matches - shown.length)));
  };
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(update, DELAY);
  };
  return { element: h("div", { class: "column fill" }, counts, search, names), refresh };
}

/** The phrases that bring a concept back, and a button that makes aliases of them. */
export function drawLeaks({ tried, total, leaking }, { outdated }, closeLeaks) {
  const tone = (leaks) => (leaks ? "stands" : "erased");
  // What a text encoder wrote may be another thing's name: it is added one by one.
  const add = (leak) =>
    h("button", { class: "link", title: t("Add as alias"), onclick: () => closeLeaks([leak]) }, "+");
  const bar = (leak) =>
    h(
      "div",
      { class: "row", title: leak.prompt },
      h("span", {}, leak.phrase),
      h("div", { class: "bar" }, h("i", { class: tone(leak.leaks), percent: { width: leak.after * 100 } })),
      h(
        "span",
        { class: `verdict ${tone(leak.leaks)}` },
        leak.leaks ? t("leaks") : t("closed"),
        leak.written && leak.leaks && add(leak),
      ),
    );
  const known = tried.filter((leak) => leak.leaks && leak.alias);
  const headline = leaking
    ? t("{0} of {1} phrases leak", leaking, total)
    : t("None of {0} phrases leaks", total);
  const everything = { class: "primary", onclick: () => closeLeaks(known) };
  const button = h("button", everything, t("Add leaks as aliases"));
  const advice = h("div", { class: "advice" }, t("Raise strength in steps of 0.1."));
  return [
    h(
      "div",
      { class: "head", "data-speed": "leaks" },
      h("i", { class: `dot ${tone(leaking)}` }),
      h("span", {}, headline),
      outdated && h("span", { class: "tag right", "data-speed": "state" }, t("Out of date: run again")),
    ),
    known.length > 0 && h("div", { class: "buttons" }, button),
    leaking > 0 && !known.length && advice,
    ...tried.slice(0, SHOWN_PHRASES).map(bar),
  ];
}

/** Text with a button that copies it. */
export function drawText(text) {
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    notify(t("Text copied"));
  };
  return [
    h("div", { class: "output", "data-speed": "text" }, text),
    h("div", { class: "buttons" }, h("button", { onclick: copy }, t("Copy"))),
  ];
}

/** An image that opens large on a click. */
export function drawChart(src, title) {
  const image = () => h("img", { class: "chart", src, alt: title });
  const onclick = (event) => showDialog(event.target, title, [image()]);
  return h("button", { class: "picture", onclick }, image());
}

/** Pairs of images, each with a slider between before and after. With one seed, prompts share a line. */
export function drawPairs({ rows, seeds }, url) {
  const columns = COLUMNS[clamp(seeds, 1, COLUMNS.length) - 1];
  const prompts = rows.map(({ name, prompt, pairs }) =>
    h(
      "div",
      {},
      h("h4", { title: prompt }, `${t(name)}: ${prompt}`),
      h(
        "div",
        { class: `pairs ${columns}` },
        pairs.map((pair) => slider(pair, url)),
      ),
    ),
  );
  return h("div", { class: seeds > 1 ? "" : "prompts" }, prompts);
}

function slider(pair, url) {
  const missing = (event) => event.target.replaceWith(h("em", {}, t("Run again to see this image.")));
  const image = (file, alt) => h("img", { src: url(file), alt, onerror: missing, draggable: false });
  const after = image(pair.after, t("after"));
  const divider = h("b");
  let share = 0.5;
  const show = (position) => {
    share = clamp(position, 0, 1);
    after.style.clipPath = `inset(0 0 0 ${share * 100}%)`;
    divider.style.left = `${share * 100}%`;
    frame.setAttribute("aria-valuenow", Math.round(share * 100));
  };
  const frame = h(
    "div",
    {
      class: "pair",
      tabIndex: 0,
      role: "slider",
      "aria-label": t("before and after"),
      title: t("seed {0}; click to enlarge", pair.seed),
      onpointermove: (event) => {
        const { left, width } = frame.getBoundingClientRect();
        show((event.clientX - left) / width);
      },
      onkeydown: (event) => {
        const step = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
        if (step) show(share + step);
      },
      onclick: () => {
        if (frame.classList.contains("large")) return;
        const large = slider(pair, url);
        large.classList.add("large");
        showDialog(frame, t("seed {0}", pair.seed), [large]);
      },
    },
    image(pair.before, t("before")),
    after,
    divider,
    h("span", { class: "before" }, t("before")),
    h("span", { class: "after" }, t("after")),
  );
  show(share);
  return frame;
}
