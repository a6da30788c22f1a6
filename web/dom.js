// Elements without a library. Text is always text, never markup.

const isContent = (child) => child !== null && child !== undefined && child !== false;

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(isContent));
  return element;
}

export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children.flat().filter(isContent));
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
    const box = event.target.closest(".speed-scroll");
    if (box && box.scrollHeight > box.clientHeight + 1 && !event.ctrlKey) event.stopPropagation();
  });
  return element;
}

export function addStyle() {
  if (document.getElementById("speed-style")) return;
  const href = new URL("./speed.css", import.meta.url).href;
  document.head.append(h("link", { id: "speed-style", rel: "stylesheet", href }));
}
