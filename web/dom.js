// Elements without a library: text is always text, never markup.

export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  fill(element, props, children);
  return element;
}

export function svg(tag, props = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "style") element.style.cssText = value;
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

/** Runs a hook; a fault in it is told in the console and touches nothing else. */
export function safely(work) {
  return function (...given) {
    try {
      return work.apply(this, given);
    } catch (error) {
      console.warn("[SPEED]", error);
    }
  };
}

/** Keeps the canvas from taking what is meant for our elements. */
export function own(element) {
  for (const name of ["pointerdown", "mousedown", "dblclick", "contextmenu", "keydown", "keyup"]) {
    element.addEventListener(name, (event) => event.stopPropagation());
  }
  element.addEventListener("wheel", (event) => {
    const box = event.target.closest(".speed-scroll");
    if (box && box.scrollHeight > box.clientHeight + 1 && !event.ctrlKey) event.stopPropagation();
  });
  return element;
}

const CSS = `
.speed { box-sizing: border-box; width: 100%; color: var(--input-text, #ddd); font: 14px/1.35 system-ui, sans-serif;
  padding: 6px 8px; overflow: hidden; text-align: left; --speed-line: var(--border-color, #4e4e4e);
  --speed-soft: color-mix(in srgb, currentColor 14%, transparent); --speed-dim: color-mix(in srgb, currentColor 68%, transparent);
  --speed-erased: #2f9e6e; --speed-weakened: #cf9010; --speed-stands: #d64545; --speed-unproven: #8a93a3; --speed-blue: #4a80d8; }
.speed * { box-sizing: border-box; }
.speed h4 { font-size: 14px; font-weight: 600; margin: 12px 0 4px; }
.speed .dim { color: var(--speed-dim); }
.speed .head { font-size: 22px; font-weight: 700; line-height: 1.2; display: flex; align-items: center; gap: 8px; }
.speed .dot { width: 14px; height: 14px; border-radius: 50%; flex: none; }
.speed .warning { border-left: 4px solid var(--speed-weakened); padding: 2px 0 2px 8px; margin: 6px 0; overflow-wrap: anywhere; }
.speed .bar { position: relative; height: 14px; background: var(--speed-soft); border-radius: 3px; overflow: hidden; }
.speed .bar > i { position: absolute; inset: 0 auto 0 0; border-radius: 3px; }
.speed .bar > i.astray { opacity: .35; }
.speed .bar > b { position: absolute; top: 0; bottom: 0; width: 2px; background: currentColor; opacity: .55; }
.speed .row { display: grid; grid-template-columns: minmax(80px, 42%) minmax(40px, 1fr) max-content; gap: 8px; align-items: center; margin: 3px 0; }
.speed .row > :first-child, .speed .chip .what { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.speed .row > .whole { white-space: normal; line-height: 1.2; }
.speed .strip { position: relative; height: 20px; background: var(--speed-soft); border-radius: 3px; }
.speed .strip > i { position: absolute; top: 6px; height: 8px; left: 0; background: var(--speed-blue); opacity: .45; border-radius: 3px; }
.speed .strip > u { position: absolute; top: 2px; bottom: 2px; width: 3px; background: var(--speed-blue); }
.speed .strip > a { position: absolute; top: 5px; width: 10px; height: 10px; margin-left: -5px; border-radius: 50%;
  background: var(--speed-blue); border: 1px solid var(--comfy-input-bg, #222); cursor: help; }
.speed summary { cursor: pointer; color: var(--speed-dim); }
.speed ul { margin: 2px 0; padding-left: 18px; list-style: disc; }
.speed svg { display: block; width: 100%; height: auto; }
.speed button, .speed input, .speed select { font: inherit; color: inherit; background: var(--comfy-input-bg, #222);
  border: 1px solid var(--speed-line); border-radius: 5px; padding: 3px 8px; min-width: 0; }
.speed select option { color: var(--input-text, #ddd); background: var(--comfy-input-bg, #222); }
.speed button { cursor: pointer; }
.speed button:hover { border-color: currentColor; }
.speed :focus-visible { outline: 2px solid var(--speed-blue); outline-offset: 1px; }
.speed-scroll { overflow: auto; overscroll-behavior: contain; }
.speed .chip { display: flex; gap: 6px; align-items: center; border: 1px solid var(--speed-line); border-radius: 8px; padding: 2px 4px 2px 8px;
  margin: 3px 0; content-visibility: auto; contain-intrinsic-size: auto 32px; background: var(--comfy-input-bg, #222); flex-wrap: wrap; }
.speed .chip .what { flex: 1; cursor: pointer; border: 0; background: none; text-align: left; padding: 2px 0; min-width: 80px; }
.speed .chip .tag { font-size: 12px; color: var(--speed-dim); white-space: nowrap; }
.speed .chip .small { border: 0; background: none; padding: 2px 5px; }
.speed .chip.off { opacity: .6; } .speed .chip.off .what { text-decoration: line-through; }
.speed .chip.bad { border-color: var(--speed-stands); }
.speed .chip .says { flex-basis: 100%; font-size: 12px; overflow-wrap: anywhere; }
.speed .chip.bad .says { color: var(--speed-stands); }
.speed .chip em { font-style: normal; border-bottom: 1px dashed currentColor; }
.speed .note { font-size: 12px; color: var(--speed-dim); margin: 3px 0 3px 4px; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.speed .add { display: flex; gap: 6px; position: relative; } .speed .add input { flex: 1; }
.speed .form { display: grid; grid-template-columns: auto 1fr; gap: 4px 8px; align-items: center; border: 1px solid var(--speed-blue);
  border-radius: 8px; padding: 6px 8px; margin: 3px 0; }
.speed .form > div { grid-column: 1 / -1; display: flex; gap: 6px; justify-content: flex-end; }
.speed .drop { outline: 2px dashed var(--speed-blue); }
.speed .pair { position: relative; width: 100%; aspect-ratio: 1; overflow: hidden; border-radius: 5px; background: var(--speed-soft); touch-action: none; }
.speed .pair img { position: absolute; inset: 0; width: 100%; height: 100%; object-fit: cover; }
.speed .pair span { position: absolute; bottom: 4px; padding: 0 6px; border-radius: 4px; background: #000a; color: #fff; font-size: 13px; }
.speed .pair b { position: absolute; top: 0; bottom: 0; width: 3px; margin-left: -1px; background: #fff; box-shadow: 0 0 3px #000; }
.speed .pairs { display: grid; gap: 8px; }
`;

export function addStyle() {
  if (!document.getElementById("speed-style")) document.head.append(h("style", { id: "speed-style" }, CSS));
}
