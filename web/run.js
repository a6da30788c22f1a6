// What a run was asked, as a short code: a result is current while the graph asks the same. The server
// computes the same code in nodes/host/run_identity.py. Node ids are not part of it.

/** Eight hex digits for a node's type, its inputs and all nodes before it; `prompt` is for the API. */
export function codeOf(prompt, id, codes = new Map()) {
  if (codes.has(id)) return codes.get(id);
  codes.set(id, ""); // a graph with a cycle never runs, but may be on the canvas
  const { class_type: type, inputs } = prompt[id];
  const value = (content) => {
    const [origin, slot] = Array.isArray(content) && content.length === 2 ? content : [];
    const isLink = typeof origin === "string" && Number.isInteger(slot) && origin in prompt;
    return isLink ? `@${codeOf(prompt, origin, codes)}.${slot}` : plain(content);
  };
  const parts = Object.keys(inputs).sort();
  const text = [type, ...parts.map((name) => `${name}=${value(inputs[name])}`)].join("\n");
  codes.set(id, crc32(new TextEncoder().encode(text)).toString(16).padStart(8, "0"));
  return codes.get(id);
}

function plain(content) {
  if (content === null || content === undefined || typeof content === "boolean") return `=${content ?? null}`;
  if (typeof content === "number") return `#${doubleAsHex(content)}`;
  if (Array.isArray(content)) return `[${content.map(plain).join(",")}]`;
  if (!(content instanceof Object)) return `$${content}`;
  const parts = Object.keys(content).sort();
  return `{${parts.map((name) => `${name}:${plain(content[name])}`).join(",")}}`;
}

function doubleAsHex(number) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, number);
  return view.getBigUint64(0).toString(16).padStart(16, "0");
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}
