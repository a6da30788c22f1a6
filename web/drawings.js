// Smaller drawings: the names of a retain set, the phrases that leak, pictures before and after.
import { h } from "./dom.js";
import { clamp, percent } from "./figures.js";
import { t } from "./words.js";

const DELAY = 250; // ms without a change before the server is asked
const SHOWN_PHRASES = 12;
const MAX_COLUMNS = 4;

/** A retain set: how many names, which, and which drop out. `question()` reads the widgets. */
export function retainNames(question, ask) {
  let latest = 0;
  let timer;
  const counts = h("div", { "data-speed": "names" });
  const dropped = h("div", { class: "dim" });
  const names = h("div", { class: "speed-scroll dim", style: "max-height: 140px" });
  const search = h("input", {
    placeholder: t("Search the names"),
    style: "width: 100%",
    oninput: () => refresh(),
  });
  const update = async () => {
    const request = ++latest;
    const answer = await ask("retain/look", { ...question(), search: search.value });
    if (request !== latest || !answer) return;
    const { names: shown = [], found: matches = 0, dropped_names: droppedNames = [] } = answer;
    counts.textContent = answer.error ?? answer.counts;
    names.replaceChildren(...shown.map((name) => h("div", {}, name)));
    if (matches > shown.length) names.append(h("div", {}, t("and {0} more", matches - shown.length)));
    dropped.textContent = answer.dropped
      ? t(
          "{0} of them drop out, because they contain a name that is to be erased: {1}",
          answer.dropped,
          droppedNames.slice(0, 3).join(", "),
        )
      : "";
    dropped.title = droppedNames.join(", ");
  };
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(update, DELAY);
  };
  return { element: h("div", {}, counts, dropped, search, names), refresh };
}

/** The phrases that still draw a concept, and a button that makes aliases of them. */
export function drawLeaks({ tried, total }, closeLeaks) {
  const leaking = tried.filter((phrase) => phrase.leaks);
  const background = (leaks) => `background: var(--speed-${leaks ? "stands" : "erased"})`;
  const bar = ({ phrase, prompt, after, leaks }) =>
    h(
      "div",
      { class: "row", title: prompt },
      h("span", {}, phrase),
      h(
        "div",
        { class: "bar" },
        h("i", { style: `${background(leaks)}; width: ${clamp(after, 0, 1) * 100}%` }),
      ),
      h("span", {}, t("{0} left", percent(Math.max(0, after)))),
    );
  return [
    h(
      "div",
      { class: "head", "data-speed": "leaks" },
      h("i", { class: "dot", style: background(leaking.length) }),
      leaking.length
        ? t("{0} of {1} phrases leak", leaking.length, total)
        : t("None of {0} phrases leaks", total),
    ),
    ...tried.slice(0, SHOWN_PHRASES).map(bar),
    leaking.some((phrase) => phrase.alias) &&
      h("button", { style: "margin-top: 8px", onclick: closeLeaks }, t("Add the leaking phrases as aliases")),
  ];
}

/** Pairs of pictures, each with a slider between before and after. */
export function drawPairs({ rows, seeds }, url) {
  const style = `grid-template-columns: repeat(${clamp(seeds, 1, MAX_COLUMNS)}, 1fr)`;
  return rows.map(({ name, prompt, pairs }) =>
    h(
      "div",
      {},
      h("h4", { title: prompt }, `${t(name)}: ${prompt}`),
      h(
        "div",
        { class: "pairs", style },
        pairs.map((pair) => slider(pair, url)),
      ),
    ),
  );
}

function slider(pair, url) {
  const missing = (event) => event.target.replaceWith(h("em", {}, t("Run again to see this picture.")));
  const picture = (file, alt) => h("img", { src: url(file), alt, onerror: missing, draggable: false });
  const after = picture(pair.after, t("after"));
  const divider = h("b");
  let share = 0.5;
  const show = (position) => {
    share = clamp(position, 0, 1);
    after.style.clipPath = `inset(0 0 0 ${share * 100}%)`;
    divider.style.left = `${share * 100}%`;
    box.setAttribute("aria-valuenow", Math.round(share * 100));
  };
  const box = h(
    "div",
    {
      class: "pair",
      tabIndex: 0,
      role: "slider",
      "aria-label": t("before and after"),
      title: t("seed {0}", pair.seed),
      onpointermove: (event) => {
        const { left, width } = box.getBoundingClientRect();
        show((event.clientX - left) / width);
      },
      onkeydown: (event) => {
        const step = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
        if (step) show(share + step);
      },
    },
    picture(pair.before, t("before")),
    after,
    divider,
    h("span", { style: "left: 4px" }, t("before")),
    h("span", { style: "right: 4px" }, t("after")),
  );
  show(share);
  return box;
}
