// Smaller looks: the names of a retain set, the phrases that leak, pictures before and after.
import { h } from "./dom.js";
import { percent } from "./figures.js";
import { t } from "./words.js";

/** How many names there are, which, and which drop out. `question()` gives the widgets; `ask` asks the server. */
export function retainLook(question, ask) {
  let turn = 0, timer;
  const head = h("div", { "data-speed": "names" });
  const dropped = h("div", { class: "dim" });
  const names = h("div", { class: "speed-scroll dim", style: "max-height: 140px" });
  const search = h("input", { placeholder: t("Search the names"), style: "width: 100%", oninput: () => refresh() });
  const element = h("div", {}, head, dropped, search, names);
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const mine = ++turn;
      const answer = await ask("retain/look", { ...question(), search: search.value });
      if (mine !== turn || !answer) return;
      head.textContent = answer.error ?? answer.counts;
      names.replaceChildren(...(answer.names ?? []).map((name) => h("div", {}, name)));
      if (answer.found > (answer.names?.length ?? 0)) names.append(h("div", {}, t("and {0} more", answer.found - answer.names.length)));
      dropped.textContent = answer.dropped ? t("{0} of them drop out, because they contain a name that is to be erased: {1}", answer.dropped, answer.dropped_names.slice(0, 3).join(", ")) : "";
      dropped.title = (answer.dropped_names ?? []).join(", ");
    }, 250);
  };
  return { element, refresh };
}

/** The phrases that still draw a concept, and a button that makes aliases of them. */
export function drawLeaks(facts, close) {
  const leaking = facts.tried.filter((one) => one.leaks);
  return [
    h("div", { class: "head", "data-speed": "leaks" },
      h("i", { class: "dot", style: `background: var(--speed-${leaking.length ? "stands" : "erased"})` }),
      leaking.length ? t("{0} of {1} phrases leak", leaking.length, facts.total) : t("None of {0} phrases leaks", facts.total)),
    facts.tried.slice(0, 12).map((one) => h("div", { class: "row", title: one.prompt },
      h("span", {}, one.phrase),
      h("div", { class: "bar" }, h("i", { style: `background: var(--speed-${one.leaks ? "stands" : "erased"}); width: ${Math.max(0, Math.min(1, one.after)) * 100}%` })),
      h("span", {}, t("{0} left", percent(Math.max(0, one.after)))))),
    leaking.some((one) => one.alias) ? h("button", { style: "margin-top: 8px", onclick: close }, t("Add the leaking phrases as aliases")) : null,
  ].flat();
}

/** Pairs of pictures, each with a slider between before and after. */
export function drawPairs(facts, url) {
  const columns = Math.max(1, Math.min(4, ...[facts.seeds]));
  return facts.rows.map((row) => h("div", {},
    h("h4", { title: row.prompt }, `${t(row.name)}: ${row.prompt}`),
    h("div", { class: "pairs", style: `grid-template-columns: repeat(${columns}, 1fr)` }, row.pairs.map((pair) => slider(pair, url)))));
}

function slider(pair, url) {
  const gone = (event) => event.target.replaceWith(h("em", {}, t("Run again to see this picture.")));
  const after = h("img", { src: url(pair.after), alt: t("after"), onerror: gone, draggable: false });
  const line = h("b");
  const show = (share) => {
    after.style.clipPath = `inset(0 0 0 ${share * 100}%)`;
    line.style.left = `${share * 100}%`;
    box.setAttribute("aria-valuenow", Math.round(share * 100));
  };
  let share = 0.5;
  const at = (event) => {
    const place = box.getBoundingClientRect();
    show((share = Math.min(1, Math.max(0, (event.clientX - place.left) / place.width))));
  };
  const keys = (event) => {
    const step = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
    if (step) show((share = Math.min(1, Math.max(0, share + step))));
  };
  const box = h("div", { class: "pair", tabIndex: 0, role: "slider", "aria-label": t("before and after"), title: t("seed {0}", pair.seed), onpointermove: at, onkeydown: keys },
    h("img", { src: url(pair.before), alt: t("before"), onerror: gone, draggable: false }), after, line,
    h("span", { style: "left: 4px" }, t("before")), h("span", { style: "right: 4px" }, t("after")));
  show(share);
  return box;
}
