// Elements without a library. Text is always text, never markup. Classes, links and styles come from this
// code alone; what a workflow holds reaches a style only as a clamped number of percent.
import { clamp } from "./figures.js";
import { t } from "./words.js";

const isContent = (child) => child !== null && child !== undefined && child !== false;

/** An element. `percent` has its positions and sizes: {width: 40} is 40 %. */
export function h(tag, { percent = {}, ...props } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(percent)) {
    element.style[name] = `${clamp(Number(value), 0, 100)}%`;
  }
  element.append(...children.flat(2).filter(isContent));
  return element;
}

export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children.flat(2).filter(isContent));
  return element;
}

/** Wraps a hook: an exception in it is logged and goes no further. */
export function safely(hook) {
  return function (...args) {
    try {
      return hook.apply(this, args);
    } catch (error) {
      console.warn("[SPEED]", error);
    }
  };
}

/** Keeps the canvas from handling events that are meant for our elements. */
export function shield(element) {
  for (const name of ["pointerdown", "mousedown", "dblclick", "contextmenu", "keydown", "keyup"]) {
    element.addEventListener(name, (event) => event.stopPropagation());
  }
  element.addEventListener("wheel", (event) => {
    const scroller = event.target.closest(".speed-scroll");
    const scrolls = scroller && scroller.scrollHeight > scroller.clientHeight + 1;
    if (scrolls && !event.ctrlKey) event.stopPropagation();
  });
  return element;
}

/**
 * Shows elements above the page until Esc, a click outside or the button closes them. The dialog is in the
 * view of `origin`: other packages share the page.
 */
export function showDialog(origin, title, elements) {
  const closeButton = h("button", { class: "right", onclick: () => dialog.close() }, t("Close"));
  const dialog = h(
    "dialog",
    {
      class: "speed speed-dialog",
      onclose: () => dialog.remove(),
      onclick: (event) => event.target === dialog && dialog.close(),
      onwheel: (event) => event.stopPropagation(),
    },
    h("div", { class: "speed-scroll body" }, h("div", { class: "head" }, title, closeButton), ...elements),
  );
  origin.closest(".speed").append(shield(dialog));
  dialog.showModal();
  return dialog;
}

export async function addStyle() {
  const answer = await fetch(new URL("./speed.css", import.meta.url));
  const sheet = await new CSSStyleSheet().replace(await answer.text());
  document.adoptedStyleSheets.push(sheet);
}
