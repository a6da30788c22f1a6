// The trade-off: what remains of the concepts against how far other names move. Where the server still has
// the run, its point is a control: the server answers from what the run kept, and nothing is encoded again.
import { h, svg } from "./dom.js";
import { MAX_LIMIT, limitAt, percent, plot } from "./figures.js";
import { number, t } from "./words.js";

const FRAME = { left: 54, top: 10, width: 392, height: 150 };
const WIDTH = 460;
const STEP = 0.01; // of the limit, per press of an arrow key

/** Runs `work` for the newest argument: while it is at work, only the last of further arguments waits. */
export function newest(work) {
  let waiting = [];
  let busy = false;
  return async (argument) => {
    waiting = [argument];
    if (busy) return;
    busy = true;
    try {
      while (waiting.length) await work(waiting.pop());
    } finally {
      busy = false;
    }
  };
}

/** The plot of a run. Away from strength 1 its point is where the curve's would be. */
export function drawCurve({ curve, strength }) {
  const [drift, left] = curve.chosen;
  const point = [drift * Math.abs(strength), Math.max(0, 1 - strength * (1 - left))];
  const words = h("div", {}, h("span", { class: "point" }, "● "), thisRun(point));
  return h("div", {}, drawPlot(plot({ ...curve, chosen: point }, null, FRAME)), words);
}

const figures = ([drift, left]) => [percent(left, 0), number(drift, 2)];
const thisRun = (point) => t("this run: {0} remaining, side effects {1}", ...figures(point));
const nextRun = (point) => t("the next run: about {0} remaining, side effects {1}", ...figures(point));

/**
 * The same plot with a point that can be dragged.
 *
 * `control` is {limit, ask, show, choose, run}: the limit on the node now; `ask(limit)` gets what a run
 * within a limit would show, or null; `show(facts)` draws that; `choose(limit)` sets the node; `run()`
 * runs it.
 */
export function drawTrade({ curve }, control) {
  const offers = [...curve.offers.values()].map(([, drift]) => drift);
  const reach = Math.max(curve.reach, curve.chosen[0] * 1.25, ...offers.map((drift) => drift * 1.05));
  const base = { ...curve, reach };
  let limit = control.limit;
  let point = curve.chosen;
  let dragging = false;
  const box = h("div", { class: "trade" });
  const words = h("div", { "data-speed": "trade" });
  const run = h("button", { class: "primary", onclick: control.run }, t("Run with this"));
  const hint = t("Drag the point, or press the arrow keys. The bars show what the next run would give.");
  const draw = () => {
    const changed = Math.abs(limit - curve.budget) > 1e-9;
    const positions = plot({ ...base, budget: limit }, changed ? point : null, FRAME);
    const picture = drawPlot(positions, {
      tabindex: 0,
      role: "slider",
      "aria-label": t("Side-effect limit"),
      "aria-valuemin": 0,
      "aria-valuemax": MAX_LIMIT,
      "aria-valuenow": limit,
      class: "control",
    });
    const focused = box.contains(document.activeElement);
    box.replaceChildren(picture);
    if (focused) picture.focus({ preventScroll: true });
    const text = changed ? `${t("limit {0}", number(limit))}: ${nextRun(point)}` : thisRun(curve.chosen);
    words.replaceChildren(h("span", { class: "point" }, changed ? "◌ " : "● "), text);
    run.hidden = !changed;
  };
  const ask = newest(async (asked) => {
    const answer = await control.ask(asked);
    if (!answer) return;
    [point] = [answer.chosen];
    control.show(answer);
    draw();
  });
  const go = (wanted) => {
    limit = wanted;
    return ask(limit);
  };
  const follow = (event) => {
    const { left, width } = box.getBoundingClientRect();
    const x = ((event.clientX - left) / width) * WIDTH;
    void go(limitAt(x, plot(base, null, FRAME).full, FRAME));
  };
  box.addEventListener("pointerdown", (event) => {
    dragging = true;
    box.setPointerCapture?.(event.pointerId);
    box.firstChild?.focus({ preventScroll: true });
    event.preventDefault();
    follow(event);
  });
  box.addEventListener("pointermove", (event) => dragging && follow(event));
  box.addEventListener("pointerup", () => {
    dragging = false;
    control.choose(limit);
  });
  box.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -STEP, ArrowDown: -STEP, ArrowRight: STEP, ArrowUp: STEP }[event.key];
    if (!step) return;
    event.preventDefault();
    const wanted = Math.round((limit + step) * 1000) / 1000;
    void go(Math.min(MAX_LIMIT, Math.max(STEP, wanted)));
    control.choose(limit);
  });
  draw();
  if (Math.abs(limit - curve.budget) > 1e-9 || control.strengthChanged) void ask(limit);
  return h("div", {}, box, words, h("div", { class: "buttons" }, run), h("div", { class: "dim" }, hint));
}

function drawPlot(positions, props = {}) {
  const right = FRAME.left + FRAME.width;
  const bottom = FRAME.top + FRAME.height;
  const level = (share) => {
    const y = bottom - share * FRAME.height;
    return [
      line({ x1: FRAME.left, x2: right, y1: y, y2: y, "stroke-opacity": 0.18 }),
      label(FRAME.left - 6, y + 5, percent(share, 0), "end"),
    ];
  };
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} 200`, role: "img", "aria-label": t("Erasure and side effects"), ...props },
    [0, 0.5, 1].flatMap(level),
    label(FRAME.left, bottom + 18, "0"),
    label(right, bottom + 18, t("side effects {0}", number(positions.full)), "end"),
    positions.budget !== null && drawLimit(positions.budget),
    polyline(positions.toGo, { class: "curve faint" }),
    polyline(positions.left, { class: "curve" }),
    circle(positions.chosen, t("this run"), { class: "chosen", "data-speed": "chosen" }),
    positions.next && circle(positions.next, t("the next run"), { class: "next", "data-speed": "next" }),
  );
}

function drawLimit(x) {
  const ends = { x1: x, x2: x, y1: FRAME.top, y2: FRAME.top + FRAME.height };
  return [
    line({ ...ends, "stroke-dasharray": "5 4", "stroke-opacity": 0.7 }),
    x < FRAME.left + FRAME.width / 2
      ? label(x + 5, FRAME.top + 15, t("limit"))
      : label(x - 5, FRAME.top + 15, t("limit"), "end"),
  ];
}

const line = (props) => svg("line", { stroke: "currentColor", ...props });

const label = (x, y, text, anchor = "start") =>
  svg("text", { x, y, "text-anchor": anchor, fill: "currentColor", "font-size": 14 }, String(text));

const polyline = (points, props) => svg("polyline", { points, ...props });

const circle = ([cx, cy], title, props) => svg("circle", { cx, cy, r: 7, ...props }, svg("title", {}, title));
